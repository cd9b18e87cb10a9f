"""Deletes what is past its retention, a little at a time: completed and archived events, the inbox's memory.

A dead letter is never deleted unless a retention for it was set.
"""

from datetime import timedelta
from time import monotonic
from typing import Any

from psycopg import Connection

from relay.names import TableName
from relay.store.connection import Table, transaction
from relay.store.inbox import inbox_sweeps
from relay.store.sqltext import fill
from relay.store.sweep import BY_PLACE, Chore, Sweep

# One second in four at most is spent on what is old, however much there is.
SECONDS = 0.25
ROWS_PER_PRUNE = 2000

COMPLETED = f"""
DELETE FROM {{outbox}} WHERE {BY_PLACE} AND completed_at < now() - %(age)s AND status = 'completed'
"""
ARCHIVED = f"DELETE FROM {{archive}} WHERE {BY_PLACE} AND completed_at < now() - %(age)s"
# These are few, and an index has them.
DEAD_LETTERS = """
DELETE FROM {outbox} WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM {outbox} WHERE parked_at < now() - %(age)s AND status = 'dead_letter' LIMIT %(rows)s))
  AND parked_at < now() - %(age)s AND status = 'dead_letter'
"""


class Pruning:
    def __init__(
        self,
        table: Table,
        retention: timedelta | None,
        dead_letter_retention: timedelta | None,
        inbox_retention: timedelta | None,
    ) -> None:
        self._dead_letters = fill(DEAD_LETTERS, table.name)
        self._dead_letter_retention = dead_letter_retention
        self._chores: list[Chore] = []
        if retention is not None:
            for place, statement in (("{outbox}", COMPLETED), ("{archive}", ARCHIVED)):
                swept = fill(place, table.name), fill(statement, table.name)
                self._chores.append(Chore(Sweep(*swept, {"age": retention}), retention))
        if inbox_retention is not None:
            inbox = TableName(table.name.schema, "inbox_dedupe")
            self._chores += [Chore(each, inbox_retention) for each in inbox_sweeps(inbox, inbox_retention)]

    def prune(self, conn: Connection[Any]) -> int:
        """Delete some of each kind for which it is time; how many."""
        due = [chore for chore in self._chores if chore.due(monotonic())]
        gone = sum(chore.run(conn, SECONDS / len(due)) for chore in due)
        if self._dead_letter_retention is not None:
            with transaction(conn):
                bound = {"age": self._dead_letter_retention, "rows": ROWS_PER_PRUNE}
                gone += conn.execute(self._dead_letters, bound).rowcount
        return gone
