"""Looks at the outbox from outside, for the screen and for the moment of the kill."""

from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from relay.demo.database import Database

LOOK = """
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
FROM {outbox} WHERE completed_at IS NULL
"""
IN_FLIGHT = "SELECT claimed_by, sum(size)::int FROM {leases} GROUP BY 1"
SHARES = "SELECT claimed_by, count(*) FROM {outbox} WHERE status = 'completed' GROUP BY 1"
WORKER = "SELECT id FROM {workers} WHERE (metadata ->> 'pid')::int = %s AND status <> 'dead'"
HELD = """
SELECT o.idempotency_key FROM {leases} l
CROSS JOIN LATERAL unnest(l.keys, l.firsts, l.lasts) u(k, first, last)
JOIN {outbox} o ON o.partition_key = u.k AND o.id BETWEEN u.first AND u.last
WHERE l.claimed_by = %s AND o.completed_at IS NULL
"""
NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
TAKEN_OVER = """
SELECT count(*), max(extract(epoch FROM completed_at))::float8 FROM {outbox}
WHERE idempotency_key = ANY(%s) AND status = 'completed' AND claimed_by <> %s
"""


@dataclass(frozen=True)
class Look:
    unpublished: int
    lag_seconds: float  # the age of the oldest event that is not published
    in_flight: dict[str, int]  # by worker
    published: dict[str, int]  # by worker


class Watch:
    """Holds one connection; used by one thread."""

    def __init__(self, database: Database, conn: Connection[Any]) -> None:
        self._database = database
        self._conn = conn

    def _rows(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._conn.execute(self._database.fill(text), parameters or None).fetchall()

    def look(self) -> Look:
        ((unpublished, lag),) = self._rows(LOOK)
        return Look(unpublished, lag, dict(self._rows(IN_FLIGHT)), dict(self._rows(SHARES)))

    def unpublished(self) -> int:
        return int(self._rows(LOOK)[0][0])

    def worker(self, pid: int) -> str | None:
        """The id of the worker that runs in this process, once it has registered."""
        rows = self._rows(WORKER, pid)
        return rows[0][0] if rows else None

    def held(self, worker: str) -> list[str]:
        """The ids of the events that the worker has claimed and not settled."""
        return [row[0] for row in self._rows(HELD, worker)]

    def now(self) -> float:
        """The database's clock, as Unix time."""
        return float(self._rows(NOW)[0][0])

    def taken_over(self, event_ids: list[str], worker: str) -> tuple[int, float | None]:
        """How many of these others than the worker have published, and when the last (Unix time)."""
        ((count, last),) = self._rows(TAKEN_OVER, event_ids, worker)
        return count, last
