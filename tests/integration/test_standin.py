"""While nobody keeps house, a process that does not relay shows what waits."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from relay.metrics import Metrics
from relay.settings import Settings
from relay.store.connection import connect, resolve
from relay.store.workers import Registry
from relay.web.standin import StandIn
from tests.integration.store_kit import Actor, insert, wait_until


@pytest.fixture
def standin(database: str) -> StandIn:
    return StandIn(Settings(database_url=SecretStr(database)))


@pytest.fixture
def worker(database: str) -> Iterator[Actor]:
    actor = Actor(database, "worker-1")
    Registry(actor.table, 30.0).register(actor.conn, actor.name, {})
    yield actor
    actor.close()


def shown(standin: StandIn, database: str) -> dict[str, float]:
    """What /metrics says after one look."""
    with connect(database, "test") as conn:
        standin.look(conn, resolve(conn, standin._desk._settings.table_name))
    return exposed(standin)


def exposed(standin: StandIn) -> dict[str, float]:
    registry = standin.metrics.registry
    return {sample.name: sample.value for family in registry.collect() for sample in family.samples}


def pending(database: str, number: int) -> None:
    with psycopg.connect(database) as conn:
        insert(conn, "order:1", number)


def heartbeats(database: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as conn:
        return conn.execute("SELECT status FROM outbox_workers").fetchall()


def test_work_without_a_worker_is_shown(standin: StandIn, database: str) -> None:
    pending(database, 3)
    found = shown(standin, database)
    assert found["relay_pending_events"] == 3
    assert found["relay_workers"] == 0
    assert found["relay_housekeeper"] == 1


def test_a_worker_that_keeps_house_is_not_doubled(standin: StandIn, database: str, worker: Actor) -> None:
    pending(database, 3)
    assert shown(standin, database)["relay_pending_events"] == 3
    assert Registry(worker.table, 30.0).keep_house(worker.conn, worker.name, 60.0)
    assert shown(standin, database) == {"relay_housekeeper": 0}


def test_a_worker_that_was_killed_is_not_counted_although_nobody_buried_it(
    standin: StandIn, database: str, worker: Actor
) -> None:
    assert shown(standin, database)["relay_workers"] == 1
    worker.close()
    wait_until(lambda: shown(standin, database)["relay_workers"] == 0, "it to be missed")
    assert heartbeats(database) == [("alive",)]


def test_a_worker_behind_a_pooler_is_counted_by_its_heartbeat(
    standin: StandIn, database: str, worker: Actor
) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("UPDATE outbox_workers SET metadata = jsonb_build_object('has_session', false)")
    worker.close()
    assert shown(standin, database)["relay_workers"] == 1
    with psycopg.connect(database) as conn:
        conn.execute("UPDATE outbox_workers SET last_seen_at = now() - interval '1 minute'")
    assert shown(standin, database)["relay_workers"] == 0


def test_a_process_that_does_not_relay_has_no_worker_s_series(standin: StandIn, database: str) -> None:
    of_workers = {
        sample for series in Metrics().series if series.source == "worker" for sample in series.samples()
    }
    assert shown(standin, database).keys() & of_workers == {"relay_housekeeper"}


def test_it_looks_by_itself_until_it_is_stopped(standin: StandIn, database: str) -> None:
    pending(database, 2)
    standin.start()
    wait_until(lambda: exposed(standin).get("relay_pending_events") == 2, "a look")
    standin.stop()
    assert exposed(standin) == {"relay_housekeeper": 0}


def test_a_database_that_is_away_is_survived() -> None:
    standin = StandIn(Settings(database_url=SecretStr("postgresql://nobody@127.0.0.1:1/nowhere")))
    standin.start()
    standin.stop()
    assert exposed(standin) == {"relay_housekeeper": 0}
