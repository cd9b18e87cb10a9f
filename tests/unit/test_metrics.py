"""Metrics: names that dashboards hold on to, bounded labels, counting in bulk."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from time import monotonic

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from relay.event import Event
from relay.metrics import Metrics
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed
from relay.reading import Breaker, Count, Reading, Upkeep
from relay.series import FEW, Ages
from relay.table_gauges import TableGauges

OF_A_WORKER = {
    "relay_claimed_events": "counter",
    "relay_published_events": "counter",
    "relay_settled_events": "counter",
    "relay_fenced_settlements": "counter",
    "relay_lost_leases": "counter",
    "relay_reaped_events": "counter",
    "relay_out_of_order_events": "counter",
    "relay_short_settlements": "counter",
    "relay_publisher_incidents": "counter",
    "relay_claim_seconds": "histogram",
    "relay_batch_events": "histogram",
    "relay_publish_seconds": "histogram",
    "relay_commit_to_confirm_seconds": "histogram",
    "relay_owned_buckets": "gauge",
    "relay_ready": "gauge",
    "relay_publish_overdue_seconds": "gauge",
    "relay_housekeeper": "gauge",
    "relay_build_info": "gauge",
}
OF_THE_HOUSEKEEPER = {
    "relay_pending_events",
    "relay_retrying_events",
    "relay_processing_events",
    "relay_failed_events",
    "relay_dead_letter_events",
    "relay_blocked_keys",
    "relay_oldest_pending_age_seconds",
    "relay_reading_exact",
    "relay_workers",
    "relay_open_breakers",
    "relay_breaker_state",
    "relay_operator_pauses",
    "relay_oldest_transaction_age_seconds",
    "relay_held_back_transactions",
    "relay_dead_tuples",
    "relay_last_autovacuum_age_seconds",
}
READING = Reading(
    pending=Count(12_000, exact=False),
    retrying=Count(7, exact=False),
    processing=Count(4),
    failed=Count(3),
    dead_letter=Count(2),
    blocked_keys=Count(1),
    oldest_pending_seconds=1.5,
    workers=2,
    breakers=(Breaker("destination", "orders"), Breaker("host", "a.example", probing=True)),
    open_breakers={"destination": 1, "host": 1, "route": 0},
    operator_pauses={"all": 0, "key": 2},
    upkeep={"outbox": Upkeep(50, 600.0), "outbox_leases": Upkeep(5)},
    oldest_transaction_seconds=90.0,
    held_back_transactions=1234,
    sees_all_sessions=False,
)


def events(number: int, destination: str = "orders", age: float = 0.0, event_type: str = "E") -> list[Event]:
    created = datetime.now(UTC) - timedelta(seconds=age)
    return [
        Event(i, "k", f"evt-{i}", event_type, destination, b"{}", None, created, 1, 1, 5)
        for i in range(1, number + 1)
    ]


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def exposed(metrics: Metrics) -> dict[str, str]:
    """The relay's families in the text, by type; each counter's creation time aside."""
    text = generate_latest(metrics.registry).decode()
    found = {family.name: family.type for family in text_string_to_metric_families(text)}
    return {
        name: kind
        for name, kind in found.items()
        if name.startswith("relay_") and not name.endswith("_created")
    }


def test_every_documented_name_is_exposed_with_its_type() -> None:
    metrics = Metrics()
    assert exposed(metrics) == OF_A_WORKER
    metrics.table.hold(monotonic() + 60)
    metrics.table.show(READING)
    assert exposed(metrics) == OF_A_WORKER | dict.fromkeys(OF_THE_HOUSEKEEPER, "gauge")
    assert value(metrics, "relay_claimed_events_total") == 0


def test_the_catalogue_knows_every_series_and_its_labels() -> None:
    metrics = Metrics()
    metrics.table.hold(monotonic() + 60)
    metrics.table.show(READING)
    metrics.published(events(1), [Delivered()])
    metrics.settled("complete", 1)
    metrics.incidents({"reconnects": 1})
    known = {name: set(series.labels) for series in metrics.series for name in series.samples()}
    seen: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name.startswith("relay_") and not sample.name.endswith("_created"):
                seen[sample.name] = set(sample.labels) - {"le"}
    assert seen == known
    housekeepers = {series.name for series in metrics.series if series.source == "housekeeper"}
    assert housekeepers == OF_THE_HOUSEKEEPER


def test_a_batch_is_counted_by_destination_and_outcome() -> None:
    metrics = Metrics()
    outcomes: Sequence[Outcome] = [Delivered(), Delivered(), Unconfirmed("late"), Refused("too large")]
    metrics.published(events(4), outcomes)
    metrics.published(events(1, "invoices"), [Delivered()])
    name = "relay_published_events_total"
    assert value(metrics, name, destination="orders", outcome="delivered") == 2
    assert value(metrics, name, destination="orders", outcome="unconfirmed") == 1
    assert value(metrics, name, destination="orders", outcome="refused") == 1
    assert value(metrics, name, destination="invoices", outcome="delivered") == 1


def test_only_confirmed_events_are_timed_each_under_its_type() -> None:
    metrics = Metrics()
    batch = [*events(2, age=7.0), *events(3, age=0.2, event_type="F")]
    metrics.published(batch, [Delivered(), Unconfirmed("late"), Delivered(), Delivered(), Refused("no")])
    name = "relay_commit_to_confirm_seconds"
    assert value(metrics, f"{name}_count", event_type="E") == 1
    assert value(metrics, f"{name}_bucket", event_type="E", le="5.0") == 0
    assert value(metrics, f"{name}_bucket", event_type="E", le="10.0") == 1
    assert 7.0 <= (value(metrics, f"{name}_sum", event_type="E") or 0) < 8.0
    assert value(metrics, f"{name}_count", event_type="F") == 2


@pytest.mark.parametrize("number", [1, FEW - 1, FEW, 500])
def test_ages_are_the_same_however_many_come_at_once(number: int) -> None:
    now = datetime.now(UTC)
    ages = Random(number).choices([-60.0, 0.0, 0.4, 1.0, 1.5, 2.0, 9.0, 10_000.0], k=number)
    histogram = Ages("h", "h", "of", [1.0, 2.0, 10.0])
    histogram.observe("x", [now - timedelta(seconds=age) for age in ages], now)
    histogram.observe("x", [], now)
    (family,) = histogram.collect()
    found = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    expected = {str(bound): sum(age <= bound for age in ages) for bound in (1.0, 2.0, 10.0)}
    expected |= {"+Inf": number, "h_count": number}
    total = sum(max(age, 0.0) for age in ages)
    assert found == expected | {"h_sum": pytest.approx(total)}


def test_events_of_any_age_can_be_timed() -> None:
    ages = Ages("h", "h", "of", [1.0])
    ages.observe("x", [datetime(1, 1, 2, tzinfo=UTC)] * 100_000, datetime.now(UTC))
    (family,) = ages.collect()
    assert next(sample.value for sample in family.samples if sample.name == "h_count") == 100_000


def test_a_database_clock_that_is_ahead_counts_as_no_time() -> None:
    metrics = Metrics()
    metrics.published([*events(1, age=-60.0), *events(2, age=-30.0)], [Delivered()] * 3)
    assert value(metrics, "relay_commit_to_confirm_seconds_sum", event_type="E") == 0
    assert value(metrics, "relay_commit_to_confirm_seconds_bucket", event_type="E", le="0.001") == 3


def test_many_event_types_share_a_label_once_there_are_too_many() -> None:
    metrics = Metrics()
    batch = [event for number in range(60) for event in events(2, event_type=f"T{number}")]
    metrics.published(batch, [Delivered()] * len(batch))
    name = "relay_commit_to_confirm_seconds_count"
    assert value(metrics, name, event_type="T39") == 2
    assert value(metrics, name, event_type="T40") is None
    assert value(metrics, name, event_type="other") == 40


def test_a_hundred_destinations_have_labels_and_the_rest_share_one() -> None:
    metrics = Metrics()
    for number in range(150):
        metrics.published(events(1, f"topic-{number}"), [Delivered()])
    metrics.published(events(1, "topic-0"), [Delivered()])
    name = "relay_published_events_total"
    assert value(metrics, name, destination="topic-0", outcome="delivered") == 2
    assert value(metrics, name, destination="topic-99", outcome="delivered") == 1
    assert value(metrics, name, destination="topic-100", outcome="delivered") is None
    assert value(metrics, name, destination="other", outcome="delivered") == 50


def test_a_password_in_a_destination_does_not_become_a_label() -> None:
    metrics = Metrics()
    metrics.published(events(1, "https://u:hunter2@x.example/in"), [Delivered()])
    assert b"hunter2" not in generate_latest(metrics.registry)


def test_settlements_and_losses_are_counted() -> None:
    metrics = Metrics()
    metrics.settled("complete", 10)
    metrics.settled("retry", 1)
    metrics.reaped(2, 30)
    assert value(metrics, "relay_settled_events_total", act="complete") == 10
    assert value(metrics, "relay_settled_events_total", act="retry") == 1
    assert value(metrics, "relay_lost_leases_total") == 2
    assert value(metrics, "relay_reaped_events_total") == 30


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def housekeeper() -> tuple[TableGauges, Clock]:
    clock = Clock()
    gauges = TableGauges(clock)
    gauges.hold(clock.now + 6)
    gauges.show(READING)
    return gauges, clock


def shown(gauges: TableGauges) -> set[str]:
    return {family.name for family in gauges.collect()}


def test_who_has_the_post_shows_the_whole_outbox_and_who_loses_it_shows_nothing_of_it() -> None:
    gauges, _ = housekeeper()
    assert shown(gauges) == OF_THE_HOUSEKEEPER | {"relay_housekeeper"}
    gauges.resign()
    assert shown(gauges) == {"relay_housekeeper"}
    gauges.hold(1000.0)
    assert shown(gauges) == {"relay_housekeeper"}, "a reading of an earlier term"


def test_a_housekeeper_that_was_frozen_shows_nothing_before_it_has_asked_again() -> None:
    gauges, clock = housekeeper()
    clock.now += 6
    assert shown(gauges) == {"relay_housekeeper"}
    assert [sample.value for family in gauges.collect() for sample in family.samples] == [0.0]


def test_a_reading_outlives_a_few_that_failed_but_not_for_long() -> None:
    gauges, clock = housekeeper()
    gauges.hold(clock.now + 1000)
    clock.now += 29
    assert shown(gauges) >= OF_THE_HOUSEKEEPER
    clock.now += 2
    assert shown(gauges) == {"relay_housekeeper"}


def test_a_reading_becomes_gauges_and_says_what_is_an_estimate() -> None:
    gauges, _ = housekeeper()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in gauges.collect()
        for sample in family.samples
    }
    estimates = {labels[1] for labels, value in found.items() if labels[0].endswith("_exact") and not value}
    assert estimates == {
        "relay_pending_events",
        "relay_retrying_events",
        "relay_oldest_pending_age_seconds",
        "relay_oldest_transaction_age_seconds",
    }
    assert found["relay_pending_events",] == 12_000
    assert found["relay_blocked_keys",] == 1
    assert found["relay_breaker_state", "destination", "orders"] == 1
    assert found["relay_breaker_state", "host", "a.example"] == 0.5
    assert found["relay_open_breakers", "route"] == 0
    assert found["relay_operator_pauses", "key"] == 2
    assert found["relay_dead_tuples", "outbox"] == 50
    assert found["relay_last_autovacuum_age_seconds", "outbox"] == 600
    assert ("relay_last_autovacuum_age_seconds", "outbox_leases") not in found
    assert found["relay_held_back_transactions",] == 1234


def test_breakers_that_look_alike_are_one_series_with_the_worse_state() -> None:
    gauges, _ = housekeeper()
    alike = (Breaker("host", "x", probing=True), Breaker("host", "x"), Breaker("host", "x", probing=True))
    gauges.show(replace(READING, breakers=alike))
    (family,) = [family for family in gauges.collect() if family.name == "relay_breaker_state"]
    assert [sample.value for sample in family.samples] == [1.0]


def test_readiness_and_a_publisher_that_hangs_are_asked_for_when_somebody_looks() -> None:
    metrics = Metrics()
    assert value(metrics, "relay_ready") == 0
    reasons: list[str | None] = [None]
    metrics.watch(lambda: reasons[0], lambda: 12.5)
    assert (value(metrics, "relay_ready"), value(metrics, "relay_publish_overdue_seconds")) == (1, 12.5)
    reasons[0] = "draining"
    assert value(metrics, "relay_ready") == 0


def test_two_relays_in_one_process_do_not_share_metrics() -> None:
    first, second = Metrics(), Metrics()
    first.claimed.inc(3)
    assert value(second, "relay_claimed_events_total") == 0
