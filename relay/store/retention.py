"""Deletes all that is past a moment, for an operator who does not wait for the relays' housekeeping.

A batch is one transaction, with its audit: one row per batch of published events, one per dead letter, for a
dead letter is an event that nobody has got. Batches that were not begun leave no trace. Nothing that waits,
is in flight or has failed is ever deleted.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

import psycopg
from psycopg import Connection

from relay.errors import RelayError
from relay.reading import Count
from relay.store.connection import Table, transaction
from relay.store.sqltext import fill, storable

Kind: TypeAlias = Literal["completed", "archived", "dead_letter"]
Cutoffs: TypeAlias = Mapping[Kind, datetime]  # what is older goes; a kind that is not named stays

ROUND = 50_000
ROWS_PER_BATCH = 1000
ROWS_FOR_PREVIEW = 1_000_000
PREVIEW_SECONDS = 30.0


@dataclass(frozen=True)
class _Place:
    table: str
    old: str
    recorded: str


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
    "dead_letter": _Place("{outbox}", "parked_at < %(before)s AND status = 'dead_letter'", _PER_EVENT),
}


CUTOFF = "SELECT now() - %s::interval"


def cutoff(conn: Connection[Any], age: timedelta) -> datetime:
    """The moment that is so long ago, by the database's clock."""
    row = conn.execute(CUTOFF, [age]).fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


COUNT = "SELECT count(*) FROM (SELECT FROM {TABLE} WHERE {OLD} LIMIT %(rows)s) o"


def preview(
    conn: Connection[Any], table: Table, cutoffs: Cutoffs, rows: int = ROWS_FOR_PREVIEW
) -> dict[Kind, Count]:
    """How many events of each kind are older, counted up to so many."""
    counts: dict[Kind, Count] = {}
    try:
        for kind, before in cutoffs.items():
            with _bitmaps(conn, f"{PREVIEW_SECONDS * 1000:.0f}ms"):
                place = _PLACES[kind]
                statement = fill(COUNT, table.name, TABLE=place.table, OLD=place.old)
                row = conn.execute(statement, {"before": before, "rows": rows + 1}).fetchone()
                assert row is not None
                counts[kind] = Count(min(row[0], rows), exact=row[0] <= rows)
    except psycopg.errors.QueryCanceled as error:
        raise RelayError(
            f"counting the events took longer than {PREVIEW_SECONDS:g} s and was given up: "
            "try again when the database is less busy"
        ) from error
    return counts


# A round is found by one scan: one for each batch would pass all that was deleted before, again and again.
FIND = "SELECT ctid::text FROM {TABLE} WHERE {OLD} LIMIT %(rows)s"
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
        find, delete = (fill(text, table.name, **words, RECORDED=place.recorded) for text in (FIND, PRUNE))
        bound = {"before": before, "kind": kind, "actor": storable(actor)}
        while tids := _round(conn, find, before):
            for start in range(0, len(tids), ROWS_PER_BATCH):
                batch = "{" + ",".join(f'"{tid}"' for tid in tids[start : start + ROWS_PER_BATCH]) + "}"
                with transaction(conn):
                    row = conn.execute(delete, bound | {"tids": batch}).fetchone()
                assert row is not None
                gone[kind] += row[0]
                yield dict(gone)
            if len(tids) < ROUND:
                break


def _round(conn: Connection[Any], find: str, before: datetime) -> list[str]:
    with _bitmaps(conn):
        return [row[0] for row in conn.execute(find, {"before": before, "rows": ROUND})]


@contextmanager
def _bitmaps(conn: Connection[Any], limit: str = "0") -> Iterator[None]:
    """A transaction that may use the BRIN indexes, which know bitmap scans alone."""
    with transaction(conn):
        conn.execute(
            "SELECT set_config('enable_bitmapscan', 'on', true), set_config('statement_timeout', %s, true)",
            [limit],
        )
        yield
