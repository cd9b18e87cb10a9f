"""What a consumer does now and then beside consuming: forgets old marks, retries what operators asked for."""

import logging
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any

import psycopg
from psycopg import Connection

from relay.names import TableName
from relay.store.inbox import prune_inbox

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
PRUNE_SECONDS = 60.0


class Housekeeping:
    def __init__(
        self,
        consumer: str,
        table: TableName,
        retention: timedelta | None,
        retry_one: Callable[[Connection[Any]], bool],
    ) -> None:
        self._consumer = consumer
        self._table = table
        self._retention = retention
        self._retry_one = retry_one
        self._next_look = 0.0
        self._next_prune = 0.0

    def tick(self, conn: Connection[Any]) -> None:
        """One small piece of work at most, so that messages need not wait."""
        now = monotonic()
        if now >= self._next_look:
            self._next_look = monotonic() + (0.0 if self._retry_one(conn) else LOOK_SECONDS)
        elif self._retention is not None and now >= self._next_prune:
            gone = self._prune(conn, self._retention)
            self._next_prune = monotonic() + (LOOK_SECONDS if gone else PRUNE_SECONDS)

    def _prune(self, conn: Connection[Any], age: timedelta) -> int:
        try:
            return prune_inbox(conn, self._table, age, self._consumer)
        except psycopg.errors.InsufficientPrivilege as error:
            log.warning("old marks are not pruned: %s", error)
            self._retention = None
            return 0
