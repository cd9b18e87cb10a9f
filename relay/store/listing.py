"""Events by pages, newest first, in a time that does not depend on how many there are.

A page looks backwards from a position in windows that grow until it is full. Where matches are so rare that
this takes too long it ends early and says how far it has looked; the next page goes on from there. Parked
events come by the time they were parked. Counts stop at a bound and say so.
"""

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any, TypeAlias

from psycopg import Connection
from psycopg.rows import dict_row

from relay.reading import Count
from relay.store.conditions import PENDING, PROCESSING, STATUS, Status, conditions
from relay.store.connection import Table
from relay.store.limits import TooSlow, limited
from relay.store.sqltext import fill, regclass

Row: TypeAlias = dict[str, Any]

PAGE_SECONDS = 3.0
COUNT_SECONDS = 2.0
COUNT_ROWS = 10_000
FIRST_WINDOW = 1000
GROWTH = 16
PARKED = ("dead_letter", "failed")
REMEDY = "narrow it by status, key or time"


@dataclass(frozen=True)
class Query:
    """Which events; None: any."""

    status: Status | None = None
    key: str | None = None
    event_type: str | None = None
    error: str | None = None  # a part of last_error, in any case
    since: datetime | None = None  # created at or after
    before: str | None = None  # the `next` of the page before
    limit: int = 50


@dataclass(frozen=True)
class Page:
    """`next`: where the page after it begins; None: this is the last. Not `complete`: time ran out."""

    events: list[Row]
    next: str | None
    complete: bool = True


_STATUS: dict[Status, str] = {
    "pending": PENDING,
    "processing": PROCESSING,
    "completed": "o.status = 'completed' AND o.completed_at IS NOT NULL",
    "failed": "o.status = 'failed' AND o.parked_at IS NOT NULL",
    "dead_letter": "o.status = 'dead_letter' AND o.parked_at IS NOT NULL",
}
_COLUMNS = f"""o.id AS position, o.idempotency_key AS event_id, o.partition_key AS key, o.event_type,
  {STATUS} AS status, o.attempts, o.max_attempts, o.created_at,
  nullif(o.available_at, 'infinity') AS available_at, o.completed_at, o.parked_at,
  left(o.last_error, 300) AS last_error, o.receipt"""


def page(conn: Connection[Any], table: Table, query: Query, seconds: float = PAGE_SECONDS) -> Page:
    """The events that match, a page of them."""
    deadline = monotonic() + seconds
    if query.status in PARKED:
        return _parked(conn, table, query, deadline)
    if query.key is not None and query.status in ("pending", "processing"):
        return _lane(conn, table, query, deadline)
    return _windows(conn, table, query, deadline)


# One window of positions; the BRIN index leads to it.
WINDOW = """
SELECT {COLUMNS} FROM {outbox} o
WHERE o.id > %(low)s AND o.id <= %(high)s AND {WHERE} ORDER BY o.id DESC LIMIT %(limit)s
"""


def _windows(conn: Connection[Any], table: Table, query: Query, deadline: float) -> Page:
    statement = fill(WINDOW, table.name, COLUMNS=_COLUMNS, WHERE=_where(query))
    high = int(query.before) - 1 if query.before else _newest(conn, table, deadline)
    found: list[Row] = []
    window = FIRST_WINDOW
    while high > 0 and len(found) <= query.limit:
        low = max(high - window, 0)
        values = asdict(query) | {"low": low, "high": high, "limit": query.limit + 1 - len(found)}
        try:
            with limited(conn, deadline - monotonic(), "listing events", REMEDY, seqscan=True, bitmap=True):
                found += _rows(conn, statement, values)
        except TooSlow:
            return Page(found, str(high + 1), complete=False)
        high, window = low, window * GROWTH
    if len(found) > query.limit:
        return Page(found[: query.limit], str(found[query.limit - 1]["position"]))
    return Page(found, None)


# A role that may not see the sequence must look at the table.
NEWEST = "SELECT pg_sequence_last_value(pg_get_serial_sequence({name}, 'id')::regclass)"
NEWEST_ROW = "SELECT coalesce(max(id), 0) FROM {outbox}"


def _newest(conn: Connection[Any], table: Table, deadline: float) -> int:
    name = regclass(table.name, "outbox").removesuffix("::regclass")
    with limited(conn, deadline - monotonic(), "listing events", REMEDY, seqscan=True):
        readable = conn.execute(
            fill(f"SELECT has_sequence_privilege(pg_get_serial_sequence({name}, 'id'), 'SELECT')", table.name)
        ).fetchone()
        statement = NEWEST.replace("{name}", name) if readable and readable[0] else NEWEST_ROW
        row = conn.execute(fill(statement, table.name)).fetchone()
    return int(row[0] or 0) if row else 0


PARKED_PAGE = """
SELECT {COLUMNS}, o.parked_at::text || ' ' || o.id AS cursor FROM {outbox} o
WHERE {WHERE} AND (o.parked_at < %(at)s::timestamptz OR o.parked_at = %(at)s::timestamptz AND o.id < %(id)s)
  AND o.parked_at <= %(at)s::timestamptz
ORDER BY o.parked_at DESC, o.id DESC LIMIT %(limit)s
"""


def _parked(conn: Connection[Any], table: Table, query: Query, deadline: float) -> Page:
    at, _, position = (query.before or "infinity 0").rpartition(" ")
    values = asdict(query) | {"at": at, "id": int(position), "limit": query.limit + 1}
    statement = fill(PARKED_PAGE, table.name, COLUMNS=_COLUMNS, WHERE=_where(query))
    try:
        with limited(conn, deadline - monotonic(), "listing events", REMEDY):
            rows = _rows(conn, statement, values)
    except TooSlow:
        return Page([], None, complete=False)
    return _cut(rows, query.limit)


# The lane indexes know the key, in order.
LANE_PAGE = """
SELECT * FROM (
  SELECT {COLUMNS}, o.id::text AS cursor FROM {outbox} o
  WHERE {WHERE} AND o.available_at <= o.created_at AND o.id < %(before_id)s
  UNION ALL
  SELECT {COLUMNS}, o.id::text AS cursor FROM {outbox} o
  WHERE {WHERE} AND o.available_at > o.created_at AND o.id < %(before_id)s) e
ORDER BY e.position DESC LIMIT %(limit)s
"""


def _lane(conn: Connection[Any], table: Table, query: Query, deadline: float) -> Page:
    before = int(query.before) if query.before else 2**63 - 1
    values = asdict(query) | {"before_id": before, "limit": query.limit + 1}
    statement = fill(LANE_PAGE, table.name, COLUMNS=_COLUMNS, WHERE=_where(query))
    try:
        with limited(conn, deadline - monotonic(), "listing events", REMEDY):
            return _cut(_rows(conn, statement, values), query.limit)
    except TooSlow:
        return Page([], None, complete=False)


def _cut(rows: list[Row], limit: int) -> Page:
    cursors = [row.pop("cursor") for row in rows]
    return Page(rows[:limit], cursors[limit - 1] if len(rows) > limit else None)


COUNT = "SELECT count(*) AS number FROM (SELECT FROM {outbox} o WHERE {WHERE} LIMIT %(limit)s) x"


def count(conn: Connection[Any], table: Table, query: Query, seconds: float = COUNT_SECONDS) -> Count | None:
    """How many match, up to a bound; None: that took too long."""
    statement = fill(COUNT, table.name, WHERE=_where(query))
    values = asdict(replace(query, limit=COUNT_ROWS + 1))
    parked = query.status in PARKED
    try:
        with limited(conn, seconds, "counting events", REMEDY, seqscan=not parked, bitmap=True):
            number = int(_rows(conn, statement, values)[0]["number"])
    except TooSlow:
        return None
    return Count(min(number, COUNT_ROWS), number <= COUNT_ROWS)


def _where(query: Query) -> str:
    parts = [_STATUS[query.status]] if query.status else []
    parts += conditions(key=query.key, event_type=query.event_type, error=query.error, since=query.since)
    return " AND ".join(parts) or "true"


def _rows(conn: Connection[Any], statement: str, values: Row) -> list[Row]:
    return conn.cursor(row_factory=dict_row).execute(statement, values).fetchall()
