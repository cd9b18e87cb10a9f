"""Connections to the outbox's database, and the outbox as it was found there."""

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import Connection

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


def connect(url: str, purpose: str = "relay", **session: str) -> Connection[Any]:
    """A connection in autocommit mode with the session settings that the store's plans rely on."""
    try:
        conn = psycopg.connect(url, autocommit=True, application_name=f"outbox-relay {purpose}")
    except psycopg.OperationalError as error:
        raise RelayError(f"cannot connect to the database: {_first_line(error)}") from error
    settings = _SESSION | session
    conn.execute(
        "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) s(name, value)",
        [list(settings), list(settings.values())],
    )
    return conn


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
