"""Reads published events again, and remembers how far a replay has come: in the audit, nowhere else.

No row of the outbox or its archive is changed or locked. Events come key by key, in the order of each key,
up to the moment at which the replay began. They are looked for a page at a time, each by one scan of what
matches, and read in small batches: a replay holds no snapshot while it publishes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

import psycopg
from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from relay.errors import RelayError
from relay.event import Event
from relay.reading import Count
from relay.store.conditions import conditions
from relay.store.connection import StoreConnection, Table, transaction
from relay.store.sqltext import destination_expression, fill, storable

ROWS_PER_PAGE = 50_000
ROWS_TO_COUNT = 1_000_000
COUNT_SECONDS = 60.0

State: TypeAlias = Literal["started", "running", "stopped", "done"]


@dataclass(frozen=True)
class Selection:
    """Which published events; None: all. Times are those at which they were published."""

    ids: tuple[str, ...] = ()
    key: str | None = None
    event_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def details(self) -> dict[str, Any]:
        """As the audit has it."""
        named = asdict(self) | {"ids": list(self.ids) or None}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in named.items()
            if value is not None
        }

    @classmethod
    def of(cls, details: dict[str, Any]) -> "Selection":
        times = {
            name: datetime.fromisoformat(details[name]) for name in ("since", "until") if name in details
        }
        return cls(**details | times | {"ids": tuple(details.get("ids", ()))})

    def where(self) -> str:
        where = conditions(key=self.key, event_type=self.event_type)
        if self.ids:
            where.append("o.idempotency_key = ANY(%(ids)s::text[])")
        if self.since is not None:
            where.append("o.completed_at >= %(published_since)s")
        if self.until is not None:
            where.append("o.completed_at <= %(published_until)s")
        return " AND ".join(where) or "true"

    def parameters(self) -> dict[str, Any]:
        return {
            "ids": list(self.ids),
            "key": self.key,
            "event_type": self.event_type,
            "published_since": self.since,
            "published_until": self.until,
        }


class Place(NamedTuple):
    """Where a published event stands in a replay."""

    bucket: int
    key: str
    position: int
    event_id: str


_PUBLISHED = "o.status = 'completed' AND o.completed_at IS NOT NULL"
COUNT = """
SELECT count(*) FROM (
  SELECT FROM {outbox} o WHERE {PUBLISHED} AND {WHERE}
  UNION ALL SELECT FROM {archive} o WHERE {PUBLISHED} AND {WHERE} LIMIT %(rows)s) o
"""


def count(conn: Connection[Any], table: Table, selection: Selection, rows: int = ROWS_TO_COUNT) -> Count:
    """How many events match, counted up to so many."""
    statement = fill(COUNT, table.name, PUBLISHED=_PUBLISHED, WHERE=selection.where())
    try:
        with _any_plan(conn, COUNT_SECONDS):
            row = conn.execute(statement, selection.parameters() | {"rows": rows + 1}).fetchone()
    except psycopg.errors.QueryCanceled as error:
        raise RelayError(
            f"counting the events took longer than {COUNT_SECONDS:g} s and was given up: narrow it by --since"
        ) from error
    assert row is not None
    return Count(min(row[0], rows), exact=row[0] <= rows)


_PLACE = (
    "o.partition_bucket AS bucket, o.partition_key AS key, o.id AS position, o.idempotency_key AS event_id"
)
_AFTER = """(o.partition_bucket, o.partition_key, o.id)
  > (%(after_bucket)s::int, %(after_key)s::text, %(after_position)s::bigint)"""
PAGE = """
SELECT {PLACE} FROM {outbox} o WHERE {PUBLISHED} AND {WHERE} AND {AFTER}
UNION ALL
SELECT {PLACE} FROM {archive} o WHERE {PUBLISHED} AND {WHERE} AND {AFTER}
ORDER BY bucket, key, position LIMIT %(rows)s
"""


def page(conn: Connection[Any], table: Table, selection: Selection, after: Place | None) -> list[Place]:
    """The next events of the replay; the page is the last one where it is shorter than ROWS_PER_PAGE."""
    statement = fill(
        PAGE,
        table.name,
        PLACE=_PLACE,
        PUBLISHED=_PUBLISHED,
        WHERE=selection.where(),
        AFTER=_AFTER if after else "true",
    )
    bound = selection.parameters() | {"rows": ROWS_PER_PAGE}
    if after:
        bound |= {"after_bucket": after.bucket, "after_key": after.key, "after_position": after.position}
    with _any_plan(conn):
        return conn.cursor(row_factory=class_row(Place)).execute(statement, bound).fetchall()


_EVENT = """o.id, o.partition_key, o.idempotency_key, o.event_type, {DESTINATION},
  convert_to(o.payload::text, 'UTF8'), o.headers, o.created_at, coalesce(o.lease_generation, 0),
  greatest(o.attempts, 1), o.max_attempts,
  jsonb_build_object('replay_id', %(replay_id)s::text, 'replayed_at', clock_timestamp())"""
READ = """
SELECT {EVENT} FROM {outbox} o WHERE o.idempotency_key = ANY(%(ids)s::text[]) AND {PUBLISHED}
UNION ALL
SELECT {EVENT} FROM {archive} o WHERE o.idempotency_key = ANY(%(ids)s::text[]) AND {PUBLISHED}
"""


def read(
    conn: Connection[Any], table: Table, places: Sequence[Place], destination: str, replay_id: str
) -> list[Event]:
    """The events at these places that are still there, in the same order, marked as replayed."""
    statement = fill(
        READ,
        table.name,
        EVENT=_EVENT,
        PUBLISHED=_PUBLISHED,
        DESTINATION=destination_expression(destination),
    )
    bound = {"ids": [place.event_id for place in places], "replay_id": replay_id}
    with transaction(conn):
        rows = [Event._make(row) for row in conn.execute(statement, bound)]
    # An archive may hold several events of one id, published under different positions.
    found = {event.position: event for event in rows}
    return [found[place.position] for place in places if place.position in found]


@dataclass(frozen=True)
class Tally:
    """How far a replay has come."""

    published: int = 0
    refused: int = 0  # by the broker, for ever
    missing: int = 0  # deleted since they were counted


@dataclass(frozen=True)
class Record:
    """A replay as the audit knows it."""

    selection: Selection
    state: State
    after: Place | None
    tally: Tally


LOCK = "SELECT pg_try_advisory_lock(hashtextextended('relay replay ' || %s || ' ' || %s, 0))"
RECORDS = """
SELECT details FROM {audit} WHERE action = 'replay' AND event_id IS NULL AND details ->> 'replay_id' = %s
ORDER BY id
"""


def alone(conn: Connection[Any], table: Table, replay_id: str) -> bool:
    """Make sure that nobody else runs this replay while the connection lasts; a pooler cannot tell."""
    if isinstance(conn, StoreConnection) and conn.pooled:
        return True
    row = conn.execute(LOCK, [str(table.oid), replay_id]).fetchone()
    return bool(row and row[0])


def recall(conn: Connection[Any], table: Table, replay_id: str) -> Record | None:
    """The replay of that id, if it ever began."""
    with transaction(conn):
        rows = [row[0] for row in conn.execute(fill(RECORDS, table.name), [replay_id])]
    if not rows:
        return None
    last = rows[-1]
    return Record(
        Selection.of(rows[0]["selection"]),
        last["state"],
        Place(*last["after"]) if last.get("after") else None,
        Tally(**last.get("tally", {})),
    )


AUDIT = "INSERT INTO {audit} (actor, action, event_id, details) VALUES (%s, 'replay', %s, %s)"


def begin(
    conn: Connection[Any], table: Table, actor: str, replay_id: str, selection: Selection, **more: Any
) -> Selection:
    """Record that the replay begins, before anything is published; its selection, which has an end now."""
    with transaction(conn):
        if selection.until is None:
            row = conn.execute("SELECT clock_timestamp()").fetchone()
            assert row is not None
            selection = Selection.of(selection.details() | {"until": row[0].isoformat()})
        details = {"replay_id": replay_id, "state": "started", "selection": selection.details()} | more
        conn.execute(fill(AUDIT, table.name), [storable(actor), None, Jsonb(details)])
    return selection


def remember(
    conn: Connection[Any],
    table: Table,
    actor: str,
    replay_id: str,
    state: State,
    after: Place | None,
    tally: Tally,
) -> None:
    """Record how far the replay has come: whoever goes on with it begins behind `after`."""
    details = {
        "replay_id": replay_id,
        "state": state,
        "after": list(after) if after else None,
        "tally": asdict(tally),
    }
    with transaction(conn):
        conn.execute(fill(AUDIT, table.name), [storable(actor), None, Jsonb(details)])


def record_refusal(
    conn: Connection[Any], table: Table, actor: str, replay_id: str, event: Event, reason: str
) -> None:
    details = {"replay_id": replay_id, "refused": storable(reason)}
    with transaction(conn):
        conn.execute(fill(AUDIT, table.name), [storable(actor), event.event_id, Jsonb(details)])


@contextmanager
def _any_plan(conn: Connection[Any], limit: float = 0.0) -> Iterator[None]:
    """A transaction that may read all of a table, or a part of it by BRIN, whichever is cheaper."""
    with transaction(conn):
        conn.execute(
            "SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true),"
            " set_config('statement_timeout', %s, true)",
            [f"{limit * 1000:.0f}ms"],
        )
        yield
