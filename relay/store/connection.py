"""Connections to the outbox's database, and the outbox as it was found there.

Behind a pooler in transaction mode a session is not ours: settings, locks and prepared statements of one
transaction are somebody else's in the next. Such a connection is recognised, its settings are made anew in
each transaction, and nothing is prepared. A pooler may also lead to another server from one transaction to
the next: where a standby has taken over, the next transaction fails with RelayError.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic
from typing import Any

import psycopg
from psycopg import Connection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from relay.errors import RelayError, SchemaError
from relay.names import TableName

# Plans: the statements here are written for their indexes and must not flip to a sequential scan or
# to a plan that was cached while the table was empty. idle_in_transaction: a claim that hangs
# between its statements must not hold its locks.
_SESSION = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",  # beats the index that has the order while the table is small
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    # A database may default to stricter levels; under them a lost lease would be an error of the server.
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "10s",
    "TimeZone": "UTC",
}
# A server that vanishes without a word must not keep a relay from its successor; a URL may say otherwise.
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
# Grows whenever a standby takes over or a backup is restored to some point in time.
_TIMELINE = """CASE WHEN NOT pg_is_in_recovery()
  THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END"""


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
    """A connection that knows its settings, its server, and whether a pooler stands in between."""

    settings: dict[str, str]
    pooled: bool = False
    timeline: int | None = None  # of a primary that tells it


def connect(
    url: str, purpose: str = "relay", *, beside: StoreConnection | None = None, **session: str
) -> StoreConnection:
    """A connection in autocommit mode with the session settings that the store's plans rely on.

    Of several hosts in the URL it leads to the one that another connection stands `beside`. Its commits last
    unless `session` says otherwise: generations must not come again after a crash of the server, nor may an
    event go out whose commit the server forgets.
    """
    conn = _open(url, purpose, _place(beside) if beside else {})
    with _closed_on_failure(conn):
        conn.settings = _SESSION | _lasting(conn) | session
        if not conn.pooled:
            _configure(conn, transaction=False)
    return conn


def connect_for_handlers(url: str, purpose: str) -> StoreConnection:
    """A connection with the server's own settings, for statements that are not ours.

    But one: a commit that the server could still forget must not be told to a broker.
    """
    conn = _open(url, purpose, {})
    conn.timeline = None  # whichever server it leads to will do
    with _closed_on_failure(conn):
        conn.settings = _lasting(conn)
        if conn.settings and not conn.pooled:
            _configure(conn, transaction=False)
    return conn


def _lasting(conn: Connection[Any]) -> dict[str, str]:
    """What makes commits wait for the disk where a server, database or role defaults to not waiting."""
    row = conn.execute("SELECT current_setting('synchronous_commit')").fetchone()
    return {"synchronous_commit": "on"} if row == ("off",) else {}


def _open(url: str, purpose: str, place: dict[str, str | int]) -> StoreConnection:
    try:
        conn = StoreConnection.connect(
            make_conninfo(url, **_patience(url), **place),
            autocommit=True,
            application_name=f"outbox-relay {purpose}",
        )
    except psycopg.OperationalError as error:
        said = _first_line(error)
        hint = ": check sslrootcert in database_url" if "certificate verify failed" in said else ""
        raise RelayError(f"cannot connect to the database: {said}{hint}") from error
    conn.isolation_level = IsolationLevel.READ_COMMITTED
    with _closed_on_failure(conn):
        pid, conn.timeline = _identify(conn)
    # A pooler makes up the process id that it announces at the start.
    conn.pooled = pid != conn.info.backend_pid
    if conn.pooled:
        conn.prepare_threshold = None
    return conn


@contextmanager
def _closed_on_failure(conn: Connection[Any]) -> Iterator[None]:
    """Nobody else has the connection yet: where its first statements fail, nobody else would close it."""
    try:
        yield
    except BaseException:
        conn.close()
        raise


def trip_seconds(conn: Connection[Any]) -> float:
    """What a statement takes that does nothing."""
    times = [monotonic()]
    for _ in range(3):
        conn.execute("SELECT 1")
        times.append(monotonic())
    return min(after - before for before, after in pairwise(times))


def hang_up(conn: Connection[Any]) -> None:
    """From another thread than the connection's own: whatever waits there for an answer fails at once."""
    with suppress(psycopg.OperationalError, OSError), socket.socket(fileno=os.dup(conn.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


@contextmanager
def transaction(conn: Connection[Any]) -> Iterator[None]:
    """A transaction in which the connection's settings hold, whoever's session it runs in."""
    with conn.transaction():
        localise(conn)
        yield


@contextmanager
def own_transaction(conn: Connection[Any]) -> Iterator[None]:
    """The same at less cost, where no transaction can be open yet."""
    conn.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        localise(conn)
        yield
        conn.execute("COMMIT")
    except BaseException:
        if not conn.broken and conn.info.transaction_status != TransactionStatus.IDLE:
            conn.execute("ROLLBACK")
        raise


def settings_hold(conn: Connection[Any]) -> AbstractContextManager[None]:
    """Around a single statement: what transaction() gives, where it is needed for that."""
    pooled = isinstance(conn, StoreConnection) and conn.pooled
    return transaction(conn) if pooled else nullcontext()


def localise(conn: Connection[Any]) -> None:
    """At the start of a transaction: what a pooler has forgotten since the last one."""
    if not isinstance(conn, StoreConnection) or not conn.pooled or not conn.settings:
        return
    if _configure(conn, transaction=True) != conn.timeline:
        raise RelayError("another database server has taken over behind the pooler")


def _configure(conn: StoreConnection, *, transaction: bool) -> int | None:
    """Set what the connection needs; the timeline, if it was known before."""
    timeline = "NULL" if conn.timeline is None else _TIMELINE
    row = conn.execute(
        f"SELECT count(set_config(name, value, %s)), {timeline}"
        " FROM unnest(%s::text[], %s::text[]) s(name, value)",
        [transaction, list(conn.settings), list(conn.settings.values())],
    ).fetchone()
    return row[1] if row else None


def _patience(url: str) -> dict[str, int]:
    given = conninfo_to_dict(url).keys() | ({"connect_timeout"} if "PGCONNECT_TIMEOUT" in os.environ else ())
    return {name: value for name, value in _PATIENCE.items() if name not in given}


def _place(conn: StoreConnection) -> dict[str, str | int]:
    """Where the connection has led, which a name alone may not say."""
    place: dict[str, str | int] = {"host": conn.info.host, "port": conn.info.port}
    if conn.info.hostaddr:
        place["hostaddr"] = conn.info.hostaddr
    return place


def _identify(conn: StoreConnection) -> tuple[int, int | None]:
    """The process id of the session, and the timeline of a primary that lets us know."""
    try:
        row = conn.execute(f"SELECT pg_backend_pid(), {_TIMELINE}").fetchone()
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported):
        row = conn.execute("SELECT pg_backend_pid(), NULL").fetchone()
    assert row is not None
    return row[0], row[1]


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
