"""How far up nothing fresh is left, and nothing can come any more.

While somebody holds a transaction open, index entries of events that are gone cannot be removed, and whoever
looks for fresh events meets all of them and finds each gone. A look that begins at a floor passes them by.

An event is fresh from its INSERT on, and has its position from there. Whoever inserts has locked the table
in ROW EXCLUSIVE mode before he is given a position, until his transaction is over. So: a position that was
given is known, then those are listed who have that lock; when all of them are gone, what has that position
or a smaller one is committed or never will be; and the first fresh event that is seen after that is the
floor. A transaction that is prepared keeps its locks, and its name in the list of them.

Rows with positions that the table has not given (OVERRIDING SYSTEM VALUE) are not foreseen here. Whoever
looks from a floor looks without one now and then.
"""

from typing import Any

from psycopg import Connection

from relay.store.claim_sql import FRESH
from relay.store.connection import Table
from relay.store.sqltext import fill, regclass, verbatim

LOWEST = -(2**63)

# A name is that of one transaction for good.
_WRITERS = """pg_catalog.pg_locks WHERE locktype = 'relation' AND relation = {OUTBOX}
  AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
  AND mode = 'RowExclusiveLock'"""
LIST_WRITERS = "SELECT coalesce(array_agg(DISTINCT virtualtransaction), '{{}}') FROM {WRITERS}"
STILL_THERE = "SELECT EXISTS (SELECT FROM {WRITERS} AND virtualtransaction = ANY(%(writers)s))"
FIRST_FRESH = "SELECT min(o.id) FROM {outbox} o WHERE {FRESH} AND o.id >= %(floor)s"


class Floor:
    """Rises step by step; `value` is where looks may begin."""

    def __init__(self, table: Table) -> None:
        words = {"WRITERS": _WRITERS, "OUTBOX": verbatim(regclass(table.name, "outbox")), "FRESH": FRESH}
        self._list, self._still_there, self._first_fresh = (
            fill(text, table.name, **words) for text in (LIST_WRITERS, STILL_THERE, FIRST_FRESH)
        )
        self.value = LOWEST
        self._given = LOWEST
        self._writers: list[str] | None = None  # since when `_given` was known

    def rise(self, conn: Connection[Any], given: int) -> None:
        """As far as is known by now. `given`: a position that some event has which was seen."""
        if self._writers is None:
            self._given, self._writers = given, self._ask(conn, self._list)
        if self._ask(conn, self._still_there, writers=self._writers):
            return
        first = self._ask(conn, self._first_fresh, floor=self.value)
        self._writers = None
        known = self._given + 1
        self.value = max(self.value, known if first is None else min(first, known))

    def _ask(self, conn: Connection[Any], question: str, **values: Any) -> Any:
        """In a statement of its own: each must see what has happened since the one before."""
        row = conn.execute(question, values).fetchone()
        assert row is not None
        return row[0]
