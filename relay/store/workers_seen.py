"""The workers as an operator sees them: who lives, what each watches, holds, and how far it is behind.

Reads only, and each look has a time limit. What a worker watches is worked out as the workers do it
themselves; how far it is behind comes from a bounded number of events of each of its buckets.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import psycopg
from psycopg import Connection
from psycopg.rows import dict_row

from relay.ring import shares
from relay.store.claim_sql import FRESH, LATER
from relay.store.connection import Table, transaction
from relay.store.sqltext import fill
from relay.store.workers import HAS_LOCK

LAG_SECONDS = 5.0
ROWS_PER_BUCKET = 50

# connected: whether its session lives; null: it is behind a pooler, where only the heartbeat tells.
WORKERS = """
SELECT w.id, w.metadata ->> 'host' AS host, w.metadata -> 'pid' AS pid, w.metadata ->> 'version' AS version,
       w.metadata ->> 'publisher' AS publisher, w.metadata ->> 'destination' AS destination, w.status,
       w.started_at, w.last_seen_at,
       extract(epoch FROM clock_timestamp() - w.last_seen_at)::float8 AS silent_seconds,
       CASE WHEN w.status <> 'dead' AND (w.metadata ->> 'has_session')::boolean
            THEN {HAS_LOCK} END AS connected,
       coalesce(l.events, 0)::bigint AS in_flight,
       extract(epoch FROM clock_timestamp() - l.oldest)::float8 AS oldest_lease_seconds
FROM {workers} w CROSS JOIN LATERAL (
  SELECT sum(l.size) AS events, min(l.claimed_at) AS oldest FROM {leases} l WHERE l.claimed_by = w.id) l
ORDER BY w.status, w.started_at, w.id
"""


def workers(conn: Connection[Any], table: Table) -> list[dict[str, Any]]:
    """All that are registered, the living first; those that share the buckets with what they watch."""
    statement = fill(WORKERS, table.name, HAS_LOCK=HAS_LOCK)
    with transaction(conn):
        rows = conn.cursor(row_factory=dict_row).execute(statement, {"namespace": table.worker_locks})
        found = rows.fetchall()
    owned = shares([worker["id"] for worker in found if worker["status"] == "alive"])
    lags = _lags(conn, table) if owned else None
    for worker in found:
        buckets = owned.get(worker["id"], [])
        oldest, exact = (None, False) if lags is None else _worst(lags[bucket] for bucket in buckets)
        worker |= {"buckets": len(buckets), "lag_seconds": oldest, "lag_exact": exact}
    return found


class _Lag(NamedTuple):
    seconds: float | None
    exact: bool


# A delayed event does not age before its time.
LAGS = """
SELECT extract(epoch FROM clock_timestamp() - min(r.since) FILTER (
         WHERE r.status = 'pending' AND r.since <= clock_timestamp()))::float8,
       count(*) FILTER (WHERE r.fresh) < %(rows)s AND count(*) FILTER (WHERE NOT r.fresh) < %(rows)s
FROM generate_series(0, 1023) b(bucket) LEFT JOIN LATERAL (
  (SELECT true AS fresh, o.status, o.created_at AS since FROM {outbox} o
   WHERE {FRESH} AND o.partition_bucket = b.bucket LIMIT %(rows)s)
  UNION ALL
  (SELECT false, o.status, CASE WHEN o.attempts = 0 THEN o.available_at ELSE o.created_at END
   FROM {outbox} o WHERE {LATER} AND o.partition_bucket = b.bucket LIMIT %(rows)s)) r ON true
GROUP BY b.bucket ORDER BY b.bucket
"""


def _lags(conn: Connection[Any], table: Table) -> list[_Lag] | None:
    """For each bucket the age of its oldest pending event; None: that took too long."""
    try:
        with transaction(conn):
            conn.execute("SELECT set_config('statement_timeout', %s, true)", [f"{LAG_SECONDS * 1000:.0f}ms"])
            statement = fill(LAGS, table.name, FRESH=FRESH, LATER=LATER)
            rows = conn.execute(statement, {"rows": ROWS_PER_BUCKET + 1}).fetchall()
            return [_Lag(*row) for row in rows]
    except psycopg.errors.QueryCanceled:
        return None


def _worst(lags: Iterable[_Lag]) -> _Lag:
    seen = list(lags)
    ages = [lag.seconds for lag in seen if lag.seconds is not None]
    return _Lag(max(ages, default=None), all(lag.exact for lag in seen))
