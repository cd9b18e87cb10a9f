"""Looks at an outbox without getting in its way: counts for status, lists of events.

Guarantees: reads only; every query has a time limit and says so when it hits it. Completed rows are counted
in small tables only, and estimated otherwise.
"""

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias

from psycopg import Connection
from psycopg.rows import dict_row

from relay.pause import Subject
from relay.reading import Count
from relay.store.conditions import PENDING, PROCESSING, STATUS, Status, conditions
from relay.store.connection import Table
from relay.store.counting import Counting
from relay.store.limits import limited
from relay.store.sqltext import fill, regclass

Row: TypeAlias = dict[str, Any]

ROWS_FOR_STATUS = 100_000
STATUS_SECONDS = 15.0
LIST_SECONDS = 30.0
BLOCKED_KEYS = 100
SMALL_TABLE_BYTES = 32 * 1024 * 1024

SIZE = "SELECT pg_relation_size({outbox_name}) AS bytes"
COMPLETED = "SELECT count(*) AS number FROM {outbox} WHERE status = 'completed'"


def completed(conn: Connection[Any], table: Table, guess: Count) -> Count:
    """The exact number where the table is small, else the guess."""
    size = _one(conn, fill(SIZE, table.name, outbox_name=regclass(table.name, "outbox")), {})["bytes"]
    if size > SMALL_TABLE_BYTES:
        return guess
    return Count(_one(conn, fill(COMPLETED, table.name), {})["number"])


WORKERS = """
SELECT w.id, w.status, w.started_at, w.last_seen_at, w.metadata,
       extract(epoch FROM clock_timestamp() - w.last_seen_at)::float8 AS silent_seconds,
       coalesce(sum(l.size), 0)::bigint AS processing
FROM {workers} w LEFT JOIN {leases} l ON l.claimed_by = w.id
GROUP BY w.id ORDER BY w.status, w.started_at
"""
# A failed event holds its key; the oldest of each key is the one to deal with.
BLOCKED = """
SELECT * FROM (
  SELECT DISTINCT ON (o.partition_key) o.partition_key AS key, o.idempotency_key AS event_id, o.event_type,
         o.parked_at, o.attempts, o.last_error
  FROM (SELECT * FROM {outbox} p WHERE p.parked_at IS NOT NULL AND p.completed_at IS NULL LIMIT %(rows)s) o
  ORDER BY o.partition_key, o.id) b
ORDER BY b.parked_at LIMIT %(keys)s
"""
PAUSES = """
SELECT scope, value, origin, reason, paused_by, paused_at, until, failures,
       extract(epoch FROM clock_timestamp() - paused_at)::float8 AS held_seconds
FROM {pauses} WHERE origin = 'breaker' OR until IS NULL OR until > now() ORDER BY paused_at
"""


def status(conn: Connection[Any], table: Table) -> Row:
    """All that `relay status` shows."""
    with limited(
        conn, STATUS_SECONDS, "looking at the outbox", "try again when it is less busy", seqscan=False
    ):
        found = Counting(table, ROWS_FOR_STATUS).count(conn)
        counts = asdict(replace(found, completed=completed(conn, table, found.completed)))
        workers = _all(conn, fill(WORKERS, table.name), {})
        blocked = _all(conn, fill(BLOCKED, table.name), {"rows": ROWS_FOR_STATUS, "keys": BLOCKED_KEYS})
        pauses = [
            pause | {"value": Subject(pause["scope"], pause["value"]).label}
            for pause in _all(conn, fill(PAUSES, table.name), {})
        ]
    oldest = counts.pop("oldest_pending_seconds")
    stuck = counts.pop("stuck")
    for name in ("workers", "retrying", "blocked_keys"):
        counts.pop(name)
    return {
        "table": str(table.name),
        "counts": counts,
        "oldest_pending_seconds": oldest,
        "stuck": stuck,
        "workers": workers,
        "blocked_keys": blocked,
        "pauses": [pause for pause in pauses if pause["origin"] == "operator"],
        "breakers": [pause for pause in pauses if pause["origin"] == "breaker"],
    }


@dataclass(frozen=True)
class Filters:
    """Which events to list; None: all."""

    status: Status | None = None
    key: str | None = None
    event_type: str | None = None
    error: str | None = None  # a part of last_error, in any case
    since: datetime | None = None  # created at or after
    before: int | None = None  # position: go on behind a list's last event
    limit: int = 50


# The conditions on completed_at and parked_at follow from the status: they let an index find the rows.
_WHERE: dict[str, str] = {
    "pending": PENDING,
    "processing": PROCESSING,
    "failed": "o.status = 'failed' AND o.parked_at IS NOT NULL",
    "dead_letter": "o.status = 'dead_letter' AND o.parked_at IS NOT NULL",
    "completed": "o.status = 'completed' AND o.completed_at >= coalesce(%(since)s::timestamptz, '-infinity')",
}
EVENTS = """
SELECT o.id AS position, o.idempotency_key AS event_id, o.partition_key AS key, o.event_type,
       {STATUS} AS status, o.attempts, o.max_attempts, o.created_at,
       nullif(o.available_at, 'infinity') AS available_at, o.completed_at, o.parked_at, o.last_error,
       o.receipt
FROM {outbox} o WHERE {WHERE} ORDER BY o.id DESC LIMIT %(limit)s
"""


def events(conn: Connection[Any], table: Table, filters: Filters) -> list[Row]:
    """Events in the outbox that match, newest first."""
    where = [_WHERE[filters.status]] if filters.status else []
    where += conditions(
        key=filters.key, event_type=filters.event_type, error=filters.error, since=filters.since
    )
    if filters.before is not None:
        where.append("o.id < %(before)s")
    statement = fill(EVENTS, table.name, STATUS=STATUS, WHERE=" AND ".join(where) or "true")
    with limited(
        conn, LIST_SECONDS, "listing events", "narrow it by --status, --key or --since", seqscan=True
    ):
        return _all(conn, statement, asdict(filters))


_COLUMNS = """
id AS position, idempotency_key AS event_id, partition_key AS key, partition_bucket AS bucket, event_type,
destination, {STATUS} AS status, attempts, max_attempts, losses, created_at,
nullif(available_at, 'infinity') AS available_at, claimed_by, claimed_at,
lease_expires_at, lease_generation, completed_at, parked_at, redriven_at, last_error, receipt, headers,
payload::text
"""
SHOW = """
SELECT {COLUMNS}, false AS archived FROM {outbox} o WHERE idempotency_key = %(event_id)s
UNION ALL
(SELECT {ARCHIVED}, true FROM {archive} WHERE idempotency_key = %(event_id)s ORDER BY completed_at DESC)
LIMIT 1
"""


def show(conn: Connection[Any], table: Table, event_id: str) -> Row | None:
    """One event in full, from the outbox or else from the archive; the payload is text as stored."""
    with limited(
        conn, LIST_SECONDS, "looking for the event", "try again when it is less busy", seqscan=False
    ):
        columns = {"ARCHIVED": _COLUMNS.replace("{STATUS}", "status::text"), "COLUMNS": _COLUMNS}
        rows = _all(conn, fill(SHOW, table.name, **columns, STATUS=STATUS), {"event_id": event_id})
    return rows[0] if rows else None


def _all(conn: Connection[Any], statement: str, parameters: Row) -> list[Row]:
    return conn.cursor(row_factory=dict_row).execute(statement, parameters).fetchall()


def _one(conn: Connection[Any], statement: str, parameters: Row) -> Row:
    (row,) = _all(conn, statement, parameters)
    return row
