"""Finds what is old by its place: a hand goes around a table, some blocks at a time.

No index tells at a price that stays small which rows are old. A BRIN range that ever held an old row says so
for good, also where its space was used again; a B-tree would be paid for by every completion. The hand reads
each block once a lap, so a step costs the same on a table of any size and of any history. Where it stands is
kept in memory: a hand that is lost costs a part of a lap.
"""

from collections.abc import Mapping
from datetime import timedelta
from math import inf
from time import monotonic
from typing import Any

from psycopg import Connection

from relay.reading import Count
from relay.store.connection import transaction

STEP_BLOCKS = 256
# Blocks that are read before a rest, and how long a lap may take as a part of what it is about.
BLOCKS_AT_ONCE = 2048
LAP_OF_AGE = 1 / 24
SHORTEST_LAP = 60.0
LONGEST_REST = 60.0
# A row that somebody has locked must not hold up whoever sweeps.
STEP_SECONDS = 5

BY_PLACE = "ctid >= %(first)s::tid AND ctid < %(end)s::tid"
SIZE = """
SELECT pg_relation_size(%(table)s::regclass) / current_setting('block_size')::int,
       set_config('statement_timeout', %(limit)s, true)
"""


class Sweep:
    """Goes around `table` with a statement about the rows of {BY_PLACE}."""

    def __init__(self, table: str, statement: str, values: Mapping[str, Any]) -> None:
        self._table = table
        self._statement = statement
        self._values = values
        self._at = 0
        self.blocks = 0  # of the table, when it was last looked at

    def step(self, conn: Connection[Any]) -> int:
        """What the statement did to the next blocks: rows that it changed, or returned."""
        with transaction(conn):
            row = conn.execute(SIZE, {"table": self._table, "limit": f"{STEP_SECONDS}s"}).fetchone()
            assert row is not None
            self.blocks = row[0]
            first = self._at if self._at < self.blocks else 0
            end = first + STEP_BLOCKS
            places = {"first": f"({first},0)", "end": f"({end},0)"}
            done = conn.execute(self._statement, {**self._values, **places}).rowcount
        self._at = end if end < self.blocks else 0
        return done

    @property
    def came_around(self) -> bool:
        return self._at == 0


def counted(conn: Connection[Any], sweep: Sweep, rows: int, seconds: float) -> Count:
    """What a lap finds; up to so many rows, and for so long."""
    found, until = 0, monotonic() + seconds
    while True:
        found += sweep.step(conn)
        if found > rows:
            return Count(rows, exact=False)
        if sweep.came_around:
            return Count(found)
        if monotonic() > until:
            return Count(found, exact=False)


class Chore:
    """A sweep that is made a little at a time, so that a lap takes a part of the age that it is about."""

    def __init__(self, sweep: Sweep, age: timedelta) -> None:
        self._sweep = sweep
        self._lap = max(age.total_seconds() * LAP_OF_AGE, SHORTEST_LAP)
        self._next = -inf

    def due(self, now: float) -> bool:
        return now >= self._next

    def run(self, conn: Connection[Any], seconds: float) -> int:
        """For so long at most; rows that are gone."""
        gone, blocks, until = 0, 0, monotonic() + seconds
        while True:
            of_step = self._sweep.step(conn)
            gone += of_step
            blocks += STEP_BLOCKS
            enough = blocks >= BLOCKS_AT_ONCE and not of_step
            if enough or self._sweep.came_around or monotonic() >= until:
                break
        rest = self._lap * blocks / max(self._sweep.blocks, 1)
        self._next = monotonic() + (0.0 if gone else min(rest, LONGEST_REST))
        return gone
