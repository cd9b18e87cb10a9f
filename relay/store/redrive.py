"""Sends parked events out again and gives up events that wait, while relays run.

A batch is one transaction: it locks the buckets of its events as a claim does, looks at them again, changes
those that are still as the action wants them, and writes one audit row for each. Batches that were not begun
leave no trace, so an operator may stop between any two of them.

A redrive leaves out every event whose key is in flight at that moment: a claim that does not know of it must
not stand behind it in the lane. What was `failed` heads its lane again, and order is as if it had never
failed. A dead letter has been overtaken by its successors: it goes out now, marked by `redriven_at`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import Connection

from relay.errors import RelayError
from relay.store.candidates import Action, Candidate, Filter, batches, matching, sources
from relay.store.claim_sql import RUN_IN_FLIGHT, RUNS_OF_LEASE
from relay.store.conditions import IN_FLIGHT, STATUS
from relay.store.connection import Table, transaction
from relay.store.sqltext import fill, storable

__all__ = ["Action", "Filter", "Preview", "Progress", "preview", "retry", "skip"]

ROWS_FOR_PREVIEW = 100_000
PREVIEW_SECONDS = 30.0


@dataclass(frozen=True)
class Preview:
    """What an action would come to now. Not exact: there are more than were counted."""

    events: int  # that it would change
    in_flight: int  # that match, and would be left out
    exact: bool
    others: dict[str, str] = field(default_factory=dict)  # named by id, and why not: their status, or unknown


@dataclass(frozen=True)
class Progress:
    """How far an action has come, after a batch."""

    changed: int = 0
    in_flight: int = 0  # left out: their key (to retry) or they themselves (to skip) were in flight
    gone: int = 0  # were no longer what they had been when they were looked for

    @property
    def seen(self) -> int:
        return self.changed + self.in_flight + self.gone


COUNT = """
WITH busy AS MATERIALIZED (SELECT {RUN_IN_FLIGHT} FROM {leases} l CROSS JOIN LATERAL {RUNS_OF_LEASE}),
found AS MATERIALIZED (
  SELECT o.partition_key AS key, o.id FROM {outbox} o WHERE {ROWS} AND {MATCHING} LIMIT %(rows)s)
SELECT count(*), count(busy.k) FROM found f LEFT JOIN busy ON {IN_FLIGHT}
"""
NAMED = """
SELECT u.id, coalesce({STATUS}, 'unknown'), coalesce({MATCHING} AND NOT {UNDER_WAY}, false)
FROM unnest(%(ids)s::text[]) u(id) LEFT JOIN {outbox} o ON o.idempotency_key = u.id
"""
# No two leases name one key. A redrive minds the key, a skip the event itself.
_IN_FLIGHT = {"retry": "busy.k = f.key", "skip": "busy.k = f.key AND f.id BETWEEN busy.first AND busy.last"}
_LEASES = {"RUN_IN_FLIGHT": RUN_IN_FLIGHT, "RUNS_OF_LEASE": RUNS_OF_LEASE}


def preview(
    conn: Connection[Any], table: Table, action: Action, which: Filter, rows: int = ROWS_FOR_PREVIEW
) -> Preview:
    """What the action would change now, counted up to so many rows of each kind."""
    statuses = which.statuses(action)
    if action == "skip":
        statuses = (*statuses, "processing")
    bound = which.parameters() | {"statuses": list(statuses), "rows": rows + 1}
    events = in_flight = 0
    exact = True
    try:
        with transaction(conn):
            limit = f"{PREVIEW_SECONDS * 1000:.0f}ms"
            conn.execute("SELECT set_config('statement_timeout', %s, true)", [limit])
            for source in sources(action, which, statuses):
                words = {"ROWS": source.rows, "MATCHING": matching(action, which), **_LEASES}
                statement = fill(COUNT, table.name, **words, IN_FLIGHT=_IN_FLIGHT[action])
                ((matched, busy),) = conn.execute(statement, bound).fetchall()
                exact = exact and matched <= rows
                events, in_flight = events + matched - busy, in_flight + busy
            others = _others(conn, table, action, which) if which.ids else {}
    except psycopg.errors.QueryCanceled as error:
        raise RelayError(
            f"counting the events took longer than {PREVIEW_SECONDS:g} s and was given up: "
            "name a status or a key, or fewer events"
        ) from error
    if which.limit is not None and events > which.limit:
        events, exact = which.limit, True
    return Preview(events, in_flight, exact, others)


def _others(conn: Connection[Any], table: Table, action: Action, which: Filter) -> dict[str, str]:
    bound = which.parameters() | {"statuses": list(which.statuses(action))}
    words = {"STATUS": STATUS, "UNDER_WAY": IN_FLIGHT, "MATCHING": matching(action, which)}
    rows = conn.execute(fill(NAMED, table.name, **words), bound)
    return {event_id: status for event_id, status, matches in rows if not matches}


# In an earlier statement than the change, whose snapshot must be younger than the locks.
LOCK = "SELECT pg_advisory_xact_lock(%(namespace)s, b) FROM unnest(%(buckets)s::int[]) b"
FOUND = """busy AS MATERIALIZED (
  SELECT {RUN_IN_FLIGHT} FROM {leases} l CROSS JOIN LATERAL {RUNS_OF_LEASE}
  WHERE u.b = ANY(%(buckets)s::int[])),
matched AS MATERIALIZED (
  SELECT o.ctid AS tid, o.id, o.idempotency_key AS event_id, o.partition_key AS key, o.status, o.attempts
  FROM {outbox} o WHERE o.idempotency_key = ANY(%(ids)s::text[]) AND {MATCHING}),
found AS MATERIALIZED (
  SELECT f.*, busy.k IS NOT NULL AS in_flight FROM matched f LEFT JOIN busy ON {IN_FLIGHT})"""
# What is redriven is not fresh: available after it was created, also where the clock was set back since.
NOW = """greatest(clock_timestamp(),
  least(o.created_at, clock_timestamp() + interval '1 minute') + interval '1 microsecond')"""
RETRY = """
WITH {FOUND},
changed AS (
  UPDATE {outbox} o SET status = 'pending', attempts = 0, losses = 0, available_at = {NOW},
         completed_at = NULL, parked_at = NULL, claimed_by = NULL, lease_expires_at = NULL,
         redriven_at = CASE WHEN f.status = 'dead_letter' THEN clock_timestamp() ELSE o.redriven_at END
  FROM found f WHERE o.ctid = f.tid AND o.status = f.status AND NOT f.in_flight
  RETURNING f.event_id, f.key, f.status, f.attempts),
{RECORDED}
SELECT (SELECT count(*) FROM changed), count(*) FILTER (WHERE in_flight) FROM found
"""
SKIP = """
WITH {FOUND},
changed AS (
  UPDATE {outbox} o SET status = 'dead_letter', completed_at = clock_timestamp(),
         parked_at = clock_timestamp(),
         last_error = %(said)s::text || coalesce('; before: ' || o.last_error, '')
  FROM found f WHERE o.ctid = f.tid AND o.status = f.status AND NOT f.in_flight
  RETURNING f.event_id, f.key, f.status, f.attempts),
{RECORDED}
SELECT (SELECT count(*) FROM changed), count(*) FILTER (WHERE in_flight) FROM found
"""
RECORDED = """
recorded AS (
  INSERT INTO {audit} (actor, action, event_id, details)
  SELECT %(actor)s, %(action)s, c.event_id, jsonb_build_object(
    'key', c.key, 'from', c.status, 'attempts', c.attempts, 'reason', %(reason)s::text)
  FROM changed c)"""


def retry(
    conn: Connection[Any], table: Table, which: Filter, *, actor: str, reason: str | None = None
) -> Iterator[Progress]:
    """Redrive what matches: no attempts, due now, its last error kept. Yields after each batch."""
    words = {"actor": storable(actor), "reason": storable(reason), "statuses": list(which.statuses("retry"))}
    return _act(conn, table, "retry", RETRY, which, words)


def skip(
    conn: Connection[Any], table: Table, which: Filter, *, actor: str, reason: str
) -> Iterator[Progress]:
    """Give up what matches: it becomes a dead letter, and its key goes on. Yields after each batch."""
    words = {
        "actor": storable(actor),
        "reason": storable(reason),
        "said": storable(f"skipped by {actor}: {reason}"),
        "statuses": [*which.statuses("skip"), "processing"],
    }
    return _act(conn, table, "skip", SKIP, which, words)


def _act(
    conn: Connection[Any], table: Table, action: Action, statement: str, which: Filter, given: dict[str, Any]
) -> Iterator[Progress]:
    words = {"FOUND": FOUND, "IN_FLIGHT": _IN_FLIGHT[action], "RECORDED": RECORDED, "NOW": NOW, **_LEASES}
    filled = fill(statement, table.name, **words, MATCHING=matching(action, which))
    bound = which.parameters() | given | {"action": action}
    done = Progress()
    for batch in batches(conn, table, action, which):
        changed, in_flight = _change(conn, table, filled, batch, bound)
        gone = len(batch) - changed - in_flight
        done = Progress(done.changed + changed, done.in_flight + in_flight, done.gone + gone)
        yield done


def _change(
    conn: Connection[Any], table: Table, statement: str, batch: Sequence[Candidate], bound: dict[str, Any]
) -> tuple[int, int]:
    buckets = sorted({candidate.bucket for candidate in batch})
    with transaction(conn):
        conn.execute(LOCK, {"namespace": table.bucket_locks, "buckets": buckets})
        ids = [candidate.event_id for candidate in batch]
        row = conn.execute(statement, bound | {"ids": ids, "buckets": buckets}).fetchone()
    assert row is not None
    changed, in_flight = row
    return changed, in_flight
