"""A consumer applies each event once, however often and from how many places it arrives."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from relay import Inbox
from relay.errors import InvalidEvent, NotInTransaction
from relay.names import TableName
from relay.store.migrate import migrate
from tests.integration.sessions import PATIENCE, wait_until_blocked

Connection = psycopg.Connection[Any]
inbox = Inbox("billing")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def a(database: str) -> Iterator[Connection]:
    with psycopg.connect(database) as conn:
        yield conn


@pytest.fixture
def b(database: str) -> Iterator[Connection]:
    with psycopg.connect(database) as conn:
        yield conn


def test_an_event_is_accepted_once_per_consumer(a: Connection, b: Connection) -> None:
    assert inbox.accept(a, "evt-1") is True
    assert inbox.accept(a, "evt-1") is False
    a.commit()
    assert inbox.accept(b, "evt-1") is False
    assert Inbox("shipping").accept(b, "evt-1") is True
    assert inbox.accept(b, "evt-2") is True


def test_a_handler_that_rolls_back_leaves_the_event_unseen(a: Connection) -> None:
    assert inbox.accept(a, "evt-1") is True
    a.rollback()
    assert inbox.accept(a, "evt-1") is True


@pytest.mark.parametrize("end, accepted", [("COMMIT", False), ("ROLLBACK", True)])
def test_a_duplicate_waits_for_the_first_to_end(
    any_postgres: int,
    database: str,
    a: Connection,
    b: Connection,
    pool: ThreadPoolExecutor,
    end: str,
    accepted: bool,
) -> None:
    assert inbox.accept(a, "evt-1") is True
    duplicate = pool.submit(inbox.accept, b, "evt-1")
    wait_until_blocked(database, b, a)
    assert not duplicate.done()
    a.execute(end)
    assert duplicate.result(PATIENCE) is accepted


def test_of_many_concurrent_deliveries_exactly_one_applies_each_event(
    database: str, a: Connection, pool: ThreadPoolExecutor
) -> None:
    a.execute("CREATE TABLE credits (event_id text)")
    a.commit()
    start = threading.Barrier(8)

    def consume(_: int) -> None:
        with psycopg.connect(database) as conn:
            start.wait(PATIENCE)
            for n in range(25):
                with conn.transaction():
                    if inbox.accept(conn, f"evt-{n}"):
                        conn.execute("INSERT INTO credits VALUES (%s)", [f"evt-{n}"])

    list(pool.map(consume, range(8)))
    applied = a.execute("SELECT event_id FROM credits").fetchall()
    assert sorted(applied) == sorted((f"evt-{n}",) for n in range(25))


def test_accept_refuses_autocommit_outside_a_transaction(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        with pytest.raises(NotInTransaction, match=r"with conn\.transaction\(\):"):
            inbox.accept(conn, "evt-1")
        with conn.transaction():
            assert inbox.accept(conn.cursor(), "evt-1") is True


async def test_the_async_face_accepts_once(database: str) -> None:
    async with await psycopg.AsyncConnection.connect(database) as conn:
        assert await inbox.accept_async(conn, "evt-1") is True
        assert await inbox.accept_async(conn.cursor(), "evt-1") is False
        await conn.rollback()
        assert await inbox.accept_async(conn, "evt-1") is True


def test_the_inbox_of_another_schema_is_another_inbox(empty_database: str) -> None:
    with psycopg.connect(empty_database) as conn:
        conn.execute("CREATE SCHEMA sales")
        conn.commit()
        migrate(empty_database, TableName("sales", "outbox"))
        migrate(empty_database, TableName("public", "outbox"))
        assert Inbox("billing", table="sales.inbox_dedupe").accept(conn, "evt-1") is True
        assert inbox.accept(conn, "evt-1") is True


def test_names_that_the_table_cannot_hold_are_refused_before_the_database_sees_them(a: Connection) -> None:
    for wrong in ("", "x" * 256, "a\0", "\ud800", 7):
        with pytest.raises(InvalidEvent, match=r"^consumer "):
            Inbox(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidEvent, match=r"^event_id "):
            inbox.accept(a, wrong)  # type: ignore[arg-type]
    assert a.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert Inbox("x" * 255).accept(a, "y" * 255) is True
