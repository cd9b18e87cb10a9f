"""What the operator's pages show beside events and keys: counts, parked events in groups, the audit trail.

Reads only; every look is bounded in rows and time.
"""

from dataclasses import replace
from typing import Any, TypeAlias

from psycopg import Connection
from psycopg.rows import dict_row

from relay.reading import Count
from relay.store.connection import Table
from relay.store.counting import Counting, Counts
from relay.store.gauges import ROWS_FOR_GAUGES
from relay.store.inspect import completed
from relay.store.limits import limited
from relay.store.sqltext import fill

Row: TypeAlias = dict[str, Any]

GLANCE_SECONDS = 1.0
SECONDS = 3.0
PARKED_ROWS = 20_000
GROUPS = 100
SAMPLES = 20
LATER = "look again when it is less busy"


def glance(conn: Connection[Any], table: Table, known: Count | None = None) -> Counts:
    """How many events are where; the completed ones take longer to count: not if they are `known`."""
    with limited(conn, GLANCE_SECONDS, "counting events", LATER):
        counts = Counting(table, ROWS_FOR_GAUGES).count(conn)
        return replace(counts, completed=known or completed(conn, table, counts.completed))


TALLIES = """
SELECT id, status, metadata -> 'tally' AS tally, extract(epoch FROM clock_timestamp())::float8 AS now
FROM {workers}
"""


def tallies(conn: Connection[Any], table: Table) -> list[Row]:
    """What each worker has told of itself."""
    with limited(conn, GLANCE_SECONDS, "looking at the workers", LATER, seqscan=True):
        return _rows(conn, fill(TALLIES, table.name), {})


# Errors that differ only in ids and numbers belong together; some of them tell what they have in common.
# A mark stays where each of them was, so that all of a group have theirs in the same places. An error may
# have the mark itself: it counts as one of them.
MARK = "\x01"
VARIABLE = f"[0-9a-fA-F]{{8,}}(?:-[0-9a-fA-F]{{4,}})*|[0-9]+|{MARK}"
GROUPED = """
SELECT g.event_type, g.status, count(*) AS events, count(DISTINCT g.key) AS keys,
       count(DISTINCT g.error) AS variants, (array_agg(DISTINCT g.error))[1:{SAMPLES}] AS errors,
       min(g.parked_at) AS first_at, max(g.parked_at) AS last_at,
       (array_agg(g.event_id ORDER BY g.parked_at DESC))[1] AS event_id
FROM (SELECT o.event_type, o.status::text AS status, left(o.last_error, 500) AS error, o.parked_at,
             o.idempotency_key AS event_id, o.partition_key AS key
      FROM {outbox} o WHERE o.parked_at IS NOT NULL ORDER BY o.parked_at DESC LIMIT %(rows)s) g
GROUP BY g.event_type, g.status, regexp_replace(g.error, %(variable)s, %(mark)s, 'g')
ORDER BY count(*) DESC, max(g.parked_at) DESC
"""


def parked_groups(conn: Connection[Any], table: Table, rows: int = PARKED_ROWS) -> tuple[list[Row], bool]:
    """Parked events by type and error, and whether these are all: the newest are looked at, up to a bound."""
    statement = fill(GROUPED, table.name, SAMPLES=str(SAMPLES))
    with limited(conn, SECONDS, "grouping parked events", LATER):
        groups = _rows(conn, statement, {"rows": rows + 1, "variable": VARIABLE, "mark": MARK})
    return groups[:GROUPS], sum(group["events"] for group in groups) <= rows and len(groups) <= GROUPS


AUDIT = """
SELECT a.id, a.at, a.actor, a.action, a.event_id, a.details FROM {audit} a
WHERE a.id < %(before)s AND {WHERE} ORDER BY a.id DESC LIMIT %(limit)s
"""


def audit(
    conn: Connection[Any],
    table: Table,
    *,
    action: str | None = None,
    event_id: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> tuple[list[Row], int | None]:
    """Who did what, newest first, and where the next page begins."""
    where = (["a.action = %(action)s"] if action else []) + (
        ["a.event_id = %(event_id)s"] if event_id else []
    )
    values = {"action": action, "event_id": event_id, "limit": limit + 1}
    values["before"] = 2**63 - 1 if before is None else before
    with limited(conn, SECONDS, "looking at the audit trail", LATER):
        rows = _rows(conn, fill(AUDIT, table.name, WHERE=" AND ".join(where) or "true"), values)
    return rows[:limit], rows[limit - 1]["id"] if len(rows) > limit else None


def _rows(conn: Connection[Any], statement: str, values: Row) -> list[Row]:
    return conn.cursor(row_factory=dict_row).execute(statement, values).fetchall()
