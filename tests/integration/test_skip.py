"""Skipping: an event is given up with a name and a reason, its key goes on, what is in flight stays."""

from typing import Any

import pytest

from relay.settlement import Settlement
from relay.store import redrive
from relay.store.redrive import Filter, Preview, Progress
from tests.integration.cli_kit import failure, invoke, nowhere
from tests.integration.operator_kit import answer, audit, done, last, rows, url
from tests.integration.store_kit import Stage, positions

__all__ = ["nowhere", "url"]


def skipped(stage: Stage, which: Filter, **words: Any) -> Progress:
    operator = stage.actor("operator")
    words = {"actor": "ann", "reason": "the order never existed"} | words
    return last(redrive.skip(operator.conn, operator.table, which, **words))


@pytest.mark.usefixtures("any_postgres")
def test_a_skipped_failed_event_lets_its_key_go_on_and_says_who_and_why(stage: Stage) -> None:
    worker = stage.actor()
    head, second = stage.insert("a", 2)
    worker.settle(worker.must_claim(), [Settlement("block", "refused"), Settlement("release")])
    assert worker.claim() is None
    assert skipped(stage, Filter(key="a", status="failed")) == Progress(changed=1)
    row = stage.row(head)
    assert row["status"] == "dead_letter"
    assert row["last_error"] == "skipped by ann: the order never existed; before: refused"
    assert positions(worker.must_claim()) == [second]


@pytest.mark.usefixtures("any_postgres")
def test_pending_events_are_skipped_fresh_and_waiting_ones_alike(stage: Stage) -> None:
    worker = stage.actor()
    stage.insert("a", 1)
    worker.settle(worker.must_claim(), Settlement("retry", "timeout", 3600.0))
    stage.insert("a", 2)
    stage.insert("b", 1)
    assert skipped(stage, Filter(key="a")) == Progress(changed=3)
    assert [status for _, status in stage.statuses("a")] == ["dead_letter"] * 3
    assert stage.row(1)["last_error"] == "skipped by ann: the order never existed; before: timeout"
    assert stage.row(2)["last_error"] == "skipped by ann: the order never existed"
    assert stage.statuses("b") == [(4, "pending")]


@pytest.mark.usefixtures("any_postgres")
@pytest.mark.parametrize("marks", [True, False])
def test_what_is_in_flight_is_left_out_and_what_waits_behind_it_is_skipped(stage: Stage, marks: bool) -> None:
    worker = stage.actor(marks=marks)
    stage.insert("a", 3)
    claim = worker.must_claim(rows=1)
    operator = stage.actor("operator")
    seen = redrive.preview(operator.conn, operator.table, "skip", Filter(key="a"))
    assert seen == Preview(events=2, in_flight=1, exact=True)
    assert skipped(stage, Filter(key="a")).changed == 2
    worker.settle(claim)
    assert [status for _, status in stage.statuses()] == ["completed", "dead_letter", "dead_letter"]


def test_a_skipped_event_comes_back_by_a_redrive(stage: Stage) -> None:
    (position,) = stage.insert("a", 1)
    skipped(stage, Filter(key="a"))
    operator = stage.actor("operator")
    assert last(redrive.retry(operator.conn, operator.table, Filter(), actor="ann")).changed == 1
    assert positions(stage.actor().must_claim()) == [position]


def test_an_event_that_was_claimed_after_it_was_found_is_left_out(stage: Stage) -> None:
    """Found pending, then claimed and settled to wait, then claimed again: the change looks again."""
    stage.insert("a", 1)
    operator, worker = stage.actor("operator"), stage.actor()

    def claim_first(query: str) -> None:
        if "pg_advisory_xact_lock" in query:
            operator.gate.before = None
            worker.must_claim()

    operator.gate.before = claim_first
    steps = redrive.skip(operator.conn, operator.table, Filter(key="a"), actor="ann", reason="x")
    assert last(steps) == Progress(in_flight=1)
    assert stage.statuses() == [(1, "processing")]
    assert stage.value("SELECT count(*) FROM outbox_audit") == 0


command = pytest.mark.usefixtures("nowhere", "url")


@command
def test_the_command_skips_counts_and_records(stage: Stage, url: str) -> None:
    stage.insert("a", 1, idempotency_key="evt-1")
    before = stage.everything()
    assert done(invoke("skip", "evt-1", "--reason", "x", "--dry-run")) == "1 event would be skipped\n"
    assert (stage.everything(), audit(url)) == (before, [])
    assert done(invoke("skip", "evt-1", "--reason", "a test", "--actor", "ann")) == "1 event was skipped\n"
    assert audit(url) == [("ann", "skip", "evt-1")]
    (row,) = rows(url, "SELECT details FROM outbox_audit")
    assert row["details"] == {"key": "a", "from": "pending", "attempts": 0, "reason": "a test"}
    assert failure(invoke("skip", "evt-1", "--reason", "x")) == "event evt-1 is a dead letter already"


@command
def test_it_asks_for_a_reason(stage: Stage) -> None:
    stage.insert("a", 1, idempotency_key="evt-1")
    assert invoke("skip", "evt-1").exit_code == 2
    assert failure(invoke("skip", "evt-1", "--reason", " "), 2).startswith("--reason is empty")
    assert stage.statuses() == [(1, "pending")]


@command
@pytest.mark.parametrize("marks", [True, False])
def test_an_event_in_flight_is_refused_by_its_name(stage: Stage, marks: bool) -> None:
    stage.insert("a", 1, idempotency_key="evt-1")
    stage.actor(marks=marks).must_claim()
    assert failure(invoke("skip", "evt-1", "--reason", "x")) == (
        "event evt-1 is in flight: see what becomes of it with 'relay show evt-1'"
    )


@command
@pytest.mark.parametrize("marks", [True, False])
def test_by_filter_events_in_flight_are_counted(stage: Stage, marks: bool) -> None:
    stage.insert("a", 3)
    stage.actor(marks=marks).must_claim(rows=1)
    said = answer("skip", "--key", "a", "--reason", "x", "--dry-run")
    assert (said["matched"], said["in_flight"]) == (2, 1)
    result = invoke("skip", "--key", "a", "--reason", "x")
    assert (result.exit_code, result.stdout) == (0, "2 events were skipped\n")
    assert "1 event was left out, in flight" in result.stderr
