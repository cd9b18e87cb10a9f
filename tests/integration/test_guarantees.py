"""The five promises that everything else rests on, on every supported PostgreSQL."""

import threading
from functools import partial

import psycopg
import pytest

from relay.errors import LeaseLost
from relay.settlement import Settlement
from tests.integration.store_kit import RELEASE, Background, Raw, Stage, insert, orphans, positions

pytestmark = pytest.mark.usefixtures("any_postgres")


def test_a_repeated_event_id_leaves_one_row(stage: Stage) -> None:
    stage.insert("order:1", idempotency_key="paid-1", payload='{"n": 1}')
    with pytest.raises(psycopg.errors.UniqueViolation):
        stage.insert("order:1", idempotency_key="paid-1", payload='{"n": 2}')
    repeated = stage.sql.execute(
        "INSERT INTO outbox (partition_key, event_type, payload, idempotency_key)"
        " VALUES ('order:2', 'Tested', '{}', 'paid-1') ON CONFLICT DO NOTHING"
    )
    assert repeated.rowcount == 0
    assert [(row["partition_key"], row["payload"]) for row in stage.rows()] == [("order:1", {"n": 1})]


def test_a_repeated_event_id_leaves_one_row_when_two_writers_race(stage: Stage) -> None:
    first, second = stage.session(), stage.session()
    with first.transaction():
        insert(first, "order:1", idempotency_key="paid-1")
        late = stage.in_background(second, lambda: insert(second, "order:1", idempotency_key="paid-1"))
        assert not late.finished()
    with pytest.raises(psycopg.errors.UniqueViolation):
        late.result()
    assert len(stage.rows()) == 1


def test_a_repeated_event_id_still_leaves_one_row_after_it_was_published_and_kept(stage: Stage) -> None:
    stage.insert("order:1", idempotency_key="paid-1")
    worker = stage.actor()
    worker.settle(worker.must_claim())
    with pytest.raises(psycopg.errors.UniqueViolation):
        stage.insert("order:1", idempotency_key="paid-1")
    assert [row["status"] for row in stage.rows()] == ["completed"]


def test_two_workers_that_claim_at_once_never_get_the_same_event(stage: Stage) -> None:
    stage.insert("", 200, partition_key=Raw("'key:' || i"))
    workers = [stage.actor(f"worker-{n}") for n in range(4)]
    start = threading.Barrier(len(workers))

    def claim_all(n: int) -> list[tuple[int, int]]:
        start.wait()
        taken: list[tuple[int, int]] = []
        conn = workers[n].conn
        while conn.execute("SELECT 1 FROM outbox WHERE status = 'pending' LIMIT 1").fetchone():
            claim = workers[n].claim(7)
            taken += [(event.position, event.generation) for event in claim.events] if claim else []
        return taken

    racing = [Background(partial(claim_all, n)) for n in range(len(workers))]
    for thread in racing:
        thread.start()
    taken = [pair for thread in racing for pair in thread.result()]
    assert len(taken) == len({position for position, _ in taken}) == 200
    assert {status for _, status in stage.statuses()} == {"processing"}


def test_generations_only_grow_and_no_two_leases_share_one(stage: Stage) -> None:
    stage.insert("order:1", 4)
    generations = []
    for n in range(4):
        worker = stage.actor(f"worker-{n}")
        claim = worker.must_claim(1)
        generations.append(claim.generation)
        worker.settle(claim)
    assert generations == sorted(set(generations))


def test_an_expired_lease_returns_to_pending_and_another_worker_claims_it(stage: Stage) -> None:
    ids = stage.insert("order:1", 3)
    first, second = stage.actor("first"), stage.actor("second")
    lost = first.must_claim()
    assert second.claim() is None
    stage.expire(lost)
    assert second.claim() is None, "a claim must not take over by itself"

    reaped = second.reap()

    assert (reaped.leases, reaped.events, reaped.parked) == (1, 3, 0)
    assert stage.statuses() == [(position, "pending") for position in ids]
    again = second.must_claim(losses=(1, 1))
    assert positions(again) == ids
    assert again.generation > lost.generation
    second.settle(again)
    assert stage.statuses() == [(position, "completed") for position in ids]


@pytest.mark.parametrize("completion", ["keep", "delete", "archive"])
@pytest.mark.parametrize("act", ["complete", "retry", "dead_letter", "block", "release"])
def test_a_stale_workers_settle_changes_nothing_at_all(stage: Stage, completion: str, act: str) -> None:
    stage.insert("order:1", 2)
    stale, other = stage.actor("stale", completion=completion), stage.actor("other")
    lost = stale.must_claim()
    stage.expire(lost)
    before = stage.everything()
    with pytest.raises(LeaseLost):
        stale.settle(lost, Settlement(act, "x"))  # type: ignore[arg-type]
    assert stage.everything() == before, "it had expired, though nobody had taken it back"

    other.reap()
    other.must_claim(losses=(1, 1))
    before = stage.everything()
    with pytest.raises(LeaseLost):
        stale.settle(lost, Settlement(act, "x"))  # type: ignore[arg-type]
    assert stage.everything() == before, "it belonged to another worker"


def test_a_settle_under_another_workers_name_changes_nothing(stage: Stage) -> None:
    stage.insert("order:1", 2)
    claim = stage.actor("owner").must_claim()
    before = stage.everything()
    with pytest.raises(LeaseLost):
        stage.actor("impostor").settle(claim)
    assert stage.everything() == before


def test_an_event_past_its_attempts_is_dead_lettered_and_its_key_goes_on(stage: Stage) -> None:
    first, second = stage.insert("order:1", 2, max_attempts=2)
    worker = stage.actor()
    worker.settle(worker.must_claim(1), Settlement("retry", "no answer", 0.0))
    stage.all_due()
    claim = worker.must_claim(1)
    assert [(event.attempt, event.max_attempts) for event in claim.events] == [(2, 2)]
    worker.settle(claim, Settlement("dead_letter", "no answer"))

    row = stage.row(first)
    assert (row["status"], row["last_error"]) == ("dead_letter", "no answer")
    assert row["completed_at"] is not None
    assert row["parked_at"] is not None
    assert positions(worker.claim()) == [second]


def test_an_event_whose_workers_all_died_is_dead_lettered_by_the_reaper(stage: Stage) -> None:
    first, second = stage.insert("order:1", 2, max_attempts=1)
    stage.actor("doomed").must_claim(1)
    reaped = stage.actor("other").reap(gone=["doomed"])
    assert (reaped.events, reaped.parked) == (1, 1)
    row = stage.row(first)
    assert row["status"] == "dead_letter"
    assert "doomed" in row["last_error"]
    assert positions(stage.actor("other").claim()) == [second]


def test_with_block_an_event_past_its_attempts_holds_its_key_and_no_other(stage: Stage) -> None:
    first, _ = stage.insert("order:1", 2)
    other = stage.insert("order:2", 1)
    worker = stage.actor(on_exhausted="block")
    claim = worker.must_claim()
    worker.settle(claim, [Settlement("block", "refused"), RELEASE, Settlement("release")])

    assert stage.row(first)["status"] == "failed"
    assert stage.row(first)["completed_at"] is None
    assert positions(worker.claim()) == other
    assert worker.claim() is None


def test_with_block_the_reaper_too_leaves_the_event_holding_its_key(stage: Stage) -> None:
    first, _ = stage.insert("order:1", 2, max_attempts=1)
    stage.actor("doomed").must_claim(1)
    other = stage.actor("other", on_exhausted="block")
    assert other.reap(gone=["doomed"]).parked == 1
    assert stage.row(first)["status"] == "failed"
    assert other.claim() is None
    assert orphans(stage.sql) == []
