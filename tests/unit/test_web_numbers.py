"""What the pages work out themselves: rates, latencies, groups of errors; and what a browser sends."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.requests import Request

from relay.metrics import Metrics
from relay.pause import Subject
from relay.store.redrive import Filter
from relay.tally import Tally
from relay.web.answers import body_of
from relay.web.params import (
    Wrong,
    action_of,
    cursor_of,
    duration_of,
    filter_of,
    query_of,
    since_of,
    subject_of,
)
from relay.web.reads import spans
from relay.web.shape import in_common
from relay.web.trend import Trend, quantile


def told(worker: str, at: float, delivered: int, now: float | None = None, **more: Any) -> dict[str, Any]:
    tally = {
        "at": at,
        "published": {"delivered": delivered, **more},
        "settled": {},
        "confirmed": {"+Inf": delivered, "0.1": delivered},
    }
    return {"id": worker, "status": "alive", "tally": tally, "now": at if now is None else now}


def test_two_tallies_of_a_worker_make_a_rate_and_workers_add_up() -> None:
    trend = Trend()
    trend.add([told("a", 10, 100), told("b", 11, 0)])
    flow = trend.add([told("a", 12, 300, refused=4), told("b", 13, 50)])
    assert flow.rates == {"delivered": 125.0, "unconfirmed": 0, "refused": 2.0}
    assert flow.workers == {"a": 100.0, "b": 25.0}


def test_a_rate_holds_until_the_next_tally_and_ends_when_it_repeats() -> None:
    trend = Trend()
    trend.add([told("a", 10, 0)])
    trend.add([told("a", 12, 20)])
    assert trend.add([told("a", 12, 20, now=13)]).rates["delivered"] == 10.0
    assert trend.add([told("a", 14, 20)]).rates["delivered"] == 0.0


def test_a_worker_that_is_dead_gone_or_silent_adds_nothing() -> None:
    trend = Trend()
    trend.add([told("a", 10, 0), told("b", 10, 0), told("c", 10, 0)])
    trend.add([told("a", 12, 20), told("b", 12, 20), told("c", 12, 20)])
    dead = told("b", 12, 20, now=13) | {"status": "dead"}
    flow = trend.add([told("a", 12, 20, now=60), dead])
    assert flow.rates["delivered"] == 0.0
    assert trend.add([{"id": "d", "status": "alive", "tally": None, "now": 1.0}]).workers == {}


def test_latency_is_read_off_the_histogram_between_its_bounds() -> None:
    counts = {"0.1": 50, "1.0": 100, "+Inf": 100}
    assert quantile(counts, 0.5) == pytest.approx(0.1)
    assert quantile(counts, 0.75) == pytest.approx(0.55)
    assert quantile({"0.1": 0, "+Inf": 10}, 0.5) == 0.1, "beyond the last bound nothing more is known"
    assert quantile({}, 0.5) is None
    assert quantile({"+Inf": 0}, 0.5) is None


def test_latency_is_read_between_the_bounds_that_hold_it_even_if_nothing_was_ever_faster() -> None:
    """A worker tells the bound below as well: Prometheus reads 0.175 s off this histogram."""
    metrics = Metrics()
    now = datetime.now(UTC)
    metrics.commit_to_confirm.observe("OrderPaid", [now - timedelta(seconds=0.15)] * 100, now)
    tally = Tally.of(metrics.registry)
    assert set(tally.confirmed.values()) == {0, 100}
    assert quantile(tally.confirmed, 0.5) == pytest.approx(0.175)
    trend = Trend()
    before = {"at": 8.0, "published": {}, "settled": {}, "confirmed": {}}
    for at, told_then in ((8.0, before), (10.0, tally.as_json() | {"at": 10.0})):
        flow = trend.add([{"id": "a", "status": "alive", "tally": told_then, "now": at}])
    assert flow.latency["p50"] == pytest.approx(0.175)


def test_errors_that_differ_in_numbers_are_named_by_what_they_share() -> None:
    errors = ["broker-1:9092 timed out after 3 s", "broker-2:9092 timed out after 3 s"]
    assert in_common(errors, 2) == ("broker-…:9092 timed out after 3 s", ":9092 timed out after 3 s")
    assert all(in_common(errors, 2)[1] in error for error in errors)


def test_what_only_some_were_seen_to_share_is_not_part_of_the_filter() -> None:
    errors = ["broker-1:9092 timed out after 3 s", "broker-2:9092 timed out after 3 s"]
    assert in_common(errors, 50) == ("broker-…:9092 timed out after 3 s", "timed out after")


@pytest.mark.parametrize(
    "errors",
    [
        ["req 4f2a9c timed out", "req f1ac22 timed out"],
        ["0x1f", "0xf"],
        ["4fa is gone", "f4a is gone"],
        ["12", "no number"],
    ],
)
def test_errors_of_another_shape_break_nothing_and_what_is_said_to_be_contained_is(errors: list[str]) -> None:
    for variants in (2, 50):
        _, contains = in_common(errors, variants)
        assert all(contains in error for error in errors)


def test_a_group_of_one_error_keeps_it_whole() -> None:
    assert in_common(["record 17 has no currency"], 1) == ("record 17 has no currency",) * 2
    assert in_common([""], 1) == ("", "")


def test_buckets_are_told_as_runs() -> None:
    assert spans([]) == []
    assert spans([0, 1, 2, 5, 7, 8]) == [(0, 2), (5, 5), (7, 8)]


def test_a_filter_that_means_everything_is_refused() -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"ids": []},
        {"status": ""},
        {"key": "", "error": ""},
        {"unknown": "x"},
    ]
    for body in bodies:
        with pytest.raises(Wrong, match="name at least"):
            filter_of(body)


def test_a_filter_is_read_in_the_words_of_the_store() -> None:
    body = {"status": "failed", "key": "order:1", "type": "OrderPaid", "error": "%", "ids": ["a"]}
    assert filter_of(body) == Filter(
        ids=("a",), status="failed", key="order:1", event_type="OrderPaid", error="%"
    )


@pytest.mark.parametrize(
    "read, body",
    [
        (filter_of, {"ids": "abc"}),
        (filter_of, {"ids": [1]}),
        (filter_of, {"ids": ["x"] * 101}),
        (filter_of, {"status": "gone"}),
        (filter_of, {"key": "a\0b"}),
        (action_of, {"action": "delete"}),
        (action_of, {}),
        (subject_of, {"scope": "host", "value": "x"}),
        (subject_of, {"scope": "key"}),
        (subject_of, {"scope": "key", "value": ""}),
        (subject_of, {"scope": "key", "value": "x" * 256}),
        (duration_of, {"for": "soon"}),
        (duration_of, {"for": "0 s"}),
        (duration_of, {"for": "1000 years"}),
        (query_of, {"before": "drop"}),
        (query_of, {"before": "yesterday 5"}),
        (query_of, {"since": "soon"}),
        (cursor_of, "infinity x"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(read: Any, body: Any) -> None:
    with pytest.raises(Wrong):
        read(body)


def test_a_client_that_leaves_before_its_request_is_whole_is_no_error_of_the_relay() -> None:
    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(Wrong, match="ended"):
        asyncio.run(body_of(Request(scope, gone)))


def test_what_makes_sense_is_read() -> None:
    assert subject_of({"scope": "all", "value": "ignored"}) == Subject("all", "")
    assert subject_of({"scope": "key", "value": " order:1 "}) == Subject("key", "order:1")
    assert duration_of({"for": "2h"}) == 7200
    assert duration_of({"for": " "}) is None
    assert since_of("2026-07-01T12:00") == datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert since_of("") is None
    assert cursor_of("infinity 12") == "infinity 12"
