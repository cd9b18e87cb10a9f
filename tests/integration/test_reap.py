"""What is taken back from lost leases, from whom, and what is held against whom."""

from collections import Counter

import pytest

from relay.errors import LeaseLost
from relay.settlement import Settlement
from relay.store.reap import LEASES_PER_REAP
from tests.integration.store_kit import (
    COMPLETE,
    LOST_MORE,
    LOST_ONCE,
    RELEASE,
    Raw,
    Stage,
    orphans,
    overtaken,
    positions,
    publish_with_poison,
    wait_until,
)


@pytest.mark.usefixtures("any_postgres")
def test_only_leases_that_expired_or_belong_to_the_gone_are_taken_back(stage: Stage) -> None:
    workers = [stage.actor(f"worker-{n}") for n in range(3)]
    claims = []
    for worker in workers:
        stage.insert(worker.name, 2)
        claims.append(worker.must_claim())
    stage.expire(claims[0])
    reaped = workers[2].reap(gone=["worker-1", "nobody"])
    assert (reaped.leases, reaped.expected, reaped.events) == (2, 4, 4)
    assert [lease["claimed_by"] for lease in stage.leases()] == ["worker-2"]
    assert Counter(status for _, status in stage.statuses()) == {"pending": 4, "processing": 2}


def test_where_nothing_is_lost_nothing_is_taken_back(stage: Stage) -> None:
    stage.insert("a")
    worker = stage.actor()
    worker.must_claim()
    before = stage.everything()
    reaped = worker.reap()
    assert (reaped.leases, reaped.expected, reaped.events, reaped.parked) == (0, 0, 0, 0)
    assert stage.everything() == before


def test_many_lost_leases_are_taken_back_a_few_at_a_time(stage: Stage) -> None:
    n = LEASES_PER_REAP + 3
    stage.insert("", n, partition_key=Raw("'key-' || i"))
    worker = stage.actor()
    for _ in range(n):
        worker.must_claim(rows=1)
    assert worker.reap(gone=[worker.name]).leases == LEASES_PER_REAP
    assert worker.reap(gone=[worker.name]).leases == 3
    assert orphans(stage.sql) == []


@pytest.mark.usefixtures("any_postgres")
def test_events_that_came_between_those_of_a_lease_are_left_alone(stage: Stage) -> None:
    writer = stage.session()
    first = stage.insert("a")
    with writer.transaction():
        late = stage.insert("a", 1, writer)
        last = stage.insert("a")
        claim = stage.actor("doomed").must_claim()
        assert positions(claim) == first + last
    reaper = stage.actor("reaper")
    assert reaper.reap(gone=["doomed"]).events == 2
    assert {row["id"]: row["losses"] for row in stage.rows()} == {first[0]: 1, late[0]: 0, last[0]: 1}
    order = positions(reaper.must_claim(losses=LOST_ONCE))
    assert order == first, "the run ends before the event of another class"


def test_what_was_lost_in_company_comes_back_at_once_with_its_attempt_returned(stage: Stage) -> None:
    stage.insert("a", 2)
    stage.actor("doomed").must_claim()
    reaper = stage.actor("reaper")
    before = [row["available_at"] for row in stage.rows()]
    reaper.reap(gone=["doomed"])
    after = stage.rows()
    assert [(row["attempts"], row["losses"], row["available_at"]) for row in after] == [
        (0, 1, available_at) for available_at in before
    ]
    assert all(row["last_error"].startswith("lease lost: doomed") for row in after)


def test_what_was_lost_alone_is_held_against_the_event_as_an_attempt(stage: Stage) -> None:
    stage.insert("a")
    stage.actor("doomed").must_claim()
    stage.actor("reaper").reap(gone=["doomed"])
    assert [(row["attempts"], row["losses"]) for row in stage.rows()] == [(1, 1)]


def test_a_second_loss_delays_and_a_settled_outcome_clears_the_record(stage: Stage) -> None:
    stage.insert("a", 2)
    worker = stage.actor()
    worker.must_claim()
    worker.reap(gone=[worker.name])
    worker.must_claim(losses=LOST_ONCE)
    worker.reap(gone=[worker.name])
    assert [row["losses"] for row in stage.rows()] == [2, 2]
    assert stage.value(
        "SELECT bool_and(available_at - clock_timestamp() BETWEEN interval '0' AND interval '2 s')"
        " FROM outbox"
    )
    stage.all_due()
    worker.settle(worker.must_claim(rows=1, losses=LOST_MORE), Settlement("retry", "x", 0.0))
    assert [row["losses"] for row in stage.rows()] == [0, 2]


def test_the_delay_after_any_number_of_losses_is_at_most_an_hour(stage: Stage) -> None:
    stage.insert("a", 1, losses=1_000_000, max_attempts=99)
    worker = stage.actor()
    worker.must_claim(losses=(0, 2_000_000))
    worker.reap(gone=[worker.name])
    assert stage.value("SELECT available_at - clock_timestamp() <= interval '1 hour' FROM outbox")


@pytest.mark.usefixtures("any_postgres")
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_reap_during_an_uncommitted_settle_leaves_that_lease_alone(stage: Stage, end: str) -> None:
    """Neither stuck nor out of order, whichever way the settle ends."""
    ids = stage.insert("a", 6)
    other = stage.insert("b", 1)
    worker, reaper = stage.actor("worker", lease_seconds=1.0), stage.actor("reaper")
    claim = worker.must_claim(rows=6)
    worker.must_claim(rows=1)
    worker.conn.execute("BEGIN")
    worker.settle(claim, [COMPLETE, Settlement("retry", "x", 3600.0), *[RELEASE] * 4])
    wait_until(
        lambda: stage.value("SELECT bool_and(expires_at < clock_timestamp()) FROM outbox_leases"),
        "both leases expire",
    )
    assert reaper.reap().events == 1, "the other lease only"
    assert stage.row(other[0])["status"] == "pending"
    assert reaper.claim() is None
    worker.conn.execute(end)

    reaped = reaper.reap()

    assert orphans(stage.sql) == []
    assert stage.leases() == []
    if end == "COMMIT":
        assert reaped.leases == 0
        assert [status for _, status in stage.statuses("a")] == ["completed"] + ["pending"] * 5
        assert reaper.claim() is None, "the second event waits for its retry and holds the others"
    else:
        assert reaped.events == 6
        assert positions(reaper.claim(losses=LOST_ONCE)) == ids + other
    assert overtaken(stage.sql) == []


def test_reapers_that_meet_share_the_work(stage: Stage) -> None:
    stage.insert("", 4, partition_key=Raw("'key-' || i"))
    doomed = stage.actor("doomed")
    for _ in range(2):
        doomed.must_claim(rows=2)
    first, second = stage.actor("first"), stage.actor("second")
    with first.conn.transaction():
        assert first.reap(gone=["doomed"]).events == 4
        assert second.reap(gone=["doomed"]).leases == 0
    assert second.reap(gone=["doomed"]).leases == 0
    assert {row["losses"] for row in stage.rows()} == {1}


def test_a_row_that_somebody_parked_by_hand_stays_parked(stage: Stage) -> None:
    first, second = stage.insert("a", 2)
    stage.actor("doomed").must_claim()
    stage.sql.execute(
        "UPDATE outbox SET status = 'failed', parked_at = now(), lease_expires_at = NULL WHERE id = %s",
        [first],
    )
    reaped = stage.actor("reaper").reap(gone=["doomed"])
    assert (reaped.expected, reaped.events) == (2, 1)
    assert stage.statuses() == [(first, "failed"), (second, "pending")]


def test_early_takeover_lets_the_old_owner_change_nothing(stage: Stage) -> None:
    stage.insert("a", 3)
    old, new = stage.actor("old"), stage.actor("new")
    claim = old.must_claim()
    new.reap(gone=["old"])
    again = new.must_claim(losses=LOST_ONCE)
    with pytest.raises(LeaseLost):
        old.settle(claim)
    new.settle(again)
    assert {status for _, status in stage.statuses()} == {"completed"}


@pytest.mark.usefixtures("any_postgres")
def test_an_event_that_kills_its_worker_is_parked_and_takes_no_innocent_with_it(stage: Stage) -> None:
    stage.insert("", 49, partition_key=Raw("'key-' || i"), max_attempts=3)
    (poison,) = stage.insert("key-7", max_attempts=3)
    stage.insert("key-7", 2, max_attempts=3)
    crashes = publish_with_poison(stage, stage.actor(), poison, crashes=20)
    statuses = dict(stage.statuses())
    assert statuses.pop(poison) == "dead_letter"
    assert set(statuses.values()) == {"completed"}
    assert crashes == 5, "once in a batch, once in a group, three times alone"
