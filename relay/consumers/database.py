"""A database that is away: how that is told from the fault of a message, and how it is awaited."""

import logging
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import Connection
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_never, wait_random_exponential

from relay.errors import RelayError
from relay.store.connection import connect_for_handlers

log = logging.getLogger(__name__)

# The server is up and cannot work: out of space, memory or connections, read-only, shutting down.
_UNWELL = ("53", "58", "57P", "25006")


class DatabaseAway(Exception):
    """What was raised, by the handler or beside it, was the database's fault."""


def is_away(conn: Connection[Any], error: Exception) -> bool:
    """Whether the database failed, not the message."""
    if conn.closed or isinstance(error, DatabaseAway):
        return True
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(_UNWELL)


def connect_again(
    url: str, purpose: str, rest: Callable[[float], None], is_stopping: Callable[[], bool]
) -> Connection[Any] | None:
    """Tries until it succeeds, with a rest after each attempt; None: the consumer is stopped."""
    for attempt in Retrying(
        # A server that is not well may take the connection and refuse its first statements.
        retry=retry_if_exception_type((RelayError, psycopg.Error)),
        wait=wait_random_exponential(multiplier=0.2, max=10),
        stop=stop_never,
        sleep=rest,
        before_sleep=_tell,
        reraise=True,
    ):
        if is_stopping():
            break
        with attempt:
            return connect_for_handlers(url, purpose)
    return None


def _tell(state: RetryCallState) -> None:
    log.warning("%s; trying again", state.outcome.exception() if state.outcome else "no connection")
