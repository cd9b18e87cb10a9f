"""Finds the events that an operator's action is for, a round at a time, without holding anything.

A round is up to ROUND events in the order of an index: those parked longest first, then pending ones by
bucket and key. It is handed out in batches by bucket, key and position, so that of a key's events the
earlier one changes first, and a batch needs few locks. What is found is a hint: whoever changes it looks
again under the locks of its buckets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from psycopg import Connection
from psycopg.rows import class_row

from relay.errors import SettingsError
from relay.scan import BUCKETS_PER_CLAIM
from relay.store.claim_sql import FRESH, LATER
from relay.store.conditions import IN_FLIGHT, Status, conditions
from relay.store.connection import Table, transaction
from relay.store.sqltext import fill

Action: TypeAlias = Literal["retry", "skip"]

ROUND = 50_000
ROWS_PER_BATCH = 500

# Events that each action is for; the second of the pair: unless a status is named, only when named by id.
FOR: dict[Action, tuple[tuple[Status, ...], tuple[Status, ...]]] = {
    "retry": (("dead_letter", "failed"), ("pending",)),
    "skip": (("failed", "pending"), ()),
}
# A pending event is retried where it waits for that, not where its writer has delayed it.
WAITING = "(o.attempts > 0 OR o.losses > 0) AND o.available_at > clock_timestamp()"


@dataclass(frozen=True)
class Filter:
    """Which events an operator means: all that match, of those that the action is for."""

    ids: tuple[str, ...] = ()  # event_ids; empty: whatever the others say
    status: Status | None = None
    key: str | None = None
    event_type: str | None = None
    error: str | None = None  # a part of last_error, in any case
    since: datetime | None = None  # created at or after
    limit: int | None = None  # no more than so many, those parked longest first

    @property
    def is_empty(self) -> bool:
        """Whether it means every event."""
        named = (self.status, self.key, self.event_type, self.error, self.since)
        return not self.ids and all(value is None for value in named)

    def statuses(self, action: Action) -> tuple[Status, ...]:
        usual, named = FOR[action]
        if self.status is None:
            return usual + (named if self.ids else ())
        if self.status not in usual + named:
            allowed = ", ".join((usual + named)[:-1]) + f" or {(usual + named)[-1]}"
            raise SettingsError(f"{action} is for events that are {allowed}, not for {self.status} ones")
        return (self.status,)

    def parameters(self) -> dict[str, Any]:
        return {
            "ids": list(self.ids),
            "key": self.key,
            "event_type": self.event_type,
            "error": self.error,
            "since": self.since,
        }


class Candidate(NamedTuple):
    bucket: int
    key: str
    position: int
    event_id: str
    parked_at: datetime | None


class Source(NamedTuple):
    """One index that leads to candidates: which rows, in which order, from where on."""

    rows: str
    order: str
    after: str

    def place(self, last: Candidate) -> dict[str, Any]:
        return {"at": last.parked_at, "bucket": last.bucket, "lane": last.key, "position": last.position}


_LANE = "o.partition_bucket, o.partition_key, o.id"
_AFTER_LANE = f"({_LANE}) > (%(bucket)s::int, %(lane)s::text, %(position)s::bigint)"
BY_ID = Source("o.idempotency_key = ANY(%(ids)s::text[])", "o.idempotency_key", "false")
PARKED = Source(
    "o.parked_at IS NOT NULL",
    "o.parked_at, o.id",
    "(o.parked_at, o.id) > (%(at)s::timestamptz, %(position)s::bigint)",
)
FRESH_LANES = Source(f"{FRESH} AND o.parked_at IS NULL", _LANE, _AFTER_LANE)
LATER_LANES = Source(f"{LATER} AND o.parked_at IS NULL", _LANE, _AFTER_LANE)


def sources(action: Action, which: Filter, statuses: Sequence[Status]) -> list[Source]:
    if which.ids:
        return [BY_ID]
    found = [PARKED] if {"dead_letter", "failed"} & set(statuses) else []
    if {"pending", "processing"} & set(statuses):
        # What waits for its retry is not among the fresh ones.
        found += [LATER_LANES] if action == "retry" else [FRESH_LANES, LATER_LANES]
    return found


def matching(action: Action, which: Filter) -> str:
    """The condition that a row must meet beside being of the right status, bound as %(statuses)s."""
    where = ["o.status::text = ANY(%(statuses)s::text[])"]
    if action == "retry":
        where.append(f"(o.status <> 'pending' OR {WAITING})")
    where += conditions(key=which.key, event_type=which.event_type, error=which.error, since=which.since)
    return " AND ".join(where)


FIND = """
SELECT o.partition_bucket AS bucket, o.partition_key AS key, o.id AS position, o.idempotency_key AS event_id,
       o.parked_at
FROM {outbox} o WHERE {ROWS} AND {AFTER} AND {MATCHING} AND {AT_REST} ORDER BY {ORDER} LIMIT %(rows)s
"""


def batches(
    conn: Connection[Any], table: Table, action: Action, which: Filter
) -> Iterator[Sequence[Candidate]]:
    """Batches of events that matched when they were looked for, each small enough for one transaction."""
    statuses = which.statuses(action)
    left = which.limit
    for source in sources(action, which, statuses):
        place: dict[str, Any] | None = None
        while left is None or left > 0:
            rows = ROUND if left is None else min(ROUND, left)
            found = _round(conn, table, action, which, source, place, rows)
            if not found:
                break
            place = source.place(found[-1])
            left = None if left is None else left - len(found)
            yield from cut(sorted(found))
            if source is BY_ID or len(found) < rows:
                break


def _round(
    conn: Connection[Any],
    table: Table,
    action: Action,
    which: Filter,
    source: Source,
    place: dict[str, Any] | None,
    rows: int,
) -> list[Candidate]:
    statement = fill(
        FIND,
        table.name,
        ROWS=source.rows,
        ORDER=source.order,
        AFTER="true" if place is None else source.after,
        MATCHING=matching(action, which),
        # A redrive is told of what is in flight when it gets there, and why; a skip is not for it.
        AT_REST="true" if action == "retry" else f"NOT {IN_FLIGHT}",
    )
    bound = which.parameters() | {"statuses": list(which.statuses(action)), "rows": rows} | (place or {})
    with transaction(conn):
        return conn.cursor(row_factory=class_row(Candidate)).execute(statement, bound).fetchall()


def cut(found: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Runs of at most ROWS_PER_BATCH events in at most as many buckets as a claim locks."""
    start, buckets = 0, {candidate.bucket for candidate in found[:1]}
    for n, candidate in enumerate(found):
        full = n - start == ROWS_PER_BATCH
        if full or len(buckets | {candidate.bucket}) > BUCKETS_PER_CLAIM:
            yield found[start:n]
            start, buckets = n, set()
        buckets.add(candidate.bucket)
    if found:
        yield found[start:]
