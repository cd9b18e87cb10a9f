"""Writers for fault tests: transactions of a domain and its outbox, whatever happens to the server."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from relay import Outbox

KEYS = 8
EVENTS = 3


class Writer(threading.Thread):
    """Orders of its own, one transaction after another; reconnects by itself until it is stopped."""

    def __init__(self, database: str, name: str, pause: float) -> None:
        super().__init__(name=f"writer-{name}", daemon=True)
        self._database = database
        self._outbox = Outbox()
        self._pause = pause
        self._numbers = itertools.count()
        self._stopped = threading.Event()
        self.committed: list[str] = []  # the server said so
        self.in_doubt: list[str] = []  # it was about to, or did and could not say so
        self.interruptions = 0

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                with psycopg.connect(self._database, connect_timeout=5) as conn:
                    while not self._stopped.wait(self._pause):
                        self._write(conn)
            except psycopg.OperationalError:
                self.interruptions += 1
                time.sleep(0.1)

    def _write(self, conn: "psycopg.Connection[tuple]") -> None:
        number = next(self._numbers)
        order = f"order:{self.name}-{number % KEYS}"
        ids = [f"{self.name}-{number}-{n}" for n in range(EVENTS)]
        try:
            with conn.transaction():
                conn.execute(
                    "INSERT INTO orders VALUES (%s, 1)"
                    " ON CONFLICT (id) DO UPDATE SET changes = orders.changes + 1",
                    [order],
                )
                for event_id in ids:
                    self._outbox.emit(
                        conn, "OrderChanged", key=order, payload={"n": number}, event_id=event_id
                    )
        except psycopg.OperationalError:
            self.in_doubt += ids
            raise
        self.committed += ids

    def stop(self) -> None:
        self._stopped.set()
        self.join()


@contextmanager
def writing(database: str, writers: int = 2, pause: float = 0.02) -> Iterator[list[Writer]]:
    """Writers at work until the end."""
    with psycopg.connect(database) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, changes int NOT NULL)")
    started = [Writer(database, str(number), pause) for number in range(writers)]
    for writer in started:
        writer.start()
    try:
        yield started
    finally:
        for writer in started:
            writer.stop()
