"""Looks at an outbox without getting in its way: counts for gauges and status, lists of events.

Guarantees: reads only; every query has a time limit and says so when it hits it. Counts look at a bounded
number of rows; what lies beyond is an estimate from the server's statistics and marked as one. Completed
rows are counted in small tables only, and estimated otherwise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias

import psycopg
from psycopg import Connection
from psycopg.rows import dict_row

from relay.errors import RelayError
from relay.pause import Subject
from relay.reading import Reading
from relay.store.claim_sql import FRESH, LATER
from relay.store.conditions import Status, conditions
from relay.store.connection import Table, transaction
from relay.store.sqltext import fill, regclass

Row: TypeAlias = dict[str, Any]

ROWS_FOR_STATUS = 100_000
ROWS_FOR_GAUGES = 10_000
STATUS_SECONDS = 15.0
GAUGES_SECONDS = 1.0
LIST_SECONDS = 30.0
BLOCKED_KEYS = 100
SMALL_TABLE_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Count:
    """A number of events; not exact: at least this many were seen, and `value` is the best guess."""

    value: int
    exact: bool = True


@dataclass(frozen=True)
class Counts:
    pending: Count
    processing: Count
    failed: Count
    dead_letter: Count
    completed: Count
    archived: Count
    oldest_pending_seconds: float | None  # None: nothing is due
    stuck: int  # due for more than an hour, among the rows looked at
    workers: int


# Live rows by the lane indexes, parked ones by theirs, those under a lease by the leases. The oldest is the
# oldest among the rows that were looked at. A delayed event does not age before its time.
COUNT = """
WITH fresh AS MATERIALIZED (
  SELECT o.status, o.created_at AS since FROM {outbox} o WHERE {FRESH} LIMIT %(rows)s),
later AS MATERIALIZED (
  SELECT o.status, CASE WHEN o.attempts = 0 THEN o.available_at ELSE o.created_at END AS since
  FROM {outbox} o WHERE {LATER} LIMIT %(rows)s),
live AS (SELECT * FROM fresh UNION ALL SELECT * FROM later),
parked AS MATERIALIZED (
  SELECT o.status FROM {outbox} o WHERE o.parked_at IS NOT NULL LIMIT %(rows)s)
SELECT (SELECT count(*) FROM fresh) AS fresh, (SELECT count(*) FROM later) AS later,
       (SELECT count(*) FROM live WHERE status = 'pending') AS pending,
       (SELECT coalesce(sum(size), 0)::bigint FROM {leases}) AS processing,
       (SELECT count(*) FROM parked WHERE status = 'failed') AS failed,
       (SELECT count(*) FROM parked WHERE status = 'dead_letter') AS dead_letter,
       (SELECT extract(epoch FROM clock_timestamp() - min(since))::float8 FROM live
        WHERE status = 'pending' AND isfinite(since) AND since <= clock_timestamp()) AS oldest,
       (SELECT count(*) FROM live
        WHERE status = 'pending' AND since < clock_timestamp() - interval '1 hour') AS stuck,
       (SELECT count(*) FROM {workers} WHERE status <> 'dead') AS workers
"""
# Statistics as of the last VACUUM or ANALYZE, scaled to the table's size now as the planner does; 0: never.
ESTIMATE = """
SELECT (SELECT (greatest(reltuples, 0) / greatest(relpages, 1) * pg_relation_size(oid) / 8192)::bigint
        FROM pg_class WHERE oid = {outbox_name}) AS rows,
       (SELECT (greatest(reltuples, 0) / greatest(relpages, 1) * pg_relation_size(oid) / 8192)::bigint
        FROM pg_class WHERE oid = {archive_name}) AS archived,
       pg_relation_size({outbox_name}) AS bytes,
       (SELECT sum(greatest(reltuples, 0))::bigint FROM pg_class
        WHERE oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = {outbox_name})
          AND relname = ANY(%(lane_indexes)s)) AS live,
       (SELECT pg_relation_size({archive_name}) = 0) AS no_archive
"""
COMPLETED = "SELECT count(*) AS number FROM {outbox} WHERE status = 'completed'"


class Counting:
    """Counts the events of one outbox, looking at so many rows of each kind at most."""

    def __init__(self, table: Table, rows: int) -> None:
        self._completed_in = fill(COMPLETED, table.name)
        self._rows = rows
        names = {
            "outbox_name": regclass(table.name, "outbox"),
            "archive_name": regclass(table.name, "archive"),
        }
        self._count = fill(COUNT, table.name, FRESH=FRESH, LATER=LATER)
        self._estimate = fill(ESTIMATE, table.name, **names)
        self._lane_indexes = [f"{table.name.table}_fresh", f"{table.name.table}_later"]

    def count(self, conn: Connection[Any]) -> Counts:
        """Must run where sequential scans are off: these plans are meant for the indexes."""
        seen = _one(conn, self._count, {"rows": self._rows + 1})
        guess = _one(conn, self._estimate, {"lane_indexes": self._lane_indexes})
        whole = max(seen["fresh"], seen["later"]) <= self._rows
        parked = seen["failed"] + seen["dead_letter"]
        live = seen["fresh"] + seen["later"] if whole else max(guess["live"], seen["fresh"] + seen["later"])
        waiting = live - seen["processing"] - seen["failed"]
        return Counts(
            pending=Count(seen["pending"] if whole else max(seen["pending"], waiting), exact=whole),
            processing=Count(seen["processing"]),
            failed=Count(seen["failed"], parked <= self._rows),
            dead_letter=Count(seen["dead_letter"], parked <= self._rows),
            completed=Count(max(guess["rows"] - live - seen["dead_letter"], 0), exact=False),
            archived=Count(guess["archived"], exact=guess["no_archive"]),
            oldest_pending_seconds=seen["oldest"],
            stuck=seen["stuck"],
            workers=seen["workers"],
        )

    def completed(self, conn: Connection[Any], guess: Count) -> Count:
        """The exact number where the table is small, else the guess."""
        size = _one(conn, self._estimate, {"lane_indexes": []})["bytes"]
        if size > SMALL_TABLE_BYTES:
            return guess
        return Count(_one(conn, self._completed_in, {})["number"])


class Gauges:
    """Readings for the metrics, on a connection that has other things to do."""

    def __init__(self, table: Table) -> None:
        self._counting = Counting(table, ROWS_FOR_GAUGES)

    def read(self, conn: Connection[Any]) -> Reading:
        """What can be said within a second; an empty reading where that is not enough."""
        try:
            with _limited(conn, GAUGES_SECONDS, seqscan=False):
                counts = self._counting.count(conn)
        except psycopg.errors.QueryCanceled:
            return Reading()
        return Reading(
            pending=counts.pending.value,
            processing=counts.processing.value,
            dead_letter=counts.dead_letter.value,
            failed=counts.failed.value,
            oldest_pending_seconds=counts.oldest_pending_seconds or 0.0,
            workers=counts.workers,
        )


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
    with _patience(
        conn, STATUS_SECONDS, "looking at the outbox", "try again when it is less busy", seqscan=False
    ):
        counting = Counting(table, ROWS_FOR_STATUS)
        found = counting.count(conn)
        counts = asdict(replace(found, completed=counting.completed(conn, found.completed)))
        workers = _all(conn, fill(WORKERS, table.name), {})
        blocked = _all(conn, fill(BLOCKED, table.name), {"rows": ROWS_FOR_STATUS, "keys": BLOCKED_KEYS})
        pauses = [
            pause | {"value": Subject(pause["scope"], pause["value"]).label}
            for pause in _all(conn, fill(PAUSES, table.name), {})
        ]
    oldest = counts.pop("oldest_pending_seconds")
    stuck = counts.pop("stuck")
    counts.pop("workers")
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
    "pending": "o.status = 'pending' AND o.completed_at IS NULL",
    "processing": "o.status = 'processing' AND o.completed_at IS NULL",
    "failed": "o.status = 'failed' AND o.parked_at IS NOT NULL",
    "dead_letter": "o.status = 'dead_letter' AND o.parked_at IS NOT NULL",
    "completed": "o.status = 'completed' AND o.completed_at >= coalesce(%(since)s::timestamptz, '-infinity')",
}
EVENTS = """
SELECT o.id AS position, o.idempotency_key AS event_id, o.partition_key AS key, o.event_type, o.status::text,
       o.attempts, o.max_attempts, o.created_at, nullif(o.available_at, 'infinity') AS available_at,
       o.completed_at, o.parked_at, o.last_error, o.receipt
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
    statement = fill(EVENTS, table.name, WHERE=" AND ".join(where) or "true")
    with _patience(
        conn, LIST_SECONDS, "listing events", "narrow it by --status, --key or --since", seqscan=True
    ):
        return _all(conn, statement, asdict(filters))


_COLUMNS = """
id AS position, idempotency_key AS event_id, partition_key AS key, partition_bucket AS bucket, event_type,
destination, status::text, attempts, max_attempts, losses, created_at,
nullif(available_at, 'infinity') AS available_at, claimed_by, claimed_at,
lease_expires_at, lease_generation, completed_at, parked_at, last_error, receipt, headers, payload::text
"""
SHOW = """
SELECT {COLUMNS}, false AS archived FROM {outbox} WHERE idempotency_key = %(event_id)s
UNION ALL
(SELECT {COLUMNS}, true FROM {archive} WHERE idempotency_key = %(event_id)s ORDER BY completed_at DESC)
LIMIT 1
"""


def show(conn: Connection[Any], table: Table, event_id: str) -> Row | None:
    """One event in full, from the outbox or else from the archive; the payload is text as stored."""
    with _patience(
        conn, LIST_SECONDS, "looking for the event", "try again when it is less busy", seqscan=False
    ):
        rows = _all(conn, fill(SHOW, table.name, COLUMNS=_COLUMNS), {"event_id": event_id})
    return rows[0] if rows else None


@contextmanager
def _limited(conn: Connection[Any], limit: float, *, seqscan: bool) -> Iterator[None]:
    with transaction(conn):
        conn.execute(
            "SELECT set_config('statement_timeout', %s, true), set_config('enable_seqscan', %s, true)",
            [f"{limit * 1000:.0f}ms", "on" if seqscan else "off"],
        )
        yield


@contextmanager
def _patience(
    conn: Connection[Any], limit: float, what: str, remedy: str, *, seqscan: bool
) -> Iterator[None]:
    try:
        with _limited(conn, limit, seqscan=seqscan):
            yield
    except psycopg.errors.QueryCanceled as error:
        raise RelayError(f"{what} took longer than {limit:g} s and was given up: {remedy}") from error


def _all(conn: Connection[Any], statement: str, parameters: Row) -> list[Row]:
    return conn.cursor(row_factory=dict_row).execute(statement, parameters).fetchall()


def _one(conn: Connection[Any], statement: str, parameters: Row) -> Row:
    (row,) = _all(conn, statement, parameters)
    return row
