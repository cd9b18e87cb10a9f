"""Sessions that wait for each other, for tests of several transactions at once."""

import time
from typing import Any

import psycopg

PATIENCE = 30.0


def wait_until_blocked(database: str, waiting: psycopg.Connection[Any], *by: psycopg.Connection[Any]) -> None:
    """Return once the session `waiting` waits for a lock that one of the sessions `by` holds."""
    holders = {session.info.backend_pid for session in by}
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(database, autocommit=True) as observer:
        while time.monotonic() < deadline:
            row = observer.execute("SELECT pg_blocking_pids(%s)", [waiting.info.backend_pid]).fetchone()
            if row is not None and holders & set(row[0]):
                return
            time.sleep(0.005)
    raise AssertionError("the session was never blocked")
