"""Who is alive, who is buried, and whose leases may be taken back."""

from collections.abc import Callable

import psycopg
import pytest

from relay.store.workers import Registry
from tests.integration.store_kit import LOST_ONCE, Actor, Stage, wait_until

pytestmark = pytest.mark.usefixtures("any_postgres")


def register(stage: Stage, name: str) -> Actor:
    actor = stage.actor(name)
    Registry(actor.table, 30.0).register(actor.conn, name, {"publisher": "memory"})
    return actor


def registry(actor: Actor, stale_seconds: float = 30.0) -> Registry:
    return Registry(actor.table, stale_seconds)


def statuses(stage: Stage) -> dict[str, str]:
    return dict(stage.sql.execute("SELECT id, status FROM outbox_workers").fetchall())


def disconnected(stage: Stage, actor: Actor) -> Callable[[], bool]:
    pid = actor.pid()
    return lambda: stage.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid) == 0


def test_a_worker_whose_connection_ends_is_buried_at_once_and_its_leases_are_free(stage: Stage) -> None:
    stage.insert("a", 2)
    doomed, other = register(stage, "doomed"), register(stage, "other")
    doomed.must_claim()
    assert registry(other).bury(other.conn) == []
    gone = disconnected(stage, doomed)
    doomed.close()
    wait_until(gone, "the session ends")
    assert registry(other).bury(other.conn) == ["doomed"]
    assert statuses(stage) == {"doomed": "dead", "other": "alive"}
    assert other.reap(["doomed"]).events == 2
    assert len(other.must_claim(losses=LOST_ONCE).events) == 2
    assert registry(other).bury(other.conn) == []


@pytest.mark.parametrize(
    "trouble",
    [
        "UPDATE outbox_leases SET expires_at = clock_timestamp() - interval '1 s'",
        "UPDATE outbox_leases SET claimed_by = 'nobody'",
        "UPDATE outbox_workers SET status = 'dead' WHERE id = 'other'",
        "UPDATE outbox_workers SET last_seen_at = clock_timestamp() - interval '31 s' WHERE id = 'other'",
        (
            "UPDATE outbox_workers SET status = 'dead', last_seen_at = clock_timestamp() - interval '25 h'"
            " WHERE id = 'idle'"
        ),
        "UPDATE outbox_workers SET id = 'without a session' WHERE id = 'idle'",
    ],
)
def test_all_is_well_until_somebody_or_something_is_to_be_taken_care_of(stage: Stage, trouble: str) -> None:
    stage.insert("a")
    keeper, other, _ = register(stage, "keeper"), register(stage, "other"), register(stage, "idle")
    other.must_claim()
    assert registry(keeper).all_well(keeper.conn)
    stage.sql.execute(trouble)
    assert not registry(keeper).all_well(keeper.conn)
    registry(keeper).bury(keeper.conn)
    keeper.reap(["other", "nobody"])
    assert registry(keeper).all_well(keeper.conn), "and again once that is done"


def test_a_worker_whose_heartbeat_is_stale_is_buried_and_learns_it_at_its_next(stage: Stage) -> None:
    stage.insert("a", 1)
    frozen, other = register(stage, "frozen"), register(stage, "other")
    frozen.must_claim()
    assert registry(frozen).heartbeat(frozen.conn, "frozen")
    stage.sql.execute(
        "UPDATE outbox_workers SET last_seen_at = clock_timestamp() - interval '31 s' WHERE id = 'frozen'"
    )
    assert registry(other).bury(other.conn) == ["frozen"]
    assert not registry(frozen).heartbeat(frozen.conn, "frozen")
    assert statuses(stage)["frozen"] == "dead"
    assert list(registry(other).living(other.conn)) == ["other"]


def test_locks_of_a_worker_that_froze_in_the_middle_of_a_pipeline_end_with_its_burial(stage: Stage) -> None:
    frozen, other = stage.actor("frozen"), register(stage, "other")
    registry(frozen).register(frozen.conn, "frozen", {}, [frozen.pid()])
    lock = "SELECT pg_advisory_xact_lock(%s, 7)"
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND pid = %s"
    pid = frozen.pid()
    pipeline = frozen.conn.pipeline()
    pipeline.__enter__()
    frozen.conn.execute(lock, [frozen.table.bucket_locks])  # and nothing more: no end of the transaction
    wait_until(lambda: stage.value(held, pid) == 1, "the server has the first statement")
    stage.sql.execute(
        "UPDATE outbox_workers SET last_seen_at = clock_timestamp() - interval '31 s' WHERE id = 'frozen'"
    )
    registry(other).bury(other.conn)
    wait_until(lambda: stage.value(held, pid) == 0, "the lock is free")
    with pytest.raises(psycopg.OperationalError):
        pipeline.__exit__(None, None, None)


def test_a_burial_ends_no_session_that_began_after_the_worker(stage: Stage) -> None:
    other, bystander = register(stage, "other"), stage.actor("bystander")
    # The server has given the process id to somebody else since.
    registry(other).register(other.conn, "frozen", {}, [bystander.pid()])
    stage.sql.execute(
        "UPDATE outbox_workers SET last_seen_at = clock_timestamp() - interval '31 s',"
        " started_at = clock_timestamp() - interval '1 day' WHERE id = 'frozen'"
    )
    registry(other).bury(other.conn)
    assert statuses(stage)["frozen"] == "dead"
    assert bystander.conn.execute("SELECT 1").fetchone() == (1,)


def test_a_heartbeat_keeps_a_worker_alive_and_says_what_it_does(stage: Stage) -> None:
    worker, other = register(stage, "worker"), register(stage, "other")
    stage.sql.execute("UPDATE outbox_workers SET last_seen_at = clock_timestamp() - interval '31 s'")
    assert registry(worker).heartbeat(worker.conn, "worker", "draining")
    assert registry(other).heartbeat(other.conn, "other")
    assert registry(other).bury(other.conn) == []
    assert statuses(stage) == {"worker": "draining", "other": "alive"}


def test_a_worker_that_leaves_without_leases_leaves_nothing(stage: Stage) -> None:
    worker = register(stage, "worker")
    registry(worker).deregister(worker.conn, "worker")
    assert statuses(stage) == {}


def test_an_entry_that_a_lease_names_stays_until_that_is_taken_back(stage: Stage) -> None:
    stage.insert("a", 1)
    worker, other = register(stage, "worker"), register(stage, "other")
    worker.must_claim()
    registry(worker).deregister(worker.conn, "worker")
    assert "worker" in statuses(stage)
    gone = disconnected(stage, worker)
    worker.close()
    wait_until(gone, "the session ends")
    assert registry(other).bury(other.conn) == ["worker"]
    stage.sql.execute(
        "UPDATE outbox_workers SET last_seen_at = clock_timestamp() - interval '2 days' WHERE id = 'worker'"
    )
    assert registry(other).bury(other.conn) == ["worker"]
    assert "worker" in statuses(stage), "its lease still names it"
    other.reap(["worker"])
    registry(other).bury(other.conn)
    assert statuses(stage) == {"other": "alive"}


def test_leases_of_workers_that_were_never_registered_are_free(stage: Stage) -> None:
    stage.insert("a", 1)
    stage.actor("stranger").must_claim()
    other = register(stage, "other")
    assert registry(other).bury(other.conn) == ["stranger"]


def test_a_claim_that_a_buried_worker_still_makes_is_free_too(stage: Stage) -> None:
    doomed, other = register(stage, "doomed"), register(stage, "other")
    stage.sql.execute("UPDATE outbox_workers SET last_seen_at = '2020-01-01' WHERE id = 'doomed'")
    registry(other).bury(other.conn)
    stage.insert("a", 1)
    doomed.must_claim()
    assert registry(other).bury(other.conn) == ["doomed"]


def test_workers_of_another_outbox_and_other_advisory_locks_keep_nobody_alive(stage: Stage) -> None:
    """Only the worker's own lock, in its own namespace and database, counts."""
    doomed, other = register(stage, "doomed"), register(stage, "other")
    gone = disconnected(stage, doomed)
    doomed.close()
    wait_until(gone, "the session ends")
    stage.sql.execute("SELECT pg_advisory_lock(%s, hashtext('doomed'))", [other.table.bucket_locks])
    stage.sql.execute("SELECT pg_advisory_lock(hashtextextended('doomed', 0))")
    registry(other).bury(other.conn)
    assert statuses(stage)["doomed"] == "dead"


@pytest.mark.parametrize("name", ["a", "b", "worker-17", "ünï", "x" * 150])
def test_any_name_is_seen_alive_whatever_the_sign_of_its_lock(stage: Stage, name: str) -> None:
    worker, other = register(stage, name), register(stage, "other")
    registry(other).bury(other.conn)
    assert statuses(stage)[name] == "alive"
    assert registry(worker).heartbeat(worker.conn, name)


def keeps_house(actor: Actor, seconds: float = 6.0) -> bool:
    return registry(actor).keep_house(actor.conn, actor.name, seconds)


def test_one_worker_keeps_house_for_as_long_as_it_renews(stage: Stage) -> None:
    first, second = register(stage, "z-first"), register(stage, "a-second")
    assert keeps_house(first)
    assert not keeps_house(second)
    assert keeps_house(first)
    assert not keeps_house(second), "however the names are ordered"


def test_a_housekeeper_that_does_not_renew_loses_its_post_to_the_first_who_asks(stage: Stage) -> None:
    frozen, other = register(stage, "frozen"), register(stage, "other")
    assert keeps_house(frozen)
    stage.sql.execute("UPDATE outbox_workers SET housekeeper_until = clock_timestamp() WHERE id = 'frozen'")
    assert keeps_house(other)
    assert not keeps_house(frozen)


def test_the_post_of_a_worker_that_died_or_left_is_free_at_once(stage: Stage) -> None:
    doomed, leaving, heir = (register(stage, name) for name in ("doomed", "leaving", "heir"))
    assert keeps_house(doomed)
    gone = disconnected(stage, doomed)
    doomed.close()
    wait_until(gone, "the session ends")
    assert not keeps_house(leaving)
    registry(heir).bury(heir.conn)
    assert keeps_house(leaving)
    registry(leaving).deregister(leaving.conn, "leaving")
    assert keeps_house(heir)


def test_a_worker_that_was_declared_dead_keeps_no_house(stage: Stage) -> None:
    worker = register(stage, "worker")
    assert keeps_house(worker)
    registry(worker).retire(worker.conn, "worker")
    assert not keeps_house(worker)


def test_of_two_who_took_the_post_at_the_same_moment_one_gives_way(stage: Stage) -> None:
    first, second = register(stage, "a"), register(stage, "b")
    stage.sql.execute("UPDATE outbox_workers SET housekeeper_until = clock_timestamp() + interval '1 minute'")
    assert not keeps_house(second)
    assert keeps_house(first)
    stage.sql.execute("UPDATE outbox_workers SET housekeeper_until = NULL WHERE id = 'b'")
    assert keeps_house(first)
    assert not keeps_house(second)


def test_renewing_the_post_does_not_wait_for_the_disk_and_changes_nothing_else(stage: Stage) -> None:
    worker = register(stage, "worker")
    assert keeps_house(worker)
    assert worker.conn.execute("SHOW synchronous_commit").fetchone() == ("on",)
    assert worker.conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
