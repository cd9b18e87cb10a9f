"""What a consumer does now and then beside consuming: forgets old marks, retries what operators asked for."""

import logging
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any

import psycopg
from psycopg import Connection

from relay.names import TableName
from relay.store.inbox import inbox_sweeps
from relay.store.sweep import Chore

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
PRUNE_SECONDS = 0.5
# For which messages may wait.
SECONDS = 0.05


class Housekeeping:
    def __init__(
        self,
        consumer: str,
        table: TableName,
        retention: timedelta | None,
        retry_one: Callable[[Connection[Any]], bool],
    ) -> None:
        self._chores = (
            [Chore(sweep, retention) for sweep in inbox_sweeps(table, retention, consumer)]
            if retention is not None
            else []
        )
        self._retry_one = retry_one
        self._next_look = 0.0
        self._next_prune = 0.0

    def tick(self, conn: Connection[Any]) -> None:
        """One small piece of work at most, so that messages need not wait."""
        now = monotonic()
        if now >= self._next_look:
            self._next_look = monotonic() + (0.0 if self._retry_one(conn) else LOOK_SECONDS)
        elif now >= self._next_prune:
            self._next_prune = now + PRUNE_SECONDS
            if chore := next((each for each in self._chores if each.due(now)), None):
                # To the end: one that always finds something must not keep the others from their turn.
                self._chores.remove(chore)
                self._chores.append(chore)
                self._prune(conn, chore)

    def _prune(self, conn: Connection[Any], chore: Chore) -> None:
        try:
            chore.run(conn, SECONDS)
        except psycopg.errors.InsufficientPrivilege as error:
            log.warning("old marks are not pruned: %s", error)
            self._chores.clear()
