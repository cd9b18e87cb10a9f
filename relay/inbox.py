"""Lets a consumer apply each event once, however often it arrives.

Guarantees: of all transactions that accept the same event for the same consumer, exactly one that commits
gets True. A second one waits until the first has ended, then gets False if it committed, True if it rolled
back. The mark lives and dies with the caller's transaction; nothing here commits, and where the mark would
be committed by itself it is refused (NotInTransaction).
"""

from typing import Any

from relay import validation
from relay.adapters import Parameters, Statement, async_executor, executor
from relay.names import TableName
from relay.store.sqltext import fill_inbox

ACCEPT = """
INSERT INTO {inbox} (consumer, event_id) VALUES (%(consumer)s, %(event_id)s) ON CONFLICT DO NOTHING
"""


class Inbox:
    """What one consumer has applied. Holds no connection and may be shared by threads."""

    def __init__(self, consumer: str, table: str = "inbox_dedupe") -> None:
        self._consumer = validation.text("consumer", consumer)
        self._accept = Statement(fill_inbox(ACCEPT, TableName.parse(table)))

    def accept(self, conn: Any, event_id: str) -> bool:
        """Whether to apply the event now, in this transaction; False: this consumer has done so already.

        conn: a connection or cursor of psycopg, a Connection or Session of SQLAlchemy, Django's connection.
        """
        return executor(conn)(self._accept, self._mark(event_id)) == 1

    async def accept_async(self, conn: Any, event_id: str) -> bool:
        """`accept` for an asynchronous connection, cursor or session of psycopg or SQLAlchemy."""
        return await async_executor(conn)(self._accept, self._mark(event_id)) == 1

    def _mark(self, event_id: str) -> Parameters:
        return {"consumer": self._consumer, "event_id": validation.text("event_id", event_id)}
