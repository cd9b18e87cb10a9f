"""Takes events back from leases that ran out and from workers that are gone.

Its own transaction, one lease at a time or a few, skipping those that a settle holds at this moment.
Claims never take over expired rows themselves: a zombie's settle could commit some of them meanwhile.

A lost lease is counted on its events (`losses`): the first time they come back at once, after that
with a delay. It is held against an event as an attempt only where the event was alone in its lease;
in company nobody knows which one did it, and the claim isolates such events until one is alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from relay.store.connection import Table, transaction
from relay.store.settle import FRAGMENTS
from relay.store.sqltext import fill

LEASES_PER_REAP = 20

# This one counted, whether or not it is written on the row yet.
_ATTEMPTS = "(o.attempts + {UNCOUNTED})"
_SPENT = "(f.size = 1 AND {ATTEMPTS} >= o.max_attempts)"
_BACKOFF = "least(power(2, least(o.losses, 12)), 3600) * (0.5 + random() / 2)"

# In an earlier statement than the rest, whose snapshot must be younger than the locks: a mark that was
# committed just before has moved the rows.
VICTIMS = """
SELECT generation FROM {leases}
WHERE expires_at <= clock_timestamp() OR claimed_by = ANY(%(gone)s::text[])
ORDER BY generation LIMIT %(leases)s FOR UPDATE SKIP LOCKED
"""
REAP = """
WITH lost AS (
  DELETE FROM {leases} WHERE generation = ANY(%(victims)s::int8[])
  RETURNING generation, claimed_by, claimed_at, size, buckets, keys, firsts, lasts, ids),
own AS MATERIALIZED (SELECT l.generation, own.id FROM lost l CROSS JOIN LATERAL unnest(l.ids) own(id)),
found AS MATERIALIZED (
  SELECT l.generation, l.claimed_by, l.claimed_at, l.size, run.tid FROM lost l {RUNS}
  WHERE (l.generation, run.id) IN (SELECT own.generation, own.id FROM own)),
taken_back AS (
  UPDATE {outbox} o SET
    status = CASE WHEN {SPENT} THEN %(exhausted)s ELSE 'pending' END::{status},
    completed_at = CASE WHEN {SPENT} AND %(exhausted)s = 'dead_letter' THEN clock_timestamp() END,
    parked_at = CASE WHEN {SPENT} THEN clock_timestamp() END,
    available_at = CASE
      WHEN {SPENT} AND %(exhausted)s = 'failed' THEN 'infinity'
      WHEN o.losses = 0 THEN o.available_at
      ELSE clock_timestamp() + {BACKOFF} * interval '1 second' END,
    attempts = {ATTEMPTS} - CASE WHEN f.size = 1 THEN 0 ELSE 1 END,
    losses = o.losses + 1,
    last_error = 'lease lost: ' || f.claimed_by || ' vanished or took too long while publishing',
    claimed_by = NULL, claimed_at = f.claimed_at, lease_generation = f.generation, lease_expires_at = NULL
  FROM found f WHERE o.ctid = f.tid
    AND (o.status = 'pending' OR o.status = 'processing' AND o.lease_generation = f.generation)
  RETURNING o.parked_at IS NOT NULL AS parked)
SELECT (SELECT count(*) FROM lost), (SELECT coalesce(sum(size), 0) FROM lost),
       count(*), count(*) FILTER (WHERE parked) FROM taken_back
"""


@dataclass(frozen=True)
class Reaped:
    leases: int
    expected: int
    events: int
    parked: int


class Reaping:
    def __init__(self, table: Table, on_exhausted: str) -> None:
        self._reap = fill(REAP, table.name, **FRAGMENTS, SPENT=_SPENT, ATTEMPTS=_ATTEMPTS, BACKOFF=_BACKOFF)
        self._victims = fill(VICTIMS, table.name)
        self._exhausted = "failed" if on_exhausted == "block" else "dead_letter"

    def reap(self, conn: Connection[Any], gone: Sequence[str] = ()) -> Reaped:
        """Take back a few leases that expired or belong to the workers `gone`."""
        with transaction(conn):
            found = conn.execute(self._victims, {"gone": list(gone), "leases": LEASES_PER_REAP}).fetchall()
            if not found:
                return Reaped(0, 0, 0, 0)
            victims = [generation for (generation,) in found]
            row = conn.execute(self._reap, {"victims": victims, "exhausted": self._exhausted}).fetchone()
        assert row is not None
        return Reaped(*row)
