"""The pages' own way to the database: few connections, each with a time limit, none of them the relay's.

Who finds all seats taken waits a moment and is then told to come back: any number of open pages costs the
database no more than these. A connection that breaks is made anew; while there is none, the failure is
remembered for a moment, so that requests do not queue up behind connection attempts.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

import psycopg

from relay.errors import RelayError
from relay.settings import Settings
from relay.store.connection import StoreConnection, Table, connect, resolve
from relay.store.migrate import require_current

SEATS = 2
WAIT_SECONDS = 5.0
STATEMENT_SECONDS = 5.0
REMEMBER_FAILURE_SECONDS = 2.0

R = TypeVar("R")


class Busy(RelayError):
    """All seats are taken."""


class Unreachable(RelayError):
    """There is no way to the outbox now; the text says why."""


class Desk:
    def __init__(self, settings: Settings, purpose: str = "pages", seats: int = SEATS) -> None:
        self._settings = settings
        self._purpose = purpose
        self._seats = threading.BoundedSemaphore(seats)
        self._lock = threading.Lock()
        self._idle: list[tuple[StoreConnection, Table]] = []
        self._failure: tuple[float, str] = (0.0, "")
        self._closed = False

    def ask(self, work: Callable[[StoreConnection, Table], R]) -> R:
        """What `work` finds, on a connection that is its own for that long."""
        with self._seat():
            conn, table = self._take()
            try:
                answer = work(conn, table)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                # These kinds are also those of locks, deadlocks and time limits, which leave it whole.
                lost = conn.broken or conn.closed
                self._give_back(conn, table)
                if not lost:
                    raise
                raise Unreachable(f"lost the connection to the database: {sentence(error)}") from error
            except BaseException:
                self._give_back(conn, table)
                raise
            self._give_back(conn, table)
            return answer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for conn, _ in idle:
            conn.close()

    @contextmanager
    def _seat(self) -> Iterator[None]:
        if not self._seats.acquire(timeout=WAIT_SECONDS):
            raise Busy("many look at once: the pages ask the database two things at a time")
        try:
            yield
        finally:
            self._seats.release()

    def _take(self) -> tuple[StoreConnection, Table]:
        with self._lock:
            while self._idle:
                conn, table = self._idle.pop()
                if not conn.broken:
                    return conn, table
                conn.close()
            at, why = self._failure
        if monotonic() - at < REMEMBER_FAILURE_SECONDS and why:
            raise Unreachable(why)
        try:
            return self._connect()
        except (psycopg.Error, RelayError) as error:
            with self._lock:
                self._failure = (monotonic(), sentence(error))
            raise Unreachable(sentence(error)) from error

    def _connect(self) -> tuple[StoreConnection, Table]:
        conn = connect(
            self._settings.database_url.get_secret_value(),
            self._purpose,
            statement_timeout=f"{STATEMENT_SECONDS * 1000:.0f}ms",
            lock_timeout="1s",
        )
        try:
            require_current(conn, self._settings.table_name)
            return conn, resolve(conn, self._settings.table_name)
        except BaseException:
            conn.close()
            raise

    def _give_back(self, conn: StoreConnection, table: Table) -> None:
        with self._lock:
            if not (self._closed or conn.broken or conn.closed):
                self._idle.append((conn, table))
                return
        conn.close()


def sentence(error: BaseException) -> str:
    """What the error says in its first line, and what helps where that is known."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    match error:
        case psycopg.errors.InsufficientPrivilege():
            return f"{said}: the database user of these pages lacks a right: see 'relay sql --roles'"
        case psycopg.errors.LockNotAvailable() | psycopg.errors.DeadlockDetected():
            return f"{said}: somebody else works on the same tables: try again"
    return said
