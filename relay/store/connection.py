"""Connections to the outbox's database, and the outbox as it was found there.

Behind a pooler in transaction mode a session is not ours: settings, locks and prepared statements of one
transaction are somebody else's in the next. Such a connection is recognised, its settings are made anew in
each transaction, and nothing is prepared.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import Connection, IsolationLevel

from relay.errors import RelayError, SchemaError
from relay.names import TableName

# Plans: the statements here are written for their indexes and must not flip to a sequential scan or
# to a plan that was cached while the table was empty. idle_in_transaction: a claim that hangs
# between its statements must not hold its locks.
_SESSION = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",  # beats the index that has the order while the table is small
    "plan_cache_mode": "force_custom_plan",
    "jit": "off",
    # A database may default to stricter levels; under them a lost lease would be an error of the server.
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "10s",
    "TimeZone": "UTC",
}


@dataclass(frozen=True)
class Table:
    """An outbox that exists: its full name and what is derived from its oid.

    Locks and the channel come from the oid, so that every way to write the table's name leads to
    the same ones, and no two outboxes share any.
    """

    name: TableName
    oid: int
    bucket_locks: int  # namespace of pg_advisory_xact_lock(int, int)
    worker_locks: int
    housekeeping_lock: int  # for pg_advisory_lock(bigint)

    @property
    def channel(self) -> str:
        return f"relay_wake_{self.oid}"


class StoreConnection(Connection[Any]):
    """A connection that knows its settings, and whether a pooler stands in between."""

    settings: dict[str, str]
    pooled: bool = False


def connect(url: str, purpose: str = "relay", **session: str) -> StoreConnection:
    """A connection in autocommit mode with the session settings that the store's plans rely on."""
    try:
        conn = StoreConnection.connect(url, autocommit=True, application_name=f"outbox-relay {purpose}")
    except psycopg.OperationalError as error:
        raise RelayError(f"cannot connect to the database: {_first_line(error)}") from error
    conn.settings = _SESSION | session
    conn.isolation_level = IsolationLevel.READ_COMMITTED
    row = conn.execute("SELECT pg_backend_pid()").fetchone()
    # A pooler makes up the process id that it announces at the start.
    conn.pooled = row is not None and row[0] != conn.info.backend_pid
    if conn.pooled:
        conn.prepare_threshold = None
    else:
        _configure(conn, transaction=False)
    return conn


@contextmanager
def transaction(conn: Connection[Any]) -> Iterator[None]:
    """A transaction in which the connection's settings hold, whoever's session it runs in."""
    with conn.transaction():
        localise(conn)
        yield


def localise(conn: Connection[Any]) -> None:
    """At the start of a transaction: what a pooler has forgotten since the last one."""
    if isinstance(conn, StoreConnection) and conn.pooled:
        _configure(conn, transaction=True)


def _configure(conn: StoreConnection, *, transaction: bool) -> None:
    conn.execute(
        "SELECT set_config(name, value, %s) FROM unnest(%s::text[], %s::text[]) s(name, value)",
        [transaction, list(conn.settings), list(conn.settings.values())],
    )


def resolve(conn: Connection[Any], name: TableName) -> Table:
    """Find the outbox `name` by the connection's search_path."""
    row = conn.execute(
        """
        SELECT c.oid::bigint, n.nspname,
               hashtext('relay buckets ' || c.oid), hashtext('relay workers ' || c.oid),
               hashtextextended('relay housekeeping ' || c.oid, 0)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = to_regclass(%s)
        """,
        [psycopg.sql.Identifier(*name.parts()).as_string(conn)],
    ).fetchone()
    if row is None:
        raise SchemaError(f"there is no table {name} in this database: run 'relay migrate' first")
    oid, schema, bucket_locks, worker_locks, housekeeping = row
    return Table(TableName(schema, name.table), oid, bucket_locks, worker_locks, housekeeping)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
