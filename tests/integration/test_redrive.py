"""Redriving: what was parked goes out again, in order, recorded, and never while its key is in flight."""

import json
import signal
import threading
from typing import Any

import psycopg
import pytest

from relay.errors import SettingsError
from relay.message import plain_headers
from relay.settlement import Settlement
from relay.store import candidates, redrive
from relay.store.redrive import Filter, Preview, Progress
from tests.integration.cli_kit import failure, invoke, nowhere
from tests.integration.operator_kit import answer, audit, done, last, park, url
from tests.integration.store_kit import Raw, Stage, positions

__all__ = ["nowhere", "url"]


def retried(stage: Stage, which: Filter, **words: Any) -> Progress:
    operator = stage.actor("operator")
    return last(redrive.retry(operator.conn, operator.table, which, **{"actor": "ann"} | words))


def looked(stage: Stage, which: Filter, **words: Any) -> Preview:
    operator = stage.actor("operator")
    return redrive.preview(operator.conn, operator.table, "retry", which, **words)


# What a redrive does to an event.


@pytest.mark.usefixtures("any_postgres")
def test_a_redriven_event_starts_anew_and_keeps_its_last_error(stage: Stage) -> None:
    worker = stage.actor()
    stage.insert("a", 1, max_attempts=3, losses=0)
    for act in ("retry", "retry", "dead_letter"):
        stage.all_due()
        worker.settle(worker.must_claim(), Settlement(act, "refused", 3600.0))
    assert retried(stage, Filter(key="a")) == Progress(changed=1)
    (row,) = stage.rows()
    assert (row["status"], row["attempts"], row["losses"], row["last_error"]) == ("pending", 0, 0, "refused")
    assert (row["parked_at"], row["completed_at"], row["claimed_by"]) == (None, None, None)
    assert worker.must_claim().events[0].attempt == 1


@pytest.mark.usefixtures("any_postgres")
def test_of_a_blocked_key_the_failed_event_goes_first_then_the_rest_and_nothing_is_marked(
    stage: Stage,
) -> None:
    head, second = park(stage, "a", "block", "release")
    third = stage.insert("a", 1)
    worker = stage.actor()
    assert worker.claim() is None
    assert retried(stage, Filter(status="failed")).changed == 1
    claim = worker.must_claim()
    assert positions(claim) == [head, second, *third]
    assert [event.marks for event in claim.events] == [None, None, None]


@pytest.mark.usefixtures("any_postgres")
def test_a_redriven_event_is_not_fresh_also_where_the_clock_was_set_back(stage: Stage) -> None:
    """A fresh one could be below the floor from which others look for fresh ones."""
    park(stage, "a", "block", created_at=Raw("clock_timestamp() + interval '30 s'"))
    assert retried(stage, Filter(status="failed")).changed == 1
    assert stage.value("SELECT available_at > created_at FROM outbox")


@pytest.mark.usefixtures("any_postgres")
def test_a_redriven_dead_letter_heads_its_lane_behind_what_was_published_and_its_message_says_so(
    stage: Stage,
) -> None:
    dead, _ = park(stage, "a", "dead_letter", "release")
    worker = stage.actor()
    worker.settle(worker.must_claim())
    later = stage.insert("a", 1)
    assert retried(stage, Filter(status="dead_letter")).changed == 1
    claim = worker.must_claim()
    assert positions(claim) == [dead, *later]
    marked, unmarked = (dict(plain_headers(event)) for event in claim.events)
    assert marked["redriven_at"] == stage.row(dead)["redriven_at"]
    assert "redriven_at" not in unmarked


def test_a_writer_cannot_pose_as_a_redrive(stage: Stage) -> None:
    stage.insert("a", 1, headers='{"redriven_at": "yesterday", "own": "kept"}')
    (event,) = stage.actor().must_claim().events
    headers = dict(plain_headers(event))
    assert headers["own"] == "kept"
    assert "redriven_at" not in headers


def test_several_dead_letters_of_a_key_go_out_in_their_order(stage: Stage) -> None:
    dead = park(stage, "a", "dead_letter", "dead_letter", "dead_letter")
    stage.sql.execute("UPDATE outbox SET parked_at = now() - id * interval '1 hour'")
    assert retried(stage, Filter(key="a")).changed == 3
    assert positions(stage.actor().must_claim()) == dead


def test_an_event_that_waits_for_its_retry_is_retried_now_only_if_it_is_named(stage: Stage) -> None:
    worker = stage.actor()
    waiting = stage.insert("a", 1)
    worker.settle(worker.must_claim(), Settlement("retry", "timeout", 3600.0))
    stage.insert("b", 1, available_at=Raw("now() + interval '1 hour'"))
    assert retried(stage, Filter(error="timeout")) == Progress()
    assert retried(stage, Filter(status="pending")) == Progress(changed=1)
    assert positions(worker.must_claim()) == waiting
    assert stage.rows()[0]["attempts"] == 1


# In flight.


@pytest.mark.usefixtures("any_postgres")
@pytest.mark.parametrize("marks", [True, False])
def test_an_event_whose_key_is_in_flight_is_left_out_and_the_others_are_not(
    stage: Stage, marks: bool
) -> None:
    (dead,) = park(stage, "a", "dead_letter")
    (other,) = park(stage, "b", "dead_letter")
    stage.insert("a", 1)
    stage.actor(marks=marks).must_claim()
    assert looked(stage, Filter()) == Preview(events=1, in_flight=1, exact=True)
    assert retried(stage, Filter()) == Progress(changed=1, in_flight=1)
    assert stage.row(dead)["status"] == "dead_letter"
    assert stage.row(other)["status"] == "pending"


@pytest.mark.usefixtures("nowhere", "url")
def test_the_command_refuses_an_event_whose_key_is_in_flight_with_a_sentence(stage: Stage) -> None:
    park(stage, "a", "dead_letter", idempotency_key="evt-1")
    stage.insert("a", 1)
    stage.actor().must_claim()
    before = stage.everything()
    for arguments in (("evt-1",), ("evt-1", "--dry-run")):
        assert failure(invoke("retry", *arguments)) == (
            "event evt-1 was left out, another event of its key is in flight: try again, or hold the key"
            " with 'relay pause --key' first"
        )
    assert stage.everything() == before
    assert stage.value("SELECT count(*) FROM outbox_audit") == 0


# Which events.


@pytest.mark.parametrize(
    "which, found",
    [
        (Filter(), {1, 2, 3, 4}),
        (Filter(status="failed"), {4}),
        (Filter(status="dead_letter"), {1, 2, 3}),
        (Filter(key="a"), {1, 2}),
        (Filter(event_type="Odd"), {2}),
        (Filter(error="TIMED"), {3}),
        (Filter(since=None, limit=2), {1, 2}),
        (Filter(key="a", event_type="Odd"), {2}),
        (Filter(ids=("e-1", "e-4", "e-9", "none")), {1, 4}),
        (Filter(ids=("e-1", "e-4"), status="failed"), {4}),
    ],
)
def test_filters_choose(stage: Stage, which: Filter, found: set[int]) -> None:
    worker = stage.actor()
    park(stage, "a", "dead_letter", worker=worker, idempotency_key="e-1")
    park(stage, "a", "dead_letter", worker=worker, idempotency_key="e-2", event_type="Odd")
    park(stage, "b", "dead_letter", worker=worker, idempotency_key="e-3")
    stage.sql.execute("UPDATE outbox SET last_error = 'it timed out' WHERE idempotency_key = 'e-3'")
    park(stage, "c", "block", worker=worker, idempotency_key="e-4")
    park(stage, "d", "complete", worker=worker, idempotency_key="e-9")
    assert looked(stage, which).events == len(found)
    assert retried(stage, which).changed == len(found)
    changed = {row["idempotency_key"] for row in stage.rows() if row["status"] == "pending"}
    assert changed == {f"e-{n}" for n in found}


def test_events_since_a_moment_are_those_created_then(stage: Stage) -> None:
    park(stage, "a", "dead_letter", "dead_letter")
    stage.sql.execute("UPDATE outbox SET created_at = created_at - interval '1 day' WHERE id = 1")
    since = stage.value("SELECT now() - interval '1 hour'")
    assert retried(stage, Filter(since=since)).changed == 1
    assert stage.row(1)["status"] == "dead_letter"


def test_a_status_that_cannot_be_retried_is_refused(stage: Stage) -> None:
    with pytest.raises(SettingsError, match="retry is for events that are dead_letter, failed or pending"):
        looked(stage, Filter(status="completed"))


def test_a_preview_counts_up_to_a_bound_and_says_so(stage: Stage) -> None:
    park(stage, "a", "dead_letter", "dead_letter", "dead_letter", "dead_letter", "dead_letter")
    assert looked(stage, Filter(), rows=5) == Preview(5, 0, exact=True)
    assert looked(stage, Filter(), rows=4) == Preview(5, 0, exact=False)
    assert looked(stage, Filter(limit=2), rows=4) == Preview(2, 0, exact=True)


# In batches.


def many(stage: Stage, n: int) -> None:
    """n dead letters of as many keys, and one event that is none."""
    stage.sql.execute(
        "INSERT INTO outbox (partition_key, event_type, payload, status, completed_at, parked_at, attempts)"
        " SELECT 'key-' || i, 'Tested', '{}', 'dead_letter', now(), now() + i * interval '1 ms', 5"
        " FROM generate_series(1, %s) i",
        [n],
    )
    park(stage, "a", "complete")


@pytest.mark.usefixtures("any_postgres")
def test_many_events_change_in_batches_of_few_rows_and_few_buckets_each_recorded_with_its_audit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "ROUND", 1000)
    many(stage, 2500)
    operator = stage.actor("operator")
    steps = list(redrive.retry(operator.conn, operator.table, Filter(), actor="ann", reason="fixed"))
    assert [step.changed for step in steps][-1] == 2500
    sizes = {
        n for (n,) in stage.sql.execute("SELECT count(*) FROM outbox_audit GROUP BY at")
    }  # `at` is the transaction's
    assert max(sizes) <= candidates.ROWS_PER_BATCH
    crowded = stage.value(
        "SELECT max(n) FROM (SELECT count(DISTINCT o.partition_bucket) n FROM outbox_audit a"
        " JOIN outbox o ON o.idempotency_key = a.event_id GROUP BY a.at) x"
    )
    assert crowded <= 64
    assert stage.value("SELECT count(*) FROM outbox WHERE status = 'pending'") == 2500
    assert stage.value("SELECT count(DISTINCT event_id) FROM outbox_audit") == 2500
    details = stage.value("SELECT details FROM outbox_audit LIMIT 1")
    assert details.pop("key").startswith("key-")
    assert details == {"from": "dead_letter", "attempts": 5, "reason": "fixed"}


def test_between_two_batches_everything_is_as_if_the_rest_had_not_been_asked_for(stage: Stage) -> None:
    many(stage, 1200)
    operator = stage.actor("operator")
    steps = redrive.retry(operator.conn, operator.table, Filter(), actor="ann")
    done = next(steps)
    assert 0 < done.changed < 1200
    assert operator.conn.info.transaction_status.name == "IDLE"
    assert (
        stage.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s", operator.pid())
        == 0
    )
    assert stage.value("SELECT count(*) FROM outbox WHERE status = 'pending'") == done.changed
    assert stage.value("SELECT count(*) FROM outbox_audit") == done.changed
    steps.close()  # type: ignore[attr-defined]
    assert retried(stage, Filter()).changed == 1200 - done.changed


def test_a_batch_that_fails_leaves_neither_a_change_nor_an_audit(stage: Stage) -> None:
    dead = park(stage, "a", "dead_letter")
    stage.sql.execute("ALTER TABLE outbox_audit ADD CHECK (actor <> 'ann')")
    with pytest.raises(psycopg.errors.CheckViolation):
        retried(stage, Filter())
    assert stage.row(dead[0])["status"] == "dead_letter"


def test_a_redrive_finds_its_events_by_the_index_of_parked_ones(stage: Stage) -> None:
    operator = stage.actor("operator")
    plans: list[str] = []

    def explain(conn: psycopg.Connection[Any], query: str, parameters: Any) -> None:
        if "FROM" in query and "outbox" in query:
            with psycopg.Cursor(conn) as cursor:
                cursor.execute(f"EXPLAIN {query}", parameters)
                plans.append("\n".join(row[0] for row in cursor))

    many(stage, 3000)
    stage.sql.execute("ANALYZE outbox")
    operator.gate.aside = explain
    redrive.preview(operator.conn, operator.table, "retry", Filter())
    next(redrive.retry(operator.conn, operator.table, Filter(), actor="ann"))
    count, find, change = plans
    assert "outbox_parked" in count
    assert "outbox_parked" in find
    assert "outbox_event_id" in change
    assert "Tid Scan" in change
    assert not any("Seq Scan on outbox " in plan for plan in plans)


# The command.

command = pytest.mark.usefixtures("nowhere", "url")


@command
def test_a_dry_run_counts_and_changes_nothing(stage: Stage, url: str) -> None:
    park(stage, "a", "dead_letter", "dead_letter", "release")
    before = stage.everything()
    assert done(invoke("retry", "--key", "a", "--dry-run")) == "2 events would be redriven\n"
    said = answer("retry", "--all", "--dry-run")
    assert (said["matched"], said["exact"], said["changed"], said["dry_run"]) == (2, True, 0, True)
    assert (stage.everything(), audit(url)) == (before, [])


@command
def test_it_says_what_it_did_and_who_is_in_the_audit(stage: Stage, url: str) -> None:
    park(stage, "a", "dead_letter", idempotency_key="evt-1")
    assert done(invoke("retry", "evt-1", "--actor", "ann", "--reason", "fixed")) == "1 event was redriven\n"
    assert audit(url) == [("ann", "retry", "evt-1")]
    assert answer("retry", "--all")["changed"] == 0


@command
def test_events_that_cannot_be_redriven_are_named_and_the_others_are_redriven(stage: Stage) -> None:
    worker = stage.actor()
    park(stage, "a", "dead_letter", worker=worker, idempotency_key="evt-dead")
    park(stage, "b", "complete", worker=worker, idempotency_key="evt-done")
    stage.insert("c", 1, idempotency_key="evt-new")
    result = invoke("retry", "evt-dead", "evt-done", "evt-new", "evt-none")
    assert (result.exit_code, result.stdout) == (1, "1 event was redriven\n")
    assert sorted(result.stderr.splitlines()) == [
        "event evt-done is published: 'relay replay evt-done' publishes it again",
        "event evt-new is pending: it is due, or its writer has delayed it",
        "there is no event evt-none in the outbox: look with 'relay show evt-none'",
    ]
    assert failure(invoke("retry", "evt-done")).startswith("event evt-done is published")


@command
def test_no_filter_at_all_must_be_meant() -> None:
    for arguments in ([], ["--all", "--key", "a"]):
        assert "Name event ids or filters, or --all alone" in failure(invoke("retry", *arguments), 2)
    result = invoke("retry", "--all")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no event matches\n")


@command
def test_many_events_are_redriven_only_by_those_who_mean_it(stage: Stage) -> None:
    many(stage, 101)
    assert failure(invoke("retry", "--all"), 2) == (
        "to redrive concerns 101 events: add --yes to do it without asking"
    )
    assert stage.value("SELECT count(*) FROM outbox WHERE status = 'pending'") == 0
    assert done(invoke("retry", "--all", "--limit", "100")) == "100 events were redriven\n"
    assert done(invoke("retry", "--all", "--yes")) == "1 event was redriven\n"


@command
def test_ctrl_c_stops_between_two_batches_and_says_how_far_it_came(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(stage, 1200)
    changing = redrive._change

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return changing(*arguments)

    monkeypatch.setattr(redrive, "_change", interrupted)
    assert threading.current_thread() is threading.main_thread()
    result = invoke("retry", "--all", "--yes", "--json")
    assert result.exit_code == 130
    said = json.loads(result.stdout)
    assert said["stopped"] is True
    assert 0 < said["changed"] < 1200
    assert stage.value("SELECT count(*) FROM outbox_audit") == said["changed"]
    assert "stopped: the others are as they were" in result.stderr
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("nowhere")
def test_the_commands_work_through_a_pooler_in_transaction_mode(stage: Stage, pgbouncer: str) -> None:
    park(stage, "a", "dead_letter", "dead_letter", "complete")
    through = ("--database-url", pgbouncer)
    assert done(invoke("retry", "--all", *through)) == "2 events were redriven\n"
    assert done(invoke("skip", "--key", "a", "--reason", "x", *through)) == "2 events were skipped\n"
    published = invoke("replay", "--all", "--publisher", "stdout", *through)
    assert len(done(published).splitlines()) == 1
    arguments = ("prune", "--older-than", "0s", "--dead-letters", "--yes", *through)
    assert done(invoke(*arguments)).count("event deleted") == 1
    assert stage.rows() == []
