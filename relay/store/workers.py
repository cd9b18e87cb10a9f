"""The registry of workers: who is alive, and whose leases may be taken back.

A worker holds a session lock on the connection it registered with. When its process dies the server
drops the lock at once, and others see that within a second; one that is cut off or frozen is noticed
by its heartbeat after `stale_seconds`. A worker that was declared dead finds out at its next heartbeat
and must register anew under another id.

Burying a worker ends its sessions. One that froze in the middle of a claim may hold locks of buckets in a
transaction that is not idle for the server: it waits for the rest of a pipeline, or to send a result.
"""

from collections.abc import Sequence
from typing import Any

from psycopg import Connection
from psycopg.types.json import Jsonb

from relay.store.connection import Table, transaction
from relay.store.sqltext import fill

# The lock is the session's; behind a pooler there is none, and the heartbeat alone tells.
REGISTER = """
WITH held AS MATERIALIZED (
  SELECT CASE WHEN %(has_session)s THEN pg_advisory_lock(%(namespace)s, hashtext(%(worker)s)) END)
INSERT INTO {workers} (id, status, metadata)
SELECT %(worker)s, 'alive', %(metadata)s || jsonb_build_object('has_session', %(has_session)s) FROM held
"""
HEARTBEAT = (
    "UPDATE {workers} SET last_seen_at = clock_timestamp(), status = %s WHERE id = %s AND status <> 'dead'"
)
# Stamped by the database's clock: whoever looks works out rates from two of them.
TELL = """
UPDATE {workers} SET metadata = metadata || jsonb_build_object(
  'tally', %(tally)s || jsonb_build_object('at', extract(epoch FROM clock_timestamp())::float8))
WHERE id = %(worker)s AND status <> 'dead'
"""
DEREGISTER = """
DELETE FROM {workers} w WHERE w.id = %s AND NOT EXISTS (SELECT FROM {leases} l WHERE l.claimed_by = w.id)
"""
RETIRE = "UPDATE {workers} SET status = 'dead' WHERE id = %s"
# Whether the worker's session lock is held; pg_locks shows the two signed halves of such a lock as oids.
HAS_LOCK = """EXISTS (
      SELECT FROM pg_locks k WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 2
      AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND k.classid = %(namespace)s::bigint::bit(32)::int8::oid
      AND k.objid = hashtext(w.id)::bigint::bit(32)::int8::oid)"""
SILENT = """w.status <> 'dead' AND (
    w.last_seen_at < clock_timestamp() - %(stale_seconds)s * interval '1 second'
    OR (w.metadata ->> 'has_session')::boolean AND NOT {HAS_LOCK})"""
LONG_DEAD = """w.status = 'dead' AND w.last_seen_at < clock_timestamp() - interval '1 day'
    AND NOT EXISTS (SELECT FROM {leases} l WHERE l.claimed_by = w.id)"""
# Leases of workers that are not (or no longer) registered as living are up for grabs.
LEFT_BEHIND = "NOT EXISTS (SELECT FROM {workers} w WHERE w.id = l.claimed_by AND w.status <> 'dead')"
# A process id may be another session's by now: that began later. Sessions of other roles are not ours to end.
BURY = """
WITH buried AS (
  UPDATE {workers} w SET status = 'dead' WHERE {SILENT} RETURNING w.id, w.started_at, w.metadata),
ended AS (
  SELECT pg_terminate_backend(a.pid) FROM buried b
  JOIN pg_stat_activity a ON b.metadata -> 'sessions' @> to_jsonb(a.pid)
  WHERE a.usename = current_user AND a.backend_start < b.started_at),
forgotten AS (DELETE FROM {workers} w WHERE {LONG_DEAD})
SELECT array_agg(DISTINCT l.claimed_by), (SELECT count(*) FROM ended) FROM {leases} l
WHERE {LEFT_BEHIND} OR l.claimed_by IN (SELECT id FROM buried)
"""
ALL_WELL = """
SELECT NOT EXISTS (SELECT FROM {workers} w WHERE {SILENT} OR {LONG_DEAD}) AND NOT EXISTS (
  SELECT FROM {leases} l WHERE l.expires_at <= clock_timestamp() OR {LEFT_BEHIND})
"""
# One holder, as long as it renews in time. Where two took a free post at once, the later by name gives way.
# Lazily committed: after a crash of the server somebody takes the post anew.
KEEP_HOUSE = """
WITH lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE {workers} w SET housekeeper_until = clock_timestamp() + %(seconds)s * interval '1 second' FROM lazily
WHERE w.id = %(worker)s AND w.status <> 'dead' AND NOT EXISTS (
  SELECT FROM {workers} o
  WHERE o.id <> w.id AND o.status <> 'dead' AND o.housekeeper_until > clock_timestamp()
    AND (o.id < w.id OR w.housekeeper_until IS NULL OR w.housekeeper_until <= clock_timestamp()))
"""
CLAIMING = "SELECT id FROM {workers} WHERE status = 'alive' ORDER BY id"
OTHERS = "SELECT id, metadata FROM {workers} WHERE status <> 'dead'"


class Registry:
    def __init__(self, table: Table, stale_seconds: float) -> None:
        self._namespace = table.worker_locks
        self._signs = {"namespace": table.worker_locks, "stale_seconds": stale_seconds}
        self._register = fill(REGISTER, table.name)
        self._heartbeat = fill(HEARTBEAT, table.name)
        self._tell = fill(TELL, table.name)
        self._deregister = fill(DEREGISTER, table.name)
        self._retire = fill(RETIRE, table.name)
        words = {"SILENT": SILENT, "LONG_DEAD": LONG_DEAD, "LEFT_BEHIND": LEFT_BEHIND, "HAS_LOCK": HAS_LOCK}
        self._bury = fill(BURY, table.name, **words)
        self._all_well = fill(ALL_WELL, table.name, **words)
        self._others = fill(OTHERS, table.name)
        self._claiming = fill(CLAIMING, table.name)
        self._keep_house = fill(KEEP_HOUSE, table.name)

    def register(
        self, conn: Connection[Any], worker: str, metadata: dict[str, Any], sessions: Sequence[int] = ()
    ) -> None:
        """Register on the connection that will hold the worker's session lock.

        `sessions`: process ids of all its sessions, as far as they are its own.
        """
        parameters = {
            "namespace": self._namespace,
            "worker": worker,
            "metadata": Jsonb(metadata | {"sessions": list(sessions)}),
            "has_session": not getattr(conn, "pooled", False),
        }
        with transaction(conn):
            conn.execute(self._register, parameters)

    def heartbeat(self, conn: Connection[Any], worker: str, status: str = "alive") -> bool:
        """Say that the worker lives; False: others have declared it dead."""
        with transaction(conn):
            return conn.execute(self._heartbeat, [status, worker]).rowcount == 1

    def tell(self, conn: Connection[Any], worker: str, tally: dict[str, Any]) -> None:
        """Let those who look at the workers know what this one has done."""
        with transaction(conn):
            conn.execute(self._tell, {"worker": worker, "tally": Jsonb(tally)})

    def deregister(self, conn: Connection[Any], worker: str) -> None:
        """Leave; an entry that some lease still names stays until that is taken back."""
        with transaction(conn):
            conn.execute(self._deregister, [worker])

    def retire(self, conn: Connection[Any], worker: str) -> None:
        """Declare dead who is known to be, such as an earlier life of the caller: its leases come back."""
        with transaction(conn):
            conn.execute(self._retire, [worker])

    def all_well(self, conn: Connection[Any]) -> bool:
        """Nobody is to be buried or forgotten, and no lease to be taken back."""
        return conn.execute(self._all_well, self._signs).fetchone() == (True,)

    def bury(self, conn: Connection[Any]) -> list[str]:
        """Declare the silent dead and end their sessions; the ids whose leases are to be taken back."""
        row = conn.execute(self._bury, self._signs).fetchone()
        return (row and row[0]) or []

    def claiming(self, conn: Connection[Any]) -> list[str]:
        """Those who share the buckets: alive and not on their way out."""
        return [row[0] for row in conn.execute(self._claiming)]

    def keep_house(self, conn: Connection[Any], worker: str, seconds: float) -> bool:
        """Hold or take the housekeeper's post for so long; False: another worker has it.

        One statement outside of any transaction block: a worker that freezes holds nobody up.
        """
        return conn.execute(self._keep_house, {"worker": worker, "seconds": seconds}).rowcount == 1

    def living(self, conn: Connection[Any]) -> dict[str, dict[str, Any]]:
        return dict(conn.execute(self._others).fetchall())
