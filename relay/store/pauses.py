"""Breakers: pauses that the relay itself sets and lifts, shared by all workers through their table.

A breaker opens when a destination fails and holds its events until a time that moves out with each failure.
When that time has come, one worker wins the probe and publishes a single event: its outcome closes the
breaker or moves the time out again. Operators' pauses are theirs alone and never touched here.
"""

from typing import Any

from psycopg import Connection

from relay.pause import Subject
from relay.store.connection import Table, transaction
from relay.store.sqltext import fill, storable

LONGEST_SECONDS = 30.0

# Many batches meet the same failure: only the one that comes when the time is up counts as another.
OPEN = """
INSERT INTO {pauses} AS p (scope, value, origin, reason, paused_by, until)
VALUES (%(scope)s, %(value)s, 'breaker', %(reason)s, %(worker)s,
        clock_timestamp() + greatest(1, %(at_least)s) * interval '1 second')
ON CONFLICT (scope, value, origin) DO UPDATE SET
  reason = excluded.reason, paused_by = excluded.paused_by, failures = p.failures + 1,
  until = clock_timestamp()
    + greatest(least(power(2, least(p.failures, 12)), %(longest)s), %(at_least)s) * interval '1 second'
WHERE p.until <= clock_timestamp() OR p.paused_by = %(probing)s
RETURNING p.failures, extract(epoch FROM p.until - clock_timestamp())::float8
"""
PROBE = """
UPDATE {pauses} SET until = clock_timestamp() + %(seconds)s * interval '1 second', paused_by = %(probing)s
WHERE scope = %(scope)s AND value = %(value)s AND origin = 'breaker' AND until <= clock_timestamp()
"""
CLOSE = "DELETE FROM {pauses} WHERE scope = %(scope)s AND value = %(value)s AND origin = 'breaker'"


class Breakers:
    def __init__(self, table: Table, worker: str) -> None:
        self._open = fill(OPEN, table.name)
        self._probe = fill(PROBE, table.name)
        self._close = fill(CLOSE, table.name)
        self._worker = worker
        self._probing = f"probe by {worker}"

    def open(
        self, conn: Connection[Any], subject: Subject, reason: str, at_least: float = 0.0
    ) -> tuple[int, float] | None:
        """Failures in a row and seconds until the next probe; None: it was open already."""
        parameters = {"reason": storable(reason), "at_least": at_least, "longest": LONGEST_SECONDS}
        with transaction(conn):
            row = conn.execute(self._open, self._named(subject) | parameters).fetchone()
        return (row[0], row[1]) if row else None

    def probe(self, conn: Connection[Any], subject: Subject, seconds: float) -> bool:
        """Win the right to publish one event to see; the others hold on for `seconds`."""
        with transaction(conn):
            return conn.execute(self._probe, self._named(subject) | {"seconds": seconds}).rowcount == 1

    def close(self, conn: Connection[Any], subject: Subject) -> bool:
        with transaction(conn):
            return conn.execute(self._close, self._named(subject)).rowcount == 1

    def _named(self, subject: Subject) -> dict[str, Any]:
        return {
            "scope": subject.scope,
            "value": subject.value,
            "worker": self._worker,
            "probing": self._probing,
        }
