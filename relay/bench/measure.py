"""What a stretch of work cost: CPU of everybody involved, WAL, dead rows."""

import os
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from psycopg import Connection

from relay.bench.local_processes import PROC, family_cpu

# Of the bench's own schema; a TOAST table belongs to one of its tables.
ROWS = """
SELECT coalesce(sum(n_tup_upd + n_tup_del), 0), coalesce(sum(n_tup_upd), 0), coalesce(sum(n_tup_hot_upd), 0)
FROM pg_stat_all_tables s
WHERE s.schemaname = %(schema)s OR s.relid IN (
  SELECT c.reltoastrelid FROM pg_class c WHERE c.relnamespace = to_regnamespace(%(schema)s))
"""
BACKENDS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'outbox-relay %'
  AND application_name NOT LIKE 'outbox-relay bench%'
"""


@dataclass(frozen=True)
class Reading:
    """Totals at one moment; None: that server is not on this machine."""

    at: float
    database_cpu: float | None
    broker_cpu: float | None
    machine_cpu: float | None  # of all processes, and what the host took from this machine
    own_cpu: float
    wal: int
    dead: int
    updated: int
    hot: int


@dataclass(frozen=True)
class Cost:
    """What happened between two readings, and what the relay's processes said of themselves."""

    seconds: float
    relay_cpu: float
    database_cpu: float | None
    broker_cpu: float | None
    other_share: float | None  # of the machine's CPU that went to processes that had no part in it
    peak_rss: int | None
    wal_bytes: int
    dead_rows: int
    hot_share: float | None  # of the updates


class Meter:
    """Reads the totals. `postmaster`, `broker`: their processes, where they run here."""

    def __init__(
        self, conn: Connection[Any], schema: str, postmaster: int | None, broker: int | None
    ) -> None:
        self._conn = conn
        self._schema = schema
        self._postmaster = postmaster
        self._broker = broker

    def read(self) -> Reading:
        self._conn.execute("SELECT pg_stat_force_next_flush()")
        row = self._conn.execute(ROWS, {"schema": self._schema}).fetchone()
        lsn = self._conn.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        assert lsn is not None
        own = os.times()
        return Reading(
            monotonic(),
            family_cpu(self._postmaster),
            family_cpu(self._broker),
            _machine_cpu(),
            own.user + own.system,
            int(lsn[0]),
            *map(int, row),
        )

    def settle(self) -> None:
        """Wait, off the clock, until the server has accounted for the backends that have ended."""
        deadline = monotonic() + 5
        while monotonic() < deadline:
            row = self._conn.execute(BACKENDS).fetchone()
            if row and row[0] == 0:
                break
            sleep(0.01)
        sleep(0.3)  # gone from the view, the process may still be ending

    def cost(
        self, before: Reading, after: Reading, relay_cpu: float, rss: int | None, besides: float = 0.0
    ) -> Cost:
        """`besides`: CPU seconds of others that have a part in it."""
        updated = after.updated - before.updated
        database, broker = (
            _difference(getattr(before, name), getattr(after, name))
            for name in ("database_cpu", "broker_cpu")
        )
        return Cost(
            seconds=after.at - before.at,
            relay_cpu=relay_cpu,
            database_cpu=database,
            broker_cpu=broker,
            other_share=_others(before, after, relay_cpu + besides + (database or 0.0) + (broker or 0.0)),
            peak_rss=rss,
            wal_bytes=after.wal - before.wal,
            dead_rows=after.dead - before.dead,
            hot_share=(after.hot - before.hot) / updated if updated else None,
        )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _others(before: Reading, after: Reading, involved: float) -> float | None:
    busy = _difference(before.machine_cpu, after.machine_cpu)
    if busy is None:
        return None
    involved += after.own_cpu - before.own_cpu
    return max(0.0, busy - involved) / ((after.at - before.at) * (os.cpu_count() or 1))


def _machine_cpu() -> float | None:
    try:
        fields = (PROC / "stat").read_text().split(maxsplit=9)[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _wait, _irq, _softirq, stolen = map(int, fields)
    return (user + nice + system + stolen) / 100.0
