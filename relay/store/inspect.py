"""Looks at an outbox without getting in its way: counts for status, lists of events.

Guarantees: reads only; every query has a time limit and says so when it hits it. Completed rows are counted
in small tables only, and estimated otherwise. A list looks backwards from the newest event and reads no more
of the table than it must to be full.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice
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
HIGHEST = 2**63 - 1
FIRST_WINDOW = 1000
GROWTH = 16
LIVE_WINDOWS = 3

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
_WHERE: dict[Status, str] = {
    "pending": PENDING,
    "processing": PROCESSING,
    "failed": "o.status = 'failed' AND o.parked_at IS NOT NULL",
    "dead_letter": "o.status = 'dead_letter' AND o.parked_at IS NOT NULL",
    "completed": "o.status = 'completed' AND o.completed_at >= coalesce(%(since)s::timestamptz, '-infinity')",
}
_LISTED = """
o.id AS position, o.idempotency_key AS event_id, o.partition_key AS key, o.event_type,
{STATUS} AS status, o.attempts, o.max_attempts, o.created_at,
nullif(o.available_at, 'infinity') AS available_at, o.completed_at, o.parked_at, o.last_error, o.receipt
"""
# Between two positions. The BRIN index leads to them; where the status has an index of its own, that.
EVENTS = """
SELECT {LISTED} FROM {outbox} o
WHERE o.id > %(low)s AND o.id <= %(high)s AND {WHERE} ORDER BY o.id DESC LIMIT %(limit)s
"""
# What is not completed, by the two indexes that hold it: each wants to be told which side it is of.
LIVE_EVENTS = """
SELECT * FROM (
  SELECT {LISTED} FROM {outbox} o WHERE o.id <= %(high)s AND {WHERE} AND o.available_at <= o.created_at
  UNION ALL
  SELECT {LISTED} FROM {outbox} o WHERE o.id <= %(high)s AND {WHERE} AND o.available_at > o.created_at) e
ORDER BY e.position DESC LIMIT %(limit)s
"""


def events(conn: Connection[Any], table: Table, filters: Filters) -> list[Row]:
    """Events in the outbox that match, newest first."""
    where = [_WHERE[filters.status]] if filters.status else []
    where += conditions(
        key=filters.key, event_type=filters.event_type, error=filters.error, since=filters.since
    )
    words = {"LISTED": _LISTED, "STATUS": STATUS, "WHERE": " AND ".join(where) or "true"}
    between = fill(EVENTS, table.name, **words)
    high = HIGHEST if filters.before is None else min(filters.before - 1, HIGHEST)
    values = asdict(filters) | {"low": 0, "high": high}
    if filters.status in ("failed", "dead_letter"):
        return _listed(conn, between, values)
    # Many live events are found soon at the end of the table, and few of them by their indexes.
    windows = _windows(_newest(conn, table), high, filters.limit)
    live = filters.status in ("pending", "processing")
    if live:
        windows = islice(windows, 0 if filters.key is not None else LIVE_WINDOWS)
    found: list[Row] = []
    for low, top in windows:
        values |= {"low": low, "high": top, "limit": filters.limit - len(found)}
        found += _listed(conn, between, values, bitmap=True)
        high = low
        if len(found) == filters.limit:
            return found
    if live and high > 0:
        values |= {"high": high, "limit": filters.limit - len(found)}
        found += _listed(conn, fill(LIVE_EVENTS, table.name, **words), values)
    return found


def _windows(newest: int, high: int, first: int) -> Iterator[tuple[int, int]]:
    """Positions from `high` down to 0, in windows that grow: (above, up to)."""
    size = max(first, FIRST_WINDOW)
    while high > 0:
        # Up to the very end at first: what is taken for the newest may not be.
        low = max(min(high, newest) - size, 0)
        yield low, high
        high, size = low, size * GROWTH


# A role that may not see the sequence takes what the last pages hold: about there is near enough.
NEWEST = """
SELECT coalesce(
  CASE WHEN has_sequence_privilege(s.name, 'SELECT') THEN pg_sequence_last_value(s.name::regclass) END,
  (SELECT max(o.id) FROM {outbox} o WHERE o.ctid >= format('(%%s,0)', greatest(s.pages - 64, 0))::tid),
  0) AS id
FROM (SELECT pg_get_serial_sequence({outbox_name}::text, 'id') AS name,
        pg_relation_size({outbox_name}) / current_setting('block_size')::int AS pages) s
"""


def _newest(conn: Connection[Any], table: Table) -> int:
    """About the position of the newest event."""
    statement = fill(NEWEST, table.name, outbox_name=regclass(table.name, "outbox"))
    return int(_listed(conn, statement, {})[0]["id"])


def _listed(conn: Connection[Any], statement: str, values: Row, *, bitmap: bool = False) -> list[Row]:
    remedy = "narrow it by --status, --key or --since"
    with limited(conn, LIST_SECONDS, "listing events", remedy, bitmap=bitmap):
        return _all(conn, statement, values)


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
