"""Deletes all that is past a moment, for an operator who does not wait for the relays' housekeeping.

A batch is one transaction, with its audit: one row per batch of published events, one per dead letter, for a
dead letter is an event that nobody has got. Batches that were not begun leave no trace. Nothing that waits,
is in flight or has failed is ever deleted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from psycopg import Connection

from relay.reading import Count
from relay.store.connection import Table, transaction
from relay.store.sqltext import fill, storable
from relay.store.sweep import BY_PLACE, Sweep, counted

Kind: TypeAlias = Literal["completed", "archived", "dead_letter"]
Cutoffs: TypeAlias = Mapping[Kind, datetime]  # what is older goes; a kind that is not named stays

ROUND = 50_000
ROWS_PER_BATCH = 1000
ROWS_FOR_PREVIEW = 1_000_000
PREVIEW_SECONDS = 10.0
BEGINNING = "(0,0)"


@dataclass(frozen=True)
class _Place:
    table: str
    old: str
    recorded: str
    indexed: bool = False  # the old ones are few, and an index has them


_PER_BATCH = """
  SELECT %(actor)s, 'prune', NULL, jsonb_build_object(
    'kind', %(kind)s::text, 'older_than', %(before)s::timestamptz, 'events', count(*))
  FROM gone HAVING count(*) > 0"""
_PER_EVENT = """
  SELECT %(actor)s, 'prune', g.idempotency_key, jsonb_build_object(
    'kind', %(kind)s::text, 'older_than', %(before)s::timestamptz, 'key', g.partition_key,
    'error', g.last_error)
  FROM gone g"""
_PLACES: dict[Kind, _Place] = {
    "completed": _Place("{outbox}", "completed_at < %(before)s AND status = 'completed'", _PER_BATCH),
    "archived": _Place("{archive}", "completed_at < %(before)s", _PER_BATCH),
    "dead_letter": _Place(
        "{outbox}", "parked_at < %(before)s AND status = 'dead_letter'", _PER_EVENT, indexed=True
    ),
}


CUTOFF = "SELECT now() - %s::interval"


def cutoff(conn: Connection[Any], age: timedelta) -> datetime:
    """The moment that is so long ago, by the database's clock."""
    row = conn.execute(CUTOFF, [age]).fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


COUNT = f"SELECT FROM {{TABLE}} WHERE {BY_PLACE} AND {{OLD}}"
COUNT_BY_INDEX = "SELECT count(*) FROM (SELECT FROM {TABLE} WHERE {OLD} LIMIT %(rows)s) o"


def preview(
    conn: Connection[Any], table: Table, cutoffs: Cutoffs, rows: int = ROWS_FOR_PREVIEW
) -> dict[Kind, Count]:
    """How many events of each kind are older, counted up to so many, or for as long as one likes to wait."""
    counts: dict[Kind, Count] = {}
    for kind, before in cutoffs.items():
        place = _PLACES[kind]
        text = COUNT_BY_INDEX if place.indexed else COUNT
        statement = fill(text, table.name, TABLE=place.table, OLD=place.old)
        if place.indexed:
            row = conn.execute(statement, {"before": before, "rows": rows + 1}).fetchone()
            assert row is not None
            counts[kind] = Count(min(row[0], rows), exact=row[0] <= rows)
        else:
            sweep = Sweep(fill(place.table, table.name), statement, {"before": before})
            counts[kind] = counted(conn, sweep, rows, PREVIEW_SECONDS)
    return counts


# By place, behind what was found before: a scan from the beginning would pass what is gone again and again.
FIND = "SELECT ctid::text FROM {TABLE} WHERE ctid > %(after)s::tid AND {OLD} LIMIT %(rows)s"
FIND_BY_INDEX = "SELECT ctid::text FROM {TABLE} WHERE {OLD} LIMIT %(rows)s"
PRUNE = """
WITH gone AS (
  DELETE FROM {TABLE} WHERE ctid = ANY(%(tids)s::tid[]) AND {OLD}
  RETURNING idempotency_key, partition_key, last_error),
recorded AS (INSERT INTO {audit} (actor, action, event_id, details) {RECORDED})
SELECT count(*) FROM gone
"""


def prune(conn: Connection[Any], table: Table, cutoffs: Cutoffs, *, actor: str) -> Iterator[dict[Kind, int]]:
    """Delete what is older; after each batch, how many of each kind are gone by now."""
    gone: dict[Kind, int] = dict.fromkeys(cutoffs, 0)
    for kind, before in cutoffs.items():
        place = _PLACES[kind]
        words = {"TABLE": place.table, "OLD": place.old}
        texts = FIND_BY_INDEX if place.indexed else FIND, PRUNE
        find, delete = (fill(text, table.name, **words, RECORDED=place.recorded) for text in texts)
        bound = {"before": before, "kind": kind, "actor": storable(actor)}
        after = BEGINNING
        while tids := _round(conn, find, before, after):
            after = tids[-1]
            for start in range(0, len(tids), ROWS_PER_BATCH):
                batch = "{" + ",".join(f'"{tid}"' for tid in tids[start : start + ROWS_PER_BATCH]) + "}"
                with transaction(conn):
                    row = conn.execute(delete, bound | {"tids": batch}).fetchone()
                assert row is not None
                gone[kind] += row[0]
                yield dict(gone)
            if len(tids) < ROUND:
                break


def _round(conn: Connection[Any], find: str, before: datetime, after: str) -> list[str]:
    with transaction(conn):
        conn.execute("SET LOCAL statement_timeout = 0")
        return [row[0] for row in conn.execute(find, {"before": before, "after": after, "rows": ROUND})]
