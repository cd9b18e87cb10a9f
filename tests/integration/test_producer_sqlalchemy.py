"""Events written through SQLAlchemy's connections and sessions, synchronous and asynchronous."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from relay import Inbox, NewEvent, Outbox
from relay.errors import NotInTransaction
from relay.names import TableName
from relay.store.migrate import migrate

LATER = datetime(2126, 7, 1, tzinfo=UTC)
EVENT: dict[str, Any] = {
    "key": "order:9182",
    "payload": {"order_id": 9182, "note": "a:b %s :c \\:d"},
    "event_id": "evt-1",
    "headers": {"tenant": "é"},
    "destination": "orders",
    "available_at": LATER,
    "max_attempts": 9,
}
MANY = [NewEvent("Counted", key="k", payload={"n": n}, event_id=f"evt-{n}") for n in range(1500)]
outbox = Outbox()


def url_of(database: str) -> str:
    return database.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = create_engine(url_of(database))
    yield engine
    engine.dispose()


@pytest.fixture
async def async_engine(database: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url_of(database))
    yield engine
    await engine.dispose()


def committed(database: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as observer:
        return observer.execute(
            """SELECT event_type, partition_key, payload, idempotency_key, headers, destination, available_at,
                      max_attempts FROM outbox ORDER BY id"""
        ).fetchall()


def test_every_argument_of_emit_passes_through_a_connection(database: str, engine: Engine) -> None:
    with engine.begin() as conn:
        assert outbox.emit(conn, "OrderPaid", **EVENT, serialize=True) is True
        assert outbox.emit(conn, "OrderPaid", **EVENT) is False
    assert committed(database) == [("OrderPaid", *EVENT.values())]


def test_the_event_lives_and_dies_with_the_connections_transaction(database: str, engine: Engine) -> None:
    with engine.connect() as conn:
        outbox.emit(conn, "OrderPaid", **EVENT)
        assert committed(database) == []
        conn.rollback()
        assert committed(database) == []
        outbox.emit(conn, "OrderPaid", **EVENT)
        conn.commit()
    assert len(committed(database)) == 1


def test_emit_many_passes_through_a_connection(database: str, engine: Engine) -> None:
    with engine.begin() as conn:
        assert outbox.emit_many(conn, MANY, serialize=True) == 1500
        assert outbox.emit_many(conn, MANY[:3]) == 0
    assert [row[2]["n"] for row in committed(database)] == list(range(1500))


def test_a_session_writes_the_event_with_its_own_changes(database: str, engine: Engine) -> None:
    with Session(engine) as session:
        session.execute(text("CREATE TABLE orders (id int)"))
        outbox.emit(session, "OrderPaid", **EVENT)
        session.rollback()
        assert committed(database) == []
        session.execute(text("CREATE TABLE orders (id int)"))
        assert outbox.emit(session, "OrderPaid", **EVENT) is True
        with session.begin_nested() as savepoint:
            outbox.emit(session, "Undone", key="k", payload={})
            savepoint.rollback()
        session.commit()
    assert [row[0] for row in committed(database)] == ["OrderPaid"]


def test_a_scoped_session_stands_for_its_session(database: str, engine: Engine) -> None:
    session = scoped_session(sessionmaker(engine))
    assert outbox.emit(session, "OrderPaid", **EVENT) is True
    session.commit()
    session.remove()
    assert len(committed(database)) == 1


def refuses(conn: Connection | Session) -> None:
    with pytest.raises(NotInTransaction, match="isolation_level AUTOCOMMIT"):
        outbox.emit(conn, "OrderPaid", **EVENT)
    with pytest.raises(NotInTransaction):
        outbox.emit_many(conn, MANY)


def test_emit_refuses_autocommit_wherever_it_was_set(database: str, engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        refuses(conn)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as conn:
        refuses(conn)
    with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        refuses(session)
    of_the_engine = create_engine(url_of(database), isolation_level="AUTOCOMMIT")
    with of_the_engine.connect() as conn, conn.begin():
        refuses(conn)
    of_the_engine.dispose()
    assert committed(database) == []


def test_a_connection_that_was_autocommit_before_is_accepted(database: str, engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(text("SELECT 1"))
    with engine.begin() as conn:
        assert outbox.emit(conn, "OrderPaid", **EVENT)
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as conn, conn.begin():
        assert outbox.emit(conn, "OrderPaid", key="k", payload={})
    assert len(committed(database)) == 2


def test_the_databases_own_error_comes_through(engine: Engine) -> None:
    with engine.connect() as conn, pytest.raises(DBAPIError, match="no_such_table"):
        Outbox("no_such_table").emit(conn, "OrderPaid", **EVENT)


def test_a_name_with_colons_is_not_taken_for_a_parameter(empty_database: str) -> None:
    table = '"a:b :key ::c"'
    migrate(empty_database, TableName.parse(table))
    engine = create_engine(url_of(empty_database))
    with engine.begin() as conn:
        assert Outbox(table).emit(conn, "OrderPaid", **EVENT, serialize=True)
        assert Outbox(table).emit_many(conn, MANY[2:4]) == 2
    engine.dispose()


def test_an_engine_is_refused(engine: Engine) -> None:
    with pytest.raises(TypeError, match="Engine is not a connection whose transaction can be joined"):
        outbox.emit(engine, "OrderPaid", **EVENT)


async def test_every_argument_of_emit_passes_through_an_async_connection(
    database: str, async_engine: AsyncEngine
) -> None:
    async with async_engine.connect() as conn:
        await outbox.emit_async(conn, "OrderPaid", **EVENT)
        await conn.rollback()
        assert committed(database) == []
        assert await outbox.emit_async(conn, "OrderPaid", **EVENT, serialize=True) is True
        assert await outbox.emit_async(conn, "OrderPaid", **EVENT) is False
        await conn.commit()
    assert committed(database) == [("OrderPaid", *EVENT.values())]


async def test_an_async_session_writes_the_event_with_its_own_changes(
    database: str, async_engine: AsyncEngine
) -> None:
    async with AsyncSession(async_engine) as session, session.begin():
        await session.execute(text("CREATE TABLE orders (id int)"))
        assert await outbox.emit_many_async(session, MANY, serialize=True) == 1500
    assert [row[2]["n"] for row in committed(database)] == list(range(1500))


async def test_an_async_scoped_session_stands_for_its_session(
    database: str, async_engine: AsyncEngine
) -> None:
    session = async_scoped_session(async_sessionmaker(async_engine), scopefunc=lambda: None)
    assert await outbox.emit_async(session, "OrderPaid", **EVENT) is True
    await session.commit()
    await session.remove()
    assert len(committed(database)) == 1


async def test_emit_async_refuses_autocommit(database: str, async_engine: AsyncEngine) -> None:
    autocommit = async_engine.execution_options(isolation_level="AUTOCOMMIT")
    async with autocommit.connect() as conn:
        with pytest.raises(NotInTransaction, match="isolation_level AUTOCOMMIT"):
            await outbox.emit_async(conn, "OrderPaid", **EVENT)
    async with AsyncSession(autocommit) as session:
        with pytest.raises(NotInTransaction):
            await outbox.emit_many_async(session, MANY)
    assert committed(database) == []


def test_an_inbox_accepts_once_through_a_session(engine: Engine) -> None:
    inbox = Inbox("billing")
    with Session(engine) as session:
        assert inbox.accept(session, "evt-1") is True
        session.rollback()
        assert inbox.accept(session, "evt-1") is True
        session.commit()
        assert inbox.accept(session, "evt-1") is False


async def test_an_inbox_accepts_once_through_an_async_session(async_engine: AsyncEngine) -> None:
    inbox = Inbox("billing")
    async with AsyncSession(async_engine) as session:
        assert await inbox.accept_async(session, "evt-1") is True
        await session.commit()
        assert await inbox.accept_async(session, "evt-1") is False
