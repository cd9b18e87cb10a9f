"""Runs a statement in the transaction of whoever calls: psycopg, SQLAlchemy or Django.

Guarantees: nothing here commits or rolls back, and where a statement would be committed by itself it is
refused with NotInTransaction before it is sent. Errors of the database come through unchanged.

A connection is known by the names of its classes: no library is imported that the caller does not use.
"""

import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from relay.errors import NotInTransaction

Parameters: TypeAlias = Mapping[str, Any]


class Statement:
    """A statement with %(named)s parameters."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def clause(self) -> Any:
        """The same for SQLAlchemy, in its own notation: the driver below it may have any other."""
        text = re.sub(r"%\((\w+)\)s", r":\1", self.text.replace(":", r"\:"))
        return sys.modules["sqlalchemy"].text(text)


Execute: TypeAlias = Callable[[Statement, Parameters], int]  # returns how many rows were written
ExecuteAsync: TypeAlias = Callable[[Statement, Parameters], Awaitable[int]]


def executor(conn: Any) -> Execute:
    """What runs statements in the transaction of `conn`."""
    execute: Execute = _adapter(conn.__class__, asynchronous=False)(conn)
    return execute


def async_executor(conn: Any) -> ExecuteAsync:
    execute: ExecuteAsync = _adapter(conn.__class__, asynchronous=True)(conn)
    return execute


def _psycopg(conn: "psycopg.Connection[Any]") -> Execute:
    if _state_unread(conn):
        with conn.pipeline() as pipeline:
            pipeline.sync()
    _refuse_autocommit(conn, "with conn.transaction():")
    # Not conn.cursor(): the caller's cursor factory may want another notation for parameters.
    cursor = psycopg.Cursor(conn)

    def execute(statement: Statement, parameters: Parameters) -> int:
        cursor.execute(statement.text, parameters)
        if cursor.rowcount < 0:  # inside a pipeline the answer is still to come
            with conn.pipeline() as pipeline:
                pipeline.sync()
        return cursor.rowcount

    return execute


def _psycopg_async(conn: "psycopg.AsyncConnection[Any]") -> ExecuteAsync:
    remedy = "async with conn.transaction():"
    _refuse_autocommit(conn, remedy)
    cursor = psycopg.AsyncCursor(conn)

    async def execute(statement: Statement, parameters: Parameters) -> int:
        if _state_unread(conn):
            async with conn.pipeline() as pipeline:
                await pipeline.sync()
            _refuse_autocommit(conn, remedy)
        await cursor.execute(statement.text, parameters)
        if cursor.rowcount < 0:
            async with conn.pipeline() as pipeline:
                await pipeline.sync()
        return cursor.rowcount

    return execute


def _state_unread(conn: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> bool:
    """Whether only the answers that a pipeline still awaits tell if there is a transaction.

    What was sent before may be a BEGIN, or a statement that the next synchronization commits.
    """
    pgconn = conn.pgconn
    return (
        conn.autocommit
        and pgconn.pipeline_status != PipelineStatus.OFF
        and pgconn.transaction_status == TransactionStatus.ACTIVE
    )


def _refuse_autocommit(conn: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]", remedy: str) -> None:
    if conn.autocommit and conn.pgconn.transaction_status == TransactionStatus.IDLE:
        raise NotInTransaction(
            "this psycopg connection is in autocommit mode and outside a transaction, so the row would be "
            f"committed by itself: write it inside '{remedy}', together with the change it belongs to"
        )


def _sqlalchemy(conn: Any) -> Execute:
    if getattr(conn.connection.dbapi_connection, "autocommit", False):
        raise NotInTransaction(
            "this SQLAlchemy connection has isolation_level AUTOCOMMIT, so the row would be committed by "
            "itself: write it on a connection with another one, together with the change it belongs to"
        )

    def execute(statement: Statement, parameters: Parameters) -> int:
        with conn.execute(statement.clause, parameters) as result:
            rows: int = result.rowcount
        return rows

    return execute


def _sqlalchemy_async(conn: Any) -> ExecuteAsync:
    async def execute(statement: Statement, parameters: Parameters) -> int:
        rows: int = await conn.run_sync(lambda inner: executor(inner)(statement, parameters))
        return rows

    return execute


def _django(conn: Any) -> Execute:
    if not conn.in_atomic_block and conn.get_autocommit():
        raise NotInTransaction(
            "this Django connection is outside atomic(), so the row would be committed by itself: write it "
            "inside 'with transaction.atomic():', together with the change it belongs to"
        )

    def execute(statement: Statement, parameters: Parameters) -> int:
        with conn.cursor() as cursor:
            cursor.execute(statement.text, parameters)
            rows: int = cursor.rowcount
        return rows

    return execute


_SYNCHRONOUS: dict[tuple[str, str], Callable[[Any], Execute]] = {
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "Cursor"): lambda cursor: _psycopg(cursor.connection),
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "Session"): lambda session: _sqlalchemy(session.connection()),
    ("sqlalchemy", "scoped_session"): lambda session: _sqlalchemy(session.connection()),
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "ConnectionProxy"): _django,
}
_ASYNCHRONOUS: dict[tuple[str, str], Callable[[Any], ExecuteAsync]] = {
    ("psycopg", "AsyncConnection"): _psycopg_async,
    ("psycopg", "AsyncCursor"): lambda cursor: _psycopg_async(cursor.connection),
    ("sqlalchemy", "AsyncConnection"): _sqlalchemy_async,
    ("sqlalchemy", "AsyncSession"): _sqlalchemy_async,
    ("sqlalchemy", "async_scoped_session"): lambda session: _sqlalchemy_async(session()),
}


@lru_cache(maxsize=128)
def _adapter(kind: type, *, asynchronous: bool) -> Callable[[Any], Any]:
    names = [(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__]
    wanted, others = (_ASYNCHRONOUS, _SYNCHRONOUS) if asynchronous else (_SYNCHRONOUS, _ASYNCHRONOUS)
    for name in names:
        if name in wanted:
            return wanted[name]
    given = f"{kind.__module__}.{kind.__qualname__}"
    if any(name in others for name in names):
        raise TypeError(
            f"{given} is synchronous: call the method without _async (from async code, in a thread)"
            if asynchronous
            else f"{given} is asynchronous: await the method whose name ends in _async"
        )
    raise TypeError(
        f"{given} is not a connection whose transaction can be joined: pass a connection or cursor of "
        "psycopg, a Connection or Session of SQLAlchemy, or a connection of Django"
    )
