"""Counts the events of an outbox, at a cost that does not grow with it.

Guarantees: reads only. Counts look at a bounded number of rows of each kind; what lies beyond is an estimate
from the server's statistics and marked as one. Nothing here looks at completed rows.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from psycopg import Connection
from psycopg.rows import dict_row

from relay.names import outbox_names
from relay.reading import Count
from relay.store.claim_sql import FRESH, LATER
from relay.store.connection import Table
from relay.store.sqltext import fill, regclass

Row: TypeAlias = dict[str, Any]

# Of the rows that are counted where there are few, this part is looked at where there are many.
SAMPLED = 10


@dataclass(frozen=True)
class Counts:
    pending: Count
    retrying: Count
    processing: Count
    failed: Count
    dead_letter: Count
    blocked_keys: Count
    completed: Count
    archived: Count
    oldest_pending_seconds: float | None  # None: nothing is due
    stuck: int  # due for more than an hour, among the rows looked at
    workers: int


# Live rows by the lane indexes and by when they are due, parked ones by their index, those under a lease by
# the leases. A failed row is never due, so that it is found at the far end. A delayed event does not age
# before its time.
COUNT = """
WITH fresh AS MATERIALIZED (
  SELECT o.status, o.attempts, o.partition_key, o.created_at AS since FROM {outbox} o
  WHERE {FRESH} LIMIT %(fresh)s),
later AS MATERIALIZED (
  SELECT o.status, o.attempts, o.partition_key,
         CASE WHEN o.attempts = 0 THEN o.available_at ELSE o.created_at END AS since
  FROM {outbox} o WHERE {LATER} AND o.available_at < 'infinity' ORDER BY o.available_at LIMIT %(later)s),
held AS MATERIALIZED (
  SELECT o.status, o.attempts, o.partition_key, 'infinity'::timestamptz AS since FROM {outbox} o
  WHERE {LATER} AND o.available_at = 'infinity' ORDER BY o.available_at LIMIT %(held)s),
live AS (SELECT * FROM fresh UNION ALL SELECT * FROM later UNION ALL SELECT * FROM held),
parked AS (SELECT FROM {outbox} o WHERE o.parked_at IS NOT NULL LIMIT %(parked)s)
SELECT (SELECT count(*) FROM fresh) AS fresh, (SELECT count(*) FROM later) AS later,
       (SELECT count(*) FROM held) AS held, (SELECT count(*) FROM parked) AS parked,
       (SELECT count(*) FROM fresh WHERE status = 'pending' AND attempts > 0) AS fresh_retrying,
       (SELECT count(*) FROM later WHERE status = 'pending' AND attempts > 0) AS later_retrying,
       count(*) FILTER (WHERE status <> 'failed') AS open,
       count(*) FILTER (WHERE status = 'failed') AS failed,
       count(DISTINCT partition_key) FILTER (WHERE status = 'failed') AS blocked_keys,
       extract(epoch FROM clock_timestamp() - min(since) FILTER (
         WHERE status = 'pending' AND isfinite(since) AND since <= clock_timestamp()))::float8 AS oldest,
       count(*) FILTER (WHERE status = 'pending' AND since < clock_timestamp() - interval '1 hour') AS stuck
FROM live
"""
# Statistics as of the last VACUUM or ANALYZE, scaled to the table's size now as the planner does; 0: never.
ESTIMATE = """
WITH indexed AS MATERIALIZED (
  SELECT c.relname AS name, greatest(c.reltuples, 0)::bigint AS rows
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = {outbox_name})
SELECT (SELECT (greatest(reltuples, 0) / greatest(relpages, 1) * pg_relation_size(oid) / 8192)::bigint
        FROM pg_class WHERE oid = {outbox_name}) AS rows,
       (SELECT (greatest(reltuples, 0) / greatest(relpages, 1) * pg_relation_size(oid) / 8192)::bigint
        FROM pg_class WHERE oid = {archive_name}) AS archived,
       (SELECT pg_relation_size({archive_name}) = 0) AS no_archive,
       coalesce((SELECT rows FROM indexed WHERE name = %(fresh)s), 0) AS fresh,
       coalesce((SELECT rows FROM indexed WHERE name = %(later)s), 0) AS later,
       coalesce((SELECT rows FROM indexed WHERE name = %(parked)s), 0) AS parked,
       (SELECT coalesce(sum(size), 0)::bigint FROM {leases}) AS processing,
       (SELECT count(*) FROM {workers} WHERE status <> 'dead') AS workers
"""
# Among more rows than were counted, the oldest is looked for at the head of every bucket.
HEADS = """
SELECT extract(epoch FROM clock_timestamp() - min(r.created_at) FILTER (WHERE r.status = 'pending'))::float8
       AS oldest
FROM generate_series(0, 1023) b(bucket) CROSS JOIN LATERAL (
  SELECT o.status, o.created_at FROM {outbox} o WHERE {FRESH} AND o.partition_bucket = b.bucket
  ORDER BY o.partition_key, o.id LIMIT 2) r
"""
NOTHING_SEEN: Row = {
    "fresh": 0, "later": 0, "held": 0, "parked": 0, "fresh_retrying": 0, "later_retrying": 0,
    "open": 0, "failed": 0, "blocked_keys": 0, "oldest": None, "stuck": 0,
}  # fmt: skip


class Counting:
    """Counts the events of one outbox, looking at so many rows of each kind at most.

    Where the statistics know of far more than that, a sample has to do.
    """

    def __init__(self, table: Table, rows: int) -> None:
        self._rows = rows
        tables = {f"{word}_name": regclass(table.name, word) for word in ("outbox", "archive")}
        self._count = fill(COUNT, table.name, FRESH=FRESH, LATER=LATER)
        self._estimate = fill(ESTIMATE, table.name, **tables)
        self._heads = fill(HEADS, table.name, FRESH=FRESH)
        names = outbox_names(table.name)
        self._indexes = {word: names[f"i_{word}"][-1] for word in ("fresh", "later", "parked")}

    def count(self, conn: Connection[Any]) -> Counts:
        """Must run where sequential scans are off: these plans are meant for the indexes."""
        guess = one(conn, self._estimate, self._indexes)
        most = {word: self._most(guess[word]) for word in self._indexes} | {"held": self._rows}
        seen = one(conn, self._count, {word: rows + 1 for word, rows in most.items()})
        whole = {word: seen[word] <= rows for word, rows in most.items()}
        if not (whole["fresh"] and whole["later"]):
            ages = (seen["oldest"], one(conn, self._heads, {})["oldest"])
            seen["oldest"] = max((age for age in ages if age is not None), default=None)
        return _judge(seen, guess, whole)

    def estimate(self, conn: Connection[Any]) -> Counts:
        """What the statistics say, without looking at a single event."""
        return _judge(
            NOTHING_SEEN, one(conn, self._estimate, self._indexes), dict.fromkeys(NOTHING_SEEN, False)
        )

    def _most(self, guess: int) -> int:
        return self._rows if guess <= 2 * self._rows else self._rows // SAMPLED


def _judge(seen: Row, guess: Row, whole: dict[str, bool]) -> Counts:
    """What was seen where it was seen whole, else the best guess."""
    waiting, held = seen["later"], seen["held"]
    fresh = _total(seen["fresh"], guess["fresh"], whole["fresh"])
    later = _total(waiting + held, guess["later"], whole["later"] and whole["held"])
    live, exact = fresh.value + later.value, fresh.exact and later.exact
    failed = seen["failed"]
    if whole["later"] and not whole["held"]:
        failed = max(failed, later.value - waiting)
    # What is in flight is known by the leases; only what lasts says so itself.
    pending = max((seen["open"] if exact else max(live - failed, seen["open"])) - guess["processing"], 0)
    parked = _total(seen["parked"], guess["parked"], whole["parked"])
    dead = max(parked.value - failed, 0)
    return Counts(
        pending=Count(pending, exact),
        retrying=Count(
            _share(seen["fresh_retrying"], seen["fresh"], fresh.value)
            + _share(seen["later_retrying"], waiting, later.value - held),
            exact,
        ),
        processing=Count(guess["processing"]),
        failed=Count(failed, whole["held"]),
        dead_letter=Count(dead, parked.exact and whole["held"]),
        blocked_keys=Count(_share(seen["blocked_keys"], seen["failed"], failed), whole["held"]),
        completed=Count(max(guess["rows"] - live - dead, 0), exact=False),
        archived=Count(guess["archived"], exact=guess["no_archive"]),
        oldest_pending_seconds=seen["oldest"],
        stuck=seen["stuck"],
        workers=guess["workers"],
    )


def _total(seen: int, guess: int, whole: bool) -> Count:
    return Count(seen) if whole else Count(max(seen, guess), exact=False)


def _share(part: int, sample: int, whole: int) -> int:
    """As many of the whole as of the sample."""
    return part if whole <= sample else round(part / sample * whole) if sample else 0


def every(conn: Connection[Any], statement: str, parameters: Row) -> list[Row]:
    return conn.cursor(row_factory=dict_row).execute(statement, parameters).fetchall()


def one(conn: Connection[Any], statement: str, parameters: Row) -> Row:
    (row,) = every(conn, statement, parameters)
    return row
