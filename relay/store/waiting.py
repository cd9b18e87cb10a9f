"""Keys that wait, and why: the head of a lane decides for all of it.

A lane waits for the retry of its head, for the time of a delayed one, behind an event that has failed, or
because a pause or a breaker holds its head. Reads only; every look is bounded in rows and time.
"""

from typing import Any, TypeAlias

from psycopg import Connection
from psycopg.rows import dict_row

from relay.pause import Subject
from relay.store.claim_sql import FRESH, LATER, SUBJECT_OF_HELD, SUBJECT_OF_ONLY
from relay.store.conditions import STATUS
from relay.store.connection import Table
from relay.store.limits import TooSlow, limited
from relay.store.sqltext import destination_expression, fill

Row: TypeAlias = dict[str, Any]

SECONDS = 3.0
HELD_SECONDS = 1.0
BEHIND_ROWS = 1000
HELD_ROWS = 5000
HELD_KEYS = 20
REMEDY = "look for one key, or again when it is less busy"

_EARLIER = """SELECT FROM {outbox} e WHERE e.completed_at IS NULL AND e.available_at {SIDE} e.created_at
  AND e.partition_bucket = o.partition_bucket AND e.partition_key = o.partition_key AND e.id < o.id"""
_BEHIND = """(SELECT count(*) FROM (
    SELECT FROM {outbox} b WHERE b.completed_at IS NULL AND b.available_at <= b.created_at
      AND b.partition_bucket = o.partition_bucket AND b.partition_key = o.partition_key AND b.id > o.id
    UNION ALL
    SELECT FROM {outbox} b WHERE b.completed_at IS NULL AND b.available_at > b.created_at
      AND b.partition_bucket = o.partition_bucket AND b.partition_key = o.partition_key AND b.id > o.id
    LIMIT 1001) x)"""
_HEAD = f"""o.partition_key AS key, o.idempotency_key AS event_id, o.event_type, {STATUS} AS status,
  o.attempts, o.max_attempts, o.created_at, nullif(o.available_at, 'infinity') AS available_at,
  o.available_at <= now() AS due, o.parked_at, o.claimed_by, left(o.last_error, 300) AS last_error"""
# Heads that wait or have waited, the soonest first; those that have failed come last.
HEADS = """
SELECT {HEAD}, {BEHIND} AS behind, o.available_at::text || ' ' || o.id AS cursor, hold.scope AS hold_scope,
       hold.value AS hold_value, hold.origin AS hold_origin, hold.until AS hold_until,
       hold.reason AS hold_reason
FROM {outbox} o LEFT JOIN LATERAL (
  SELECT h.* FROM {pauses} h
  WHERE o.status = 'pending' AND (h.origin = 'breaker' OR h.until IS NULL OR h.until > now())
    AND h.value = {SUBJECT_OF_HELD}
  ORDER BY h.origin DESC LIMIT 1) hold ON true
WHERE {LATER} AND (o.available_at, o.id) > (%(at)s::timestamptz, %(id)s)
  AND NOT EXISTS ({EARLIER_FRESH}) AND NOT EXISTS ({EARLIER_LATER})
ORDER BY o.available_at, o.id LIMIT %(limit)s
"""


def waiting(
    conn: Connection[Any], table: Table, destination: str, after: str | None = None, limit: int = 50
) -> tuple[list[Row], str | None]:
    """Keys whose head waits for its time, or has failed; and where the next page begins."""
    at, _, position = (after or "-infinity 0").rpartition(" ")
    statement = fill(
        HEADS,
        table.name,
        HEAD=_HEAD,
        BEHIND=_BEHIND,
        LATER=LATER,
        SUBJECT_OF_HELD=SUBJECT_OF_HELD,
        DESTINATION=destination_expression(destination),
        EARLIER_FRESH=_EARLIER.replace("{SIDE}", "<="),
        EARLIER_LATER=_EARLIER.replace("{SIDE}", ">"),
    )
    with limited(conn, SECONDS, "looking for keys that wait", REMEDY):
        rows = _rows(conn, statement, {"at": at, "id": int(position), "limit": limit + 1})
    cursors = [row.pop("cursor") for row in rows]
    return [_told(row) for row in rows[:limit]], cursors[limit - 1] if len(rows) > limit else None


def _told(row: Row) -> Row:
    scope, value = row.pop("hold_scope"), row.pop("hold_value")
    hold = {name: row.pop(f"hold_{name}") for name in ("origin", "until", "reason")}
    row["behind_exact"] = row["behind"] <= BEHIND_ROWS
    row["behind"] = min(row["behind"], BEHIND_ROWS)
    row["hold"] = hold | {"subject": str(Subject(scope, value))} if scope else None
    match row["status"]:
        case "failed":
            row["why"] = "blocked"
        case "processing":
            row["why"] = "in_flight"
        case _ if not row["due"]:
            row["why"] = "retry" if row["attempts"] else "delayed"
        case _:
            row["why"] = ("paused" if hold["origin"] == "operator" else "breaker") if scope else "due"
    return row


# Keys that a pause holds, some of them.
HELD = """
SELECT o.k AS key, count(*) AS events, min(o.created_at) AS oldest FROM (
  SELECT o.partition_key AS k, o.created_at FROM {outbox} o
  WHERE {FRESH} AND {LANE} AND o.status = 'pending' AND %(only_value)s::text = {SUBJECT_OF_ONLY}
  LIMIT %(rows)s) o
GROUP BY o.k ORDER BY min(o.created_at) LIMIT %(keys)s
"""


def held_keys(conn: Connection[Any], table: Table, subject: Subject, destination: str) -> list[Row] | None:
    """Some keys that the subject holds; None: that took too long."""
    statement = fill(
        HELD,
        table.name,
        FRESH=FRESH,
        SUBJECT_OF_ONLY=SUBJECT_OF_ONLY,
        DESTINATION=destination_expression(destination),
        LANE="o.partition_bucket = (hashtextextended(%(only_value)s::text, 0) & 1023)::int"
        " AND o.partition_key = %(only_value)s"
        if subject.scope == "key"
        else "true",
    )
    values = {"only_scope": subject.scope, "only_value": subject.value, "rows": HELD_ROWS, "keys": HELD_KEYS}
    try:
        with limited(conn, HELD_SECONDS, "looking for keys that a pause holds", REMEDY):
            return _rows(conn, statement, values)
    except TooSlow:
        return None


LANE = """
WITH live AS MATERIALIZED (
  SELECT * FROM (
    (SELECT {HEAD}, o.id AS position FROM {outbox} o WHERE {FRESH} AND {OF_KEY} ORDER BY o.id LIMIT 1001)
    UNION ALL
    (SELECT {HEAD}, o.id AS position FROM {outbox} o WHERE {LATER} AND {OF_KEY} ORDER BY o.id LIMIT 1001)) l)
SELECT l.*, (SELECT count(*) FROM live b WHERE b.position < %(position)s) AS ahead
FROM live l ORDER BY l.position LIMIT 1
"""
_OF_KEY = (
    "o.partition_key = %(key)s AND o.partition_bucket = (hashtextextended(%(key)s::text, 0) & 1023)::int"
)


def lane_of(conn: Connection[Any], table: Table, key: str, position: int) -> Row | None:
    """The head of the key's lane, and how many events are ahead of that position; None: the lane is empty."""
    statement = fill(LANE, table.name, HEAD=_HEAD, FRESH=FRESH, LATER=LATER, OF_KEY=_OF_KEY)
    with limited(conn, SECONDS, "looking at the lane", REMEDY):
        rows = _rows(conn, statement, {"key": key, "position": position})
    return rows[0] | {"ahead_exact": rows[0]["ahead"] <= BEHIND_ROWS} if rows else None


IN_FLIGHT = """
SELECT count(*) AS leases, coalesce(sum(size), 0)::bigint AS events,
       coalesce(sum(cardinality(keys)), 0)::bigint AS keys
FROM {leases}
"""


def in_flight(conn: Connection[Any], table: Table) -> Row:
    with limited(conn, SECONDS, "looking at the leases", REMEDY, seqscan=True):
        return _rows(conn, fill(IN_FLIGHT, table.name), {})[0]


def _rows(conn: Connection[Any], statement: str, values: Row) -> list[Row]:
    return conn.cursor(row_factory=dict_row).execute(statement, values).fetchall()
