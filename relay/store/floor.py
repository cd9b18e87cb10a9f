"""How far up nothing fresh is left, and nothing can come any more.

While somebody holds a transaction open, index entries of events that are gone cannot be removed, and whoever
looks for fresh events meets all of them and finds each gone. A look that begins at a floor passes them by.

An event is fresh from its INSERT on, and has its position from there. Whoever inserts has locked the table
in ROW EXCLUSIVE mode before he is given a position, until his transaction is over. So: a position that was
given is known, then those are listed who have that lock; when all of them are gone, what has that position
or a smaller one is committed or never will be; and the first fresh event that is seen after that is the
floor. A transaction that is prepared keeps its locks, and its name in the list of them
until the server starts anew.

Rows with positions that the table has not given (OVERRIDING SYSTEM VALUE), and redriven ones whose
`created_at` is yet to come, are not foreseen here. Whoever looks from a floor looks without one now and then.

A crash of the server may bring back what a settle had moved, and give a prepared transaction another name.
Connections end with it, and with them this. Behind a pooler they do not, so there is no floor.
"""

from collections.abc import Iterator
from typing import Any

from psycopg import Connection

from relay.scan import BUCKETS, PARTS
from relay.store.claim_sql import FRESH
from relay.store.connection import StoreConnection, Table, settings_hold
from relay.store.sqltext import fill, regclass, verbatim

LOWEST = -(2**63)

# A name is that of one transaction for good.
_WRITERS = """pg_catalog.pg_locks WHERE locktype = 'relation' AND relation = {OUTBOX}
  AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
  AND mode = 'RowExclusiveLock'"""
LIST_WRITERS = """
SELECT pg_postmaster_start_time(), coalesce(array_agg(DISTINCT virtualtransaction), '{{}}') FROM {WRITERS}
"""
STILL_THERE = """
SELECT pg_postmaster_start_time(), EXISTS (SELECT FROM {WRITERS} AND virtualtransaction = ANY(%(writers)s))
"""
FIRST_FRESH = """
SELECT min(o.id) FROM {outbox} o
WHERE {FRESH} AND o.id >= %(floor)s AND o.partition_bucket BETWEEN %(first)s AND %(last)s
"""


class Floor:
    """Rises step by step; `value` is where looks may begin."""

    def __init__(self, table: Table) -> None:
        words = {"WRITERS": _WRITERS, "OUTBOX": verbatim(regclass(table.name, "outbox")), "FRESH": FRESH}
        self._list, self._still_there, self._first_fresh = (
            fill(text, table.name, **words) for text in (LIST_WRITERS, STILL_THERE, FIRST_FRESH)
        )
        self.value = LOWEST
        self.stuck = True  # it did not rise the last time
        self._steps = self._rising()
        self._conn: Connection[Any] | None = None
        self._given = LOWEST

    def rise(self, conn: Connection[Any], given: int, *, steps: int = 1) -> None:
        """Go on finding out. `given`: a position that some event has which was seen.

        In small steps, PARTS for a look at all buckets: one at once would pass all that is dead since.
        """
        if isinstance(conn, StoreConnection) and conn.pooled:
            return
        self._conn, self._given = conn, given
        for _ in range(steps):
            next(self._steps)

    def _rising(self) -> Iterator[None]:
        while True:
            given = self._given
            server, writers = self._ask(self._list)
            while (still := self._ask(self._still_there, writers=writers)) == (server, True):
                self.stuck = True
                yield
            if still[0] != server:
                continue
            # One part of the buckets after the other: below `given` events only leave by now.
            lowest = given + 1
            for part in range(PARTS):
                first = part * BUCKETS // PARTS
                last = (part + 1) * BUCKETS // PARTS - 1
                (found,) = self._ask(self._first_fresh, floor=self.value, first=first, last=last)
                lowest = lowest if found is None else min(lowest, found)
                if part < PARTS - 1:
                    yield
            self.stuck = lowest <= self.value
            self.value = max(self.value, lowest)
            yield

    def _ask(self, question: str, **values: Any) -> tuple[Any, ...]:
        """In a statement of its own: each must see what has happened since the one before."""
        assert self._conn is not None
        with settings_hold(self._conn):
            row: tuple[Any, ...] | None = self._conn.execute(question, values).fetchone()
        assert row is not None
        return row
