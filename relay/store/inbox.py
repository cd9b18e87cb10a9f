"""The inbox's tables as a consumer and an operator need them: are they there, and forget what is old.

Marks are deleted by age, a batch at a time. The mark of an event that is parked stays: its retry must not be
outlived by the memory that it has been dealt with. Dead letters are never deleted here.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import Connection

from relay.errors import SchemaError
from relay.names import TableName
from relay.reading import Count
from relay.store.connection import transaction
from relay.store.sqltext import fill_inbox
from relay.store.sweep import BY_PLACE, Sweep, counted

ROWS_FOR_COUNT = 1_000_000
SECONDS_FOR_COUNT = 10.0

PRESENT = "SELECT FROM {inbox}, {replays}, {fences}, {dead_letters} LIMIT 0"


def require_inbox(conn: Connection[Any], table: TableName) -> None:
    """SchemaError unless the tables are there."""
    try:
        with transaction(conn):
            conn.execute(fill_inbox(PRESENT, table))
    except psycopg.errors.UndefinedTable as error:
        raise SchemaError(f"the tables of {table} are missing or too old: run 'relay migrate'") from error


_OLD = """s.seen_at < now() - %(age)s AND (%(consumer)s::text IS NULL OR s.consumer = %(consumer)s)"""
_NOT_PARKED = """AND NOT EXISTS (
      SELECT FROM {dead_letters} d WHERE d.consumer = s.consumer AND d.event_id = s.event_id)"""
COUNT = f"SELECT FROM {{inbox}} s WHERE {BY_PLACE} AND {_OLD} {_NOT_PARKED}"
SEEN = f"DELETE FROM {{inbox}} s WHERE {BY_PLACE} AND {_OLD} {_NOT_PARKED}"
REPLAYED = f"DELETE FROM {{replays}} s WHERE {BY_PLACE} AND {_OLD} {_NOT_PARKED}"
FENCED = f"DELETE FROM {{fences}} s WHERE {BY_PLACE} AND {_OLD}"


def old_marks(conn: Connection[Any], table: TableName, age: timedelta, consumer: str | None) -> Count:
    """How many marks `prune_inbox` would delete in all, counted up to so many, or for so long."""
    sweep = Sweep(fill_inbox("{inbox}", table), fill_inbox(COUNT, table), {"age": age, "consumer": consumer})
    return counted(conn, sweep, ROWS_FOR_COUNT, SECONDS_FOR_COUNT)


def inbox_sweeps(table: TableName, age: timedelta, consumer: str | None = None) -> list[Sweep]:
    """By which is forgotten what was seen longer ago than `age`, by one consumer or by all."""
    swept = (("{inbox}", SEEN), ("{replays}", REPLAYED), ("{fences}", FENCED))
    values = {"age": age, "consumer": consumer}
    return [Sweep(fill_inbox(place, table), fill_inbox(text, table), values) for place, text in swept]


def prune_inbox(
    conn: Connection[Any], table: TableName, age: timedelta, consumer: str | None = None
) -> Iterator[int]:
    """Forget all of that; after each step, how many rows are gone by now."""
    gone = 0
    for sweep in inbox_sweeps(table, age, consumer):
        while True:
            gone += sweep.step(conn)
            yield gone
            if sweep.came_around:
                break
