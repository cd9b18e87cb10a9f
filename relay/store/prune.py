"""Deletes what is past its retention, a little at a time: completed and archived events, the inbox's memory.

A dead letter is never deleted unless a retention for it was set.
"""

from datetime import timedelta
from typing import Any

from psycopg import Connection

from relay.names import TableName
from relay.store.connection import Table, transaction
from relay.store.inbox import prune_inbox
from relay.store.sqltext import fill

ROWS_PER_PRUNE = 2000

# Found by BRIN indexes, which know bitmap scans alone; deleted by place.
_DELETE = """
DELETE FROM {table} WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM {table} WHERE {old} LIMIT %(rows)s)) AND {old}
"""
_OLD = "{column} < clock_timestamp() - %(age)s"
COMPLETED = _DELETE.replace("{table}", "{outbox}").replace(
    "{old}", "completed_at < clock_timestamp() - %(age)s AND status = 'completed'"
)
DEAD_LETTERS = _DELETE.replace("{table}", "{outbox}").replace(
    "{old}", "parked_at < clock_timestamp() - %(age)s AND status = 'dead_letter'"
)
ARCHIVED = _DELETE.replace("{table}", "{archive}").replace("{old}", _OLD.replace("{column}", "completed_at"))


class Pruning:
    def __init__(
        self,
        table: Table,
        retention: timedelta | None,
        dead_letter_retention: timedelta | None,
        inbox_retention: timedelta | None,
    ) -> None:
        self._inbox = TableName(table.name.schema, "inbox_dedupe")
        self._inbox_retention = inbox_retention
        self._statements = [
            (statement, age)
            for statement, age in (
                (fill(COMPLETED, table.name), retention),
                (fill(ARCHIVED, table.name), retention),
                (fill(DEAD_LETTERS, table.name), dead_letter_retention),
            )
            if age is not None
        ]

    def prune(self, conn: Connection[Any]) -> int:
        """Delete a few rows of each kind; how many."""
        gone = 0
        for statement, age in self._statements:
            with transaction(conn):
                conn.execute("SET LOCAL enable_bitmapscan = on")
                gone += conn.execute(statement, {"age": age, "rows": ROWS_PER_PRUNE}).rowcount
        if self._inbox_retention is not None:
            gone += prune_inbox(conn, self._inbox, self._inbox_retention)
        return gone
