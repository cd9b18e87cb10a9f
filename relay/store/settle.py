"""Records what became of a claim, once, under its fence.

The lease row is the fence: a settle deletes it by generation and worker while it has not expired, and
changes rows only through what that DELETE returned. One statement, all or nothing: with the lease
gone, nothing is touched and LeaseLost says so.

A claim that lasts is written on its rows: mark() makes them `processing`, for people who look. It needs the
same lease, and changes nothing about whose they are.

Rows are found where the claim saw them. Where they have moved since (VACUUM FULL, an UPDATE by
hand) the settle fails as a whole, locates them in their lanes and runs again.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from psycopg import Connection

from relay.errors import LeaseLost, Overtaken
from relay.settlement import Settlement
from relay.store.belt import fails, overtaken_is_told
from relay.store.claim_sql import FRESH, LATER
from relay.store.connection import Table, settings_hold
from relay.store.look import Claim
from relay.store.sqltext import Statement, fill, storable

log = logging.getLogger(__name__)

Completion: TypeAlias = Literal["keep", "delete", "archive"]

# Every event of the claim was delivered: the shape of nearly all settles.
DELETE_ALL = """
WITH {FENCE},
gone AS (
  DELETE FROM {outbox} o
  WHERE o.ctid = ANY(ARRAY(SELECT unnest(%(tids)s::tid[]) FROM lease)) AND {MINE} RETURNING o.id),
settled AS (SELECT FROM gone JOIN unnest(%(ids)s::int8[]) mine(id) ON mine.id = gone.id)
{COUNTS}
"""
# The same where they are kept or archived.
KEEP_ALL = """
WITH {FENCE}, {DONE},
settled AS (
  UPDATE {outbox} o SET {CLAIMED}, status = 'completed', completed_at = clock_timestamp(),
         lease_expires_at = NULL, losses = 0, receipt = act.receipt
  FROM act WHERE {HERE} RETURNING 1)
{COUNTS}
"""
ARCHIVE_ALL = """
WITH {FENCE}, {DONE},
settled AS (DELETE FROM {outbox} o USING act WHERE {HERE} RETURNING {GONE}),
{ARCHIVED} FROM settled)
{COUNTS}
"""
# The others take one entry per event of the claim, in position order.
KEEP = """
WITH {FENCE}, {ACTS},
settled AS ({UPDATE} RETURNING 1)
{COUNTS}
"""
DELETE = """
WITH {FENCE}, {ACTS},
gone AS (
  DELETE FROM {outbox} o USING act WHERE {HERE} AND act.act = 'complete' RETURNING 1),
others AS ({UPDATE} AND act.act <> 'complete' RETURNING 1),
settled AS (SELECT FROM gone UNION ALL SELECT FROM others)
{COUNTS}
"""
ARCHIVE = """
WITH {FENCE}, {ACTS},
gone AS (
  DELETE FROM {outbox} o USING act WHERE {HERE} AND act.act = 'complete' RETURNING {GONE}),
{ARCHIVED} FROM gone),
others AS ({UPDATE} AND act.act <> 'complete' RETURNING 1),
settled AS (SELECT FROM gone UNION ALL SELECT FROM others)
{COUNTS}
"""
# Where the rows of a claim are that are not where it left them.
LOCATE = """
SELECT array_agg(run.tid ORDER BY mine.n)::text
FROM unnest(%(ids)s::int8[]) WITH ORDINALITY mine(id, n) LEFT JOIN (
  SELECT run.* FROM {leases} l {RUNS} WHERE l.generation = %(generation)s) run ON run.id = mine.id
"""
MARK = """
WITH lease AS (
  SELECT size, claimed_at, expires_at FROM {leases}
  WHERE generation = %(generation)s AND claimed_by = %(worker)s AND expires_at > clock_timestamp()
  FOR UPDATE),
act AS MATERIALIZED (
  SELECT u.*, lease.* FROM lease
  CROSS JOIN LATERAL unnest(%(tids)s::tid[], %(ids)s::int8[]) WITH ORDINALITY u(tid, id, n)),
settled AS (
  UPDATE {outbox} o SET {CLAIMED}, status = 'processing', lease_expires_at = act.expires_at
  FROM act WHERE {PLACE} AND o.status = 'pending' RETURNING o.ctid AS tid, act.n)
SELECT array_agg(tid ORDER BY n)::text, {SHORT}
FROM (SELECT (SELECT size FROM lease) AS size, (SELECT count(*) FROM settled) AS changed) c, settled
GROUP BY size, changed
"""

FRAGMENTS = {
    "FENCE": """
lease AS (
  DELETE FROM {leases} WHERE generation = %(generation)s AND claimed_by = %(worker)s
    AND expires_at > clock_timestamp() RETURNING size, claimed_at)""",
    "MINE": "(o.status = 'pending' OR o.status = 'processing' AND o.lease_generation = %(generation)s"
    " AND o.claimed_by = %(worker)s)",
    # What the claim itself has not written on its rows. An event that is marked has its attempt already.
    "CLAIMED": "claimed_by = %(worker)s, claimed_at = act.claimed_at, lease_generation = %(generation)s,"
    " attempts = o.attempts + {UNCOUNTED}",
    "UNCOUNTED": "CASE o.status WHEN 'pending' THEN 1 ELSE 0 END",
    "ACTS": """
act AS MATERIALIZED (
  SELECT u.*, lease.claimed_at FROM lease CROSS JOIN LATERAL unnest(
    %(tids)s::tid[], %(ids)s::int8[], %(acts)s::text[], %(delays)s::float8[], %(errors)s::text[],
    %(receipts)s::text[]
  ) u(tid, id, act, delay, error, receipt))""",
    "DONE": """
act AS MATERIALIZED (
  SELECT u.*, lease.claimed_at FROM lease CROSS JOIN LATERAL unnest(
    %(tids)s::tid[], %(ids)s::int8[], string_to_array(%(receipts)s, E'\\n', '')) u(tid, id, receipt))""",
    "ARCHIVED": """
archived AS (
  INSERT INTO {archive} (id, {COLUMNS}, status, completed_at, claimed_by, claimed_at, lease_generation,
                         attempts, receipt)
  SELECT id, {COLUMNS}, 'completed', clock_timestamp(), %(worker)s, since, %(generation)s, tried, given""",
    "GONE": "o.id, {COLUMNS}, act.claimed_at AS since, o.attempts + {UNCOUNTED} AS tried,"
    " act.receipt AS given",
    # The id too: rows of one lease can change places (CLUSTER). In a form that no index serves.
    "PLACE": "o.ctid = act.tid AND o.id IS NOT DISTINCT FROM act.id",
    "HERE": "{PLACE} AND {MINE}",
    "UPDATE": """
  UPDATE {outbox} o SET
    status = CASE act.act WHEN 'complete' THEN 'completed' WHEN 'dead_letter' THEN 'dead_letter'
             WHEN 'block' THEN 'failed' ELSE 'pending' END::{status},
    completed_at = CASE WHEN act.act IN ('complete', 'dead_letter') THEN clock_timestamp() END,
    parked_at = CASE WHEN act.act IN ('dead_letter', 'block') THEN clock_timestamp() END,
    available_at = CASE act.act WHEN 'retry' THEN clock_timestamp() + act.delay * interval '1 second'
                   WHEN 'block' THEN 'infinity' ELSE o.available_at END,
    attempts = o.attempts + {UNCOUNTED} - CASE act.act WHEN 'release' THEN 1 ELSE 0 END,
    claimed_at = act.claimed_at, lease_generation = %(generation)s,
    losses = CASE act.act WHEN 'release' THEN o.losses ELSE 0 END,
    last_error = coalesce(act.error, o.last_error), receipt = act.receipt, lease_expires_at = NULL,
    claimed_by = CASE WHEN act.act NOT IN ('retry', 'release') THEN %(worker)s::text END
  FROM act WHERE {HERE}""",
    "SHORT": fails("size <> changed", "a claim of %% events found %% of them in place", "size, changed"),
    "COUNTS": """
SELECT size, {SHORT}
FROM (SELECT (SELECT size FROM lease) AS size, (SELECT count(*) FROM settled) AS changed) c""",
    # What stays as the writer left it.
    "COLUMNS": "created_at, available_at, partition_bucket, max_attempts, losses, partition_key, event_type,"
    " idempotency_key, destination, parked_at, redriven_at, last_error, headers, payload",
    # The rows of the lease `l`, by their lanes.
    "RUNS": """
CROSS JOIN LATERAL unnest(l.buckets, l.keys, l.firsts, l.lasts) u(b, k, first, last)
CROSS JOIN LATERAL (
  SELECT o.ctid AS tid, o.id FROM {outbox} o WHERE {FRESH} AND {OF_RUN}
  UNION ALL
  SELECT o.ctid, o.id FROM {outbox} o WHERE {LATER} AND {OF_RUN}) run""",
    "OF_RUN": "o.partition_bucket = u.b AND o.partition_key = u.k AND o.id BETWEEN u.first AND u.last"
    " AND (o.status = 'pending' OR o.status = 'processing' AND o.lease_generation = l.generation)",
    "FRESH": FRESH,
    "LATER": LATER,
}


class Settling:
    """The settle statements of one outbox, for one worker."""

    def __init__(self, table: Table, worker: str, completion: Completion) -> None:
        each = {"keep": KEEP, "delete": DELETE, "archive": ARCHIVE}[completion]
        complete_all = {"keep": KEEP_ALL, "delete": DELETE_ALL, "archive": ARCHIVE_ALL}[completion]
        self._each = Statement(fill(each, table.name, **FRAGMENTS))
        self._complete_all = Statement(fill(complete_all, table.name, **FRAGMENTS))
        self._keeps_receipts = completion != "delete"
        self._locate = fill(LOCATE, table.name, **FRAGMENTS)
        self._mark = Statement(fill(MARK, table.name, **FRAGMENTS))
        self._worker = worker

    def settle(self, conn: Connection[Any], claim: Claim, settlements: Sequence[Settlement]) -> None:
        """Record one settlement per event of the claim, in the same order; LeaseLost if it is too late."""
        if len(settlements) != len(claim.events):
            raise ValueError(f"{len(settlements)} settlements for {len(claim.events)} events")
        statement, parameters = self._statement(claim, settlements)
        try:
            self._run(conn, statement, parameters | {"tids": claim.tids})
        except Overtaken as moved:
            log.warning("%s; looking for them again", moved)
            with settings_hold(conn):
                row = conn.execute(self._locate, parameters).fetchone()
            self._run(conn, statement, parameters | {"tids": row[0] if row else None})

    def mark(self, conn: Connection[Any], claim: Claim) -> Claim:
        """Write on the rows that they are in flight; the claim as it is to be settled then.

        Where the lease is gone, or a row is not where it was, nothing is written: the settle will see.
        """
        parameters = self._fence(claim) | {"tids": claim.tids}
        try:
            with settings_hold(conn), overtaken_is_told():
                row = self._mark.run(conn, parameters).fetchone()
        except Overtaken as moved:
            log.warning("%s; they stay unmarked", moved)
            return claim
        return replace(claim, tids=row[0]) if row else claim

    def _statement(self, claim: Claim, settlements: Sequence[Settlement]) -> tuple[Statement, dict[str, Any]]:
        fence = self._fence(claim)
        if all(s.act == "complete" for s in settlements):
            if not self._keeps_receipts:
                return self._complete_all, fence
            # One text is handed over faster than many.
            receipts = "\n".join([s.receipt or "" for s in settlements])
            if receipts.count("\n") == len(settlements) - 1:
                return self._complete_all, fence | {"receipts": storable(receipts)}
        return self._each, fence | {
            "acts": [s.act for s in settlements],
            "delays": [s.delay for s in settlements],
            "errors": [storable(s.error) for s in settlements],
            "receipts": [storable(s.receipt) for s in settlements],
        }

    def _fence(self, claim: Claim) -> dict[str, Any]:
        return {"generation": claim.generation, "worker": self._worker, "ids": claim.ids}

    def _run(self, conn: Connection[Any], statement: Statement, parameters: dict[str, Any]) -> None:
        with settings_hold(conn), overtaken_is_told():
            row = statement.run(conn, parameters).fetchone()
        if row is None or row[0] is None:
            raise LeaseLost(f"the lease of generation {parameters['generation']} is gone")
