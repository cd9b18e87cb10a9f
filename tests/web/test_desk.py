"""The pages' connections: what breaks one, and what only fails on it."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from relay.settings import Settings
from relay.store.connection import StoreConnection, Table
from relay.web.desk import Desk, Unreachable


@pytest.fixture
def desk(database: str) -> Iterator[Desk]:
    desk = Desk(Settings(database_url=SecretStr(database)), seats=1)
    yield desk
    desk.close()


def backend(conn: StoreConnection, table: Table) -> int:
    return conn.info.backend_pid


def says(statement: str) -> Any:
    """Something to ask the database that ends as the statement does."""
    return lambda conn, _: conn.execute(statement)


def test_a_lock_that_somebody_holds_is_no_lost_connection(desk: Desk, database: str) -> None:
    first = desk.ask(backend)
    with psycopg.connect(database) as holder:
        holder.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            desk.ask(says("SELECT count(*) FROM outbox"))
    assert desk.ask(backend) == first, "the connection is as good as before"


@pytest.mark.parametrize("kind", ["deadlock_detected", "lock_not_available", "query_canceled", "disk_full"])
def test_what_the_server_refuses_leaves_the_connection_to_the_next(desk: Desk, kind: str) -> None:
    first = desk.ask(backend)
    with pytest.raises(psycopg.OperationalError, match="as told"):
        desk.ask(says(f"DO $$ BEGIN RAISE {kind} USING MESSAGE = 'as told'; END $$"))
    assert desk.ask(backend) == first


def test_a_connection_that_is_cut_is_told_and_made_anew(desk: Desk, database: str) -> None:
    first = desk.ask(backend)
    with pytest.raises(Unreachable, match="lost the connection to the database"):
        desk.ask(says("SELECT pg_terminate_backend(pg_backend_pid())"))
    second = desk.ask(backend)
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [second])
    with pytest.raises(Unreachable, match="lost the connection to the database"):
        desk.ask(says("SELECT 1"))
    assert desk.ask(backend) not in (first, second)
