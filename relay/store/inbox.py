"""The inbox's tables as a consumer and an operator need them: are they there, and forget what is old.

Marks are deleted by age, a batch at a time. The mark of an event that is parked stays: its retry must not be
outlived by the memory that it has been dealt with. Dead letters are never deleted here.
"""

from datetime import timedelta
from typing import Any

import psycopg
from psycopg import Connection

from relay.errors import SchemaError
from relay.names import TableName
from relay.reading import Count
from relay.store.connection import transaction
from relay.store.sqltext import fill_inbox

ROWS_PER_PRUNE = 2000
ROWS_FOR_COUNT = 1_000_000

PRESENT = "SELECT FROM {inbox}, {replays}, {fences}, {dead_letters} LIMIT 0"


def require_inbox(conn: Connection[Any], table: TableName) -> None:
    """SchemaError unless the tables are there."""
    try:
        with transaction(conn):
            conn.execute(fill_inbox(PRESENT, table))
    except psycopg.errors.UndefinedTable as error:
        raise SchemaError(f"the tables of {table} are missing or too old: run 'relay migrate'") from error


# Found by BRIN indexes, which know bitmap scans alone; deleted by place.
_DELETE = """
DELETE FROM {table} WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM {table} s WHERE seen_at < clock_timestamp() - %(age)s
    AND (%(consumer)s::text IS NULL OR consumer = %(consumer)s) {kept} LIMIT %(rows)s))
  AND seen_at < clock_timestamp() - %(age)s
"""
_PARKED = """AND NOT EXISTS (
      SELECT FROM {dead_letters} d WHERE d.consumer = s.consumer AND d.event_id = s.event_id)"""
COUNT = """
SELECT count(*) FROM (SELECT FROM {inbox} s WHERE seen_at < clock_timestamp() - %(age)s
  AND (%(consumer)s::text IS NULL OR consumer = %(consumer)s) {kept} LIMIT %(rows)s) o
""".replace("{kept}", _PARKED)
SEEN = _DELETE.replace("{table}", "{inbox}").replace("{kept}", _PARKED)
REPLAYED = _DELETE.replace("{table}", "{replays}").replace("{kept}", _PARKED)
FENCED = _DELETE.replace("{table}", "{fences}").replace("{kept}", "")


def old_marks(conn: Connection[Any], table: TableName, age: timedelta, consumer: str | None) -> Count:
    """How many marks `prune_inbox` would delete in all, counted up to so many."""
    bound = {"age": age, "consumer": consumer, "rows": ROWS_FOR_COUNT + 1}
    with transaction(conn):
        conn.execute("SET LOCAL enable_bitmapscan = on")
        row = conn.execute(fill_inbox(COUNT, table), bound).fetchone()
    assert row is not None
    return Count(min(row[0], ROWS_FOR_COUNT), exact=row[0] <= ROWS_FOR_COUNT)


def prune_inbox(conn: Connection[Any], table: TableName, age: timedelta, consumer: str | None = None) -> int:
    """Forget some of what was seen longer ago than `age`, by one consumer or by all; how many rows."""
    gone = 0
    for statement in (SEEN, REPLAYED, FENCED):
        with transaction(conn):
            conn.execute("SET LOCAL enable_bitmapscan = on")
            parameters = {"age": age, "rows": ROWS_PER_PRUNE, "consumer": consumer}
            gone += conn.execute(fill_inbox(statement, table), parameters).rowcount
    return gone
