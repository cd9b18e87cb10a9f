"""A settle records each outcome once, on the right row, all or nothing, wherever the rows are by then."""

import json
from math import inf
from typing import Any

import psycopg
import pytest

from relay.errors import LeaseLost, Overtaken
from relay.outcome import Unconfirmed
from relay.pause import Subject
from relay.settlement import Settlement
from relay.store.look import Claim
from relay.store.pauses import Breakers
from tests.integration.store_kit import (
    RELEASE,
    Actor,
    Stage,
    change_places,
    is_waiting,
    orphans,
    positions,
    wait_until,
)

COMPLETIONS = ["keep", "delete", "archive"]
MIX = [
    Settlement("complete", receipt="events[0]@1"),
    Settlement("retry", "later, please", 60.0),
    Settlement("dead_letter", "refused"),
    Settlement("block", "refused"),
    Settlement("release"),
    Settlement("complete", receipt="events[0]@2"),
]
EXPECTED = ["completed", "pending", "dead_letter", "failed", "pending", "completed"]


def mixed_claim(stage: Stage, worker: Actor) -> Claim:
    for n in range(len(MIX)):
        stage.insert(f"key-{n}", idempotency_key=f"event-{n}")
    claim = worker.must_claim()
    assert [event.key for event in claim.events] == [f"key-{n}" for n in range(len(MIX))]
    return claim


def outcome(stage: Stage, completion: str) -> list[str]:
    """The status of every event of the mix, where its completion put it."""
    statuses = {row["idempotency_key"]: row["status"] for row in stage.rows()}
    archived = stage.sql.execute("SELECT idempotency_key, status::text FROM outbox_archive").fetchall()
    assert bool(archived) == (completion == "archive")
    if completion == "delete":
        assert {"event-0", "event-5"}.isdisjoint(statuses)
        statuses |= {"event-0": "completed", "event-5": "completed"}
    for event_id, status in archived:
        assert event_id not in statuses
        statuses[event_id] = status
    return [statuses[f"event-{n}"] for n in range(len(MIX))]


@pytest.mark.usefixtures("any_postgres")
@pytest.mark.parametrize("completion", COMPLETIONS)
def test_every_outcome_is_written_on_its_own_row(stage: Stage, completion: str) -> None:
    worker = stage.actor(completion=completion)
    worker.settle(mixed_claim(stage, worker), MIX)
    assert outcome(stage, completion) == EXPECTED
    assert stage.leases() == []
    rows = {row["idempotency_key"]: row for row in stage.rows()}
    retried, dead, blocked, released = (rows[f"event-{n}"] for n in (1, 2, 3, 4))
    assert stage.value(
        "SELECT available_at - clock_timestamp() BETWEEN interval '50 s' AND interval '60 s'"
        " FROM outbox WHERE idempotency_key = 'event-1'"
    )
    assert (retried["attempts"], retried["last_error"]) == (1, "later, please")
    assert (dead["last_error"], dead["claimed_by"]) == ("refused", "worker-1")
    assert blocked["available_at"] == "infinity"
    assert (released["attempts"], released["last_error"]) == (0, None)
    for row in (retried, released):
        assert row["claimed_by"] is None
        assert row["lease_expires_at"] is None


@pytest.mark.parametrize("completion", ["keep", "archive"])
@pytest.mark.parametrize("marks", [True, False])
def test_a_completed_event_keeps_its_receipt_and_all_it_was_written_with(
    stage: Stage, completion: str, marks: bool
) -> None:
    stage.insert("a", headers='{"h": "1"}', destination="there", payload='{"x": 1.0}', max_attempts=9)
    before = stage.rows()[0]
    worker = stage.actor(completion=completion, marks=marks)
    claim = worker.must_claim()
    worker.settle(claim, Settlement("complete", receipt="there[3]@1207"))
    table = "outbox" if completion == "keep" else "outbox_archive"
    after: dict[str, Any] = stage.value(f"SELECT to_jsonb(o) FROM {table} o")
    changed = {name for name in after if before[name] != after[name]}
    assert changed == {
        "status", "attempts", "claimed_at", "claimed_by", "completed_at", "lease_generation", "receipt"
    }  # fmt: skip
    assert after["receipt"] == "there[3]@1207"
    assert after["lease_generation"] == claim.generation
    assert json.loads(claim.events[0].payload) == after["payload"]


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_lease_is_settled_once(stage: Stage, completion: str) -> None:
    worker = stage.actor(completion=completion)
    stage.insert("a", 2)
    claim = worker.must_claim()
    worker.settle(claim, ["complete", "release"])
    before = stage.everything()
    with pytest.raises(LeaseLost):
        worker.settle(claim, ["release", "complete"])
    assert stage.everything() == before


def test_a_settle_needs_one_outcome_per_event(stage: Stage) -> None:
    worker = stage.actor()
    stage.insert("a", 2)
    claim = worker.must_claim()
    with pytest.raises(ValueError, match="1 settlements for 2 events"):
        worker.settle(claim, ["complete"])
    worker.settle(claim)


@pytest.mark.parametrize("text", ["zero \0 byte", "lone \udcff surrogate", "ünïcode 日本", "x" * 100_000])
def test_whatever_a_broker_answers_can_be_recorded(stage: Stage, text: str) -> None:
    worker = stage.actor()
    stage.insert("a")
    stage.insert("b")
    worker.settle(worker.must_claim(), [Settlement("retry", text, 0.0), Settlement("complete", receipt=text)])
    retried, completed = stage.rows()
    assert retried["last_error"] == completed["receipt"]
    assert retried["last_error"][:4] == text[:4]


def test_whatever_a_broker_answers_a_breaker_can_open_with_it(stage: Stage) -> None:
    worker = stage.actor()
    failure = Unconfirmed("zero \0 byte \udcff", "broker", retry_after=inf)
    assert failure.retry_after is not None
    opened = Breakers(worker.table, worker.name).open(
        worker.conn, Subject("destination", "there"), failure.reason, failure.retry_after
    )
    assert opened is not None


def test_a_retry_without_a_new_error_keeps_the_last_one(stage: Stage) -> None:
    worker = stage.actor()
    stage.insert("a")
    worker.settle(worker.must_claim(), Settlement("retry", "broken", 0.0))
    worker.settle(worker.must_claim(), RELEASE)
    assert stage.rows()[0]["last_error"] == "broken"
    assert stage.rows()[0]["attempts"] == 1


# Where the rows are


@pytest.mark.usefixtures("any_postgres")
@pytest.mark.parametrize(
    "move",
    [
        "VACUUM FULL outbox",
        "CLUSTER outbox USING outbox_event_id",
        "UPDATE outbox SET headers = '{}' WHERE status = 'processing'",
        "UPDATE outbox SET headers = '{}' WHERE idempotency_key = 'event-2'",
        "UPDATE outbox SET available_at = clock_timestamp() WHERE idempotency_key IN ('event-1', 'event-5')",
    ],
)
def test_a_settle_finds_rows_that_moved_since_the_claim(stage: Stage, move: str) -> None:
    worker = stage.actor(completion="archive")
    stage.insert("before", 3)
    worker.settle(worker.must_claim())
    claim = mixed_claim(stage, worker)
    stage.sql.execute(move)
    moved = stage.value("SELECT array_agg(ctid ORDER BY id)::text FROM outbox WHERE status = 'processing'")
    assert moved != claim.tids
    worker.settle(claim, MIX)
    stage.sql.execute("DELETE FROM outbox WHERE partition_key = 'before'")
    stage.sql.execute("DELETE FROM outbox_archive WHERE partition_key = 'before'")
    assert outcome(stage, "archive") == EXPECTED
    assert orphans(stage.sql) == []


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_settle_of_all_completes_all_after_they_moved(stage: Stage, completion: str) -> None:
    worker = stage.actor(completion=completion)
    stage.insert("a", 50)
    claim = worker.must_claim()
    stage.sql.execute("VACUUM FULL outbox")
    worker.settle(claim)
    assert {status for _, status in stage.statuses()} <= {"completed"}
    assert stage.leases() == []


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_events_of_one_lease_that_changed_places_keep_their_own_outcomes(
    stage: Stage, completion: str
) -> None:
    """CLUSTER sorts by event id: the first event moves where the second was and the other way round."""
    worker = stage.actor(completion=completion)
    first, second = (
        stage.insert(key, idempotency_key=event_id, max_attempts=99)[0]
        for key, event_id in (("a", "z"), ("b", "y"))
    )

    worker.settle(
        change_places(stage, worker), [Settlement("retry", "not taken", 60.0), Settlement("complete")]
    )
    assert stage.row(first)["status"] == "pending"
    assert (second, "pending") not in stage.statuses()


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_where_an_event_of_the_lease_is_gone_nothing_is_settled_and_the_reaper_frees_the_rest(
    stage: Stage, completion: str
) -> None:
    worker = stage.actor(completion=completion)
    ids = stage.insert("a", 3)
    claim = worker.must_claim()
    stage.sql.execute("DELETE FROM outbox WHERE id = %s", [ids[1]])
    before = stage.everything()
    for acts in ("complete", ["complete", "retry", "release"]):
        with pytest.raises(Overtaken):
            worker.settle(claim, acts)  # type: ignore[arg-type]
        assert stage.everything() == before
    reaped = worker.reap(gone=[worker.name])
    assert (reaped.expected, reaped.events) == (3, 2)
    assert stage.statuses() == [(ids[0], "pending"), (ids[2], "pending")]


# When it is late


@pytest.mark.usefixtures("any_postgres")
@pytest.mark.parametrize("completion", ["keep", "delete"])
def test_a_settle_that_straddles_the_expiry_settles_all(stage: Stage, completion: str) -> None:
    """It passes the fence in time, waits for a row that somebody looks at, and goes on after the expiry."""
    ids = stage.insert("a", 20)
    worker = stage.actor(completion=completion, lease_seconds=2.0)
    onlooker = stage.session()
    claim = worker.must_claim()
    with onlooker.transaction():
        onlooker.execute("SELECT FROM outbox WHERE id = %s FOR UPDATE", [ids[9]])
        settling = stage.in_background(worker, lambda: worker.settle(claim))
        assert is_waiting(stage.sql, worker.pid())
        wait_until(
            lambda: stage.value("SELECT max(lease_expires_at) < clock_timestamp() FROM outbox"),
            "the lease expires",
        )
    settling.result()
    assert {status for _, status in stage.statuses()} <= {"completed"}
    assert orphans(stage.sql) == []
    assert stage.leases() == []


@pytest.mark.usefixtures("any_postgres")
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_settle_that_meets_the_reaper_leaves_all_to_whoever_was_first(stage: Stage, end: str) -> None:
    stage.insert("a", 5)
    worker, reaper = stage.actor("worker"), stage.actor("reaper")
    claim = worker.must_claim()
    reaper.conn.execute("BEGIN")
    assert reaper.reap(gone=["worker"]).events == 5
    settling = stage.in_background(worker, lambda: worker.settle(claim))
    assert not settling.finished()
    reaper.conn.execute(end)
    if end == "COMMIT":
        with pytest.raises(LeaseLost):
            settling.result()
        assert {status for _, status in stage.statuses()} == {"pending"}
    else:
        settling.result()
        assert {status for _, status in stage.statuses()} == {"completed"}
    assert stage.leases() == []


def test_a_lost_lease_is_said_so_where_the_database_defaults_to_serializable(stage: Stage) -> None:
    name = stage.value("SELECT current_database()")
    stage.sql.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    worker, reaper = stage.actor("worker"), stage.actor("reaper")
    stage.insert("a", 3)
    claim = worker.must_claim()
    with reaper.conn.transaction():
        reaper.reap(gone=["worker"])
        settling = stage.in_background(worker, lambda: worker.settle(claim))
        assert not settling.finished()
    with pytest.raises(LeaseLost):
        settling.result()


def test_a_settle_whose_connection_breaks_changes_nothing(stage: Stage) -> None:
    stage.insert("a", 3)
    worker = stage.actor()
    claim = worker.must_claim()
    before = stage.everything()
    onlooker = stage.session()
    with onlooker.transaction():
        onlooker.execute("SELECT FROM outbox FOR UPDATE")
        settling = stage.in_background(worker, lambda: worker.settle(claim))
        assert not settling.finished()
        stage.sql.execute("SELECT pg_terminate_backend(%s)", [worker.pid()])
        with pytest.raises(psycopg.OperationalError):
            settling.result()
    assert stage.everything() == before
    assert positions(claim) == [position for position, _ in stage.statuses()]
