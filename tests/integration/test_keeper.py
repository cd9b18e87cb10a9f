"""One tick of several keepers: who keeps house, who speaks for the outbox, and what a frozen one holds up."""

from collections.abc import Sequence
from datetime import timedelta
from time import monotonic

import psycopg
import pytest

from relay.metrics import Metrics
from relay.pace import Paces
from relay.store.gauges import Gauges
from relay.store.prune import Pruning
from relay.store.workers import Registry
from relay.worker import keeper as keeper_module
from relay.worker.keeper import Keeper
from tests.integration.store_kit import Actor, Raw, Stage, held, wait_until


class Worker:
    """A keeper and what it told."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.actor: Actor = stage.actor(name)
        self.metrics = Metrics()
        self.paces = Paces({"orders": 100.0}, 0.0)
        self.owned: Sequence[int] = ()
        self.registry = Registry(self.actor.table, 30.0)
        self.registry.register(self.actor.conn, name, {})
        week = timedelta(days=7)
        self.keeper = Keeper(
            self.actor.conn,
            name,
            self.registry,
            self.actor.reaping,
            Gauges(self.actor.table),
            self.paces,
            Pruning(self.actor.table, week, None, week),
            self._own,
            self.actor.table.housekeeping_lock,
            10.0,
            self.metrics,
        )

    def _own(self, buckets: Sequence[int]) -> None:
        self.owned = buckets

    def tick(self) -> None:
        self.keeper.tick(monotonic())

    def value(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name)


def test_all_know_how_many_share_a_limit_and_one_speaks_for_the_outbox(stage: Stage) -> None:
    stage.insert("order:1", 3)
    first, second = Worker(stage, "first"), Worker(stage, "second")
    for worker in (first, second):
        worker.tick()
    assert (first.value("relay_pending_events"), first.value("relay_workers")) == (3, 2)
    assert second.value("relay_pending_events") is None
    for worker in (first, second):
        # A second's worth of half the limit.
        assert list(worker.paces.ready(1000.0).values()) == [50]
        assert worker.value("relay_owned_buckets") == len(worker.owned)
    assert sorted([*first.owned, *second.owned]) == list(range(1024))
    first.keeper.resign()
    assert (first.value("relay_pending_events"), first.value("relay_owned_buckets")) == (None, 0)


def test_who_follows_a_housekeeper_reads_at_once_what_is_there_now(stage: Stage) -> None:
    first, second = Worker(stage, "first"), Worker(stage, "second")
    first.tick()
    second.tick()
    stage.insert("order:1", 3)
    first.registry.deregister(first.actor.conn, "first")
    second.tick()
    assert second.value("relay_pending_events") == 3


def test_a_worker_that_freezes_while_it_keeps_house_holds_the_others_up_for_moments(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "FROZEN_SECONDS", 1)
    frozen, other = Worker(stage, "frozen"), Worker(stage, "other")
    lock = "SELECT pg_try_advisory_xact_lock(%s)"
    with held(frozen.actor, "WITH buried", frozen.tick) as ticking:
        assert not stage.value(lock, frozen.actor.table.housekeeping_lock)
        wait_until(lambda: stage.value(lock, frozen.actor.table.housekeeping_lock), "the lock is free")
        other.tick()
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        ticking.result()


def old_event(stage: Stage) -> None:
    stage.insert("a", status="completed", completed_at=Raw("now() - interval '8 days'"))


def test_what_is_old_and_cannot_be_deleted_keeps_nobody_from_taking_back_what_the_dead_have_left(
    stage: Stage,
) -> None:
    stage.insert("b")
    lost = stage.actor("lost").must_claim()
    old_event(stage)
    stage.sql.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'"
    )
    stage.sql.execute("CREATE TRIGGER refuse BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()")
    stage.expire(lost)
    worker = Worker(stage, "worker")
    worker.tick()
    assert stage.leases() == []
    assert stage.value("SELECT count(*) FROM outbox") == 2


def test_one_worker_deletes_what_is_old(stage: Stage) -> None:
    first, second = Worker(stage, "first"), Worker(stage, "second")
    first.tick()
    old_event(stage)
    second.tick()
    assert stage.value("SELECT count(*) FROM outbox") == 1
    first.registry.deregister(first.actor.conn, "first")

    def deleted() -> bool:
        second.tick()
        return bool(stage.value("SELECT count(*) FROM outbox") == 0)

    wait_until(deleted, "it is deleted")
