"""Relay processes for tests: started, killed, frozen and waited for."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).parent.parent.parent


def wait_until(condition: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain: {what or condition}"
        time.sleep(0.02)


class RelayProcess:
    """One `relay run`; what it published is in `lines`, what it logged in `log`."""

    def __init__(
        self,
        database: str,
        directory: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        number = len(list(directory.glob("relay-*.out")))
        self._out = directory / f"relay-{number}.out"
        self._err = directory / f"relay-{number}.err"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        variables = inherited | {
            "PYTHONPATH": str(ROOT),
            "RELAY_DATABASE_URL": database,
            "RELAY_PUBLISHER": "stdout",
            "RELAY_HTTP": "127.0.0.1:0",
        }
        variables |= {f"RELAY_{name.upper()}": str(value) for name, value in settings.items()}
        variables |= environment or {}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "relay", "run", *arguments], stdout=out, stderr=err, env=variables
            )

    @property
    def lines(self) -> list[dict[str, Any]]:
        text = self._out.read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def log(self) -> str:
        return self._err.read_text()

    def wait(self, seconds: float = 120.0) -> int:
        return self.process.wait(seconds)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextmanager
def relays(directory: Path) -> Iterator[Callable[..., RelayProcess]]:
    """A starter of relays, all of which are gone at the end."""
    started: list[RelayProcess] = []

    def start(database: str, *arguments: str, **settings: Any) -> RelayProcess:
        started.append(RelayProcess(database, directory, *arguments, **settings))
        return started[-1]

    try:
        yield start
    finally:
        for relay in started:
            relay.kill()


def insert(database: str, events: int, keys: int, prefix: str = "evt") -> None:
    """Commit a backlog whose event ids are `prefix`-1 … in insertion order."""
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload, idempotency_key)"
            " SELECT 'order:' || (i %% %s), 'OrderPaid', jsonb_build_object('n', i), %s || '-' || i"
            " FROM generate_series(1, %s) i",
            [keys, prefix, events],
        )


def statuses(database: str) -> dict[str, int]:
    with psycopg.connect(database) as conn:
        return dict(conn.execute("SELECT status::text, count(*) FROM outbox GROUP BY 1").fetchall())
