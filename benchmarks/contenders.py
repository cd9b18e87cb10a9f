"""Who is compared: how each is set up, filled with the same events, and started.

A contender owns its table and its processes. `fill` commits the backlog, `start` begins to publish it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import psycopg

from relay.demo.postgres import PostgresServer
from relay.demo.processes import ServerError, launch

KEYS = 20_000
PAYLOAD_BYTES = 200
# About 200 bytes as PostgreSQL prints it.
PAYLOAD = f"jsonb_build_object('order_id', i, 'paid_at', now(), 'note', repeat('x', {PAYLOAD_BYTES - 70}))"
STOP_SECONDS = 30.0


@dataclass
class Scene:
    """Where a contender works in one run."""

    server: PostgresServer
    kafka: str
    topic: str
    stack: ExitStack  # what is ended and removed with the run
    directory: Path = field(init=False)

    def __post_init__(self) -> None:
        made = tempfile.TemporaryDirectory(prefix="outbox-relay-benchmark-")
        self.directory = Path(self.stack.enter_context(made))

    @property
    def url(self) -> str:
        return self.server.url()

    def run(
        self, argv: Sequence[str], name: str, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """A process of the run, whose output goes to `name`.log."""
        log: IO[bytes] = self.stack.enter_context((self.directory / f"{name}.log").open("wb"))
        process = launch(argv, log, cwd=self.directory, env=environment(env or {}))
        self.stack.callback(end, process)
        return process

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")


class Contender(Protocol):
    logical: bool  # it reads the WAL
    to_kafka: bool
    # An INSERT of one event that returns its position: key, type and payload are its parameters.
    insert: str

    @property
    def name(self) -> str: ...

    def prepare(self, scene: Scene) -> None:
        """Make its tables."""

    def fill(self, scene: Scene, events: int) -> range:
        """Commit a backlog; the positions of its events."""

    def start(self, scene: Scene) -> "list[subprocess.Popen[bytes]]":
        """Begin to publish, and go on until ended."""


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process's, without the settings of somebody's relay."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")} | dict(more)


def end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def sql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def span(url: str, table: str, column: str) -> range:
    with psycopg.connect(url) as conn:
        query = f"SELECT min({column}), max({column}), count(*) FROM {table}"
        row = conn.execute(query.encode()).fetchone()
    assert row is not None
    if row[1] - row[0] + 1 != row[2]:
        raise ServerError(f"The positions in {table} have gaps.")
    return range(row[0], row[1] + 1)


@dataclass
class OutboxRelay:
    completion: str = "delete"
    processes: int = 1
    logical = False
    to_kafka = True
    insert = """
        INSERT INTO outbox (partition_key, event_type, payload) VALUES (%s, %s, %s::jsonb) RETURNING id
    """

    @property
    def name(self) -> str:
        several = f", {self.processes} processes" if self.processes > 1 else ""
        return f"Outbox Relay, {self.completion}{several}"

    def prepare(self, scene: Scene) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "relay", "migrate"],
            env=environment(self._environment(scene)),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerError(done.stderr)

    def fill(self, scene: Scene, events: int) -> range:
        sql(
            scene.url,
            "INSERT INTO outbox (partition_key, event_type, payload)"
            f" SELECT 'order:' || (i % {KEYS}), 'OrderPaid', {PAYLOAD} FROM generate_series(1, {events}) i",
            "VACUUM (ANALYZE) outbox",
        )
        return span(scene.url, "outbox", "id")

    def start(self, scene: Scene) -> "list[subprocess.Popen[bytes]]":
        argv = [sys.executable, "-m", "relay", "run"]
        return [
            scene.run(argv, f"relay-{number}", self._environment(scene)) for number in range(self.processes)
        ]

    def _environment(self, scene: Scene) -> dict[str, str]:
        return {
            "RELAY_DATABASE_URL": scene.url,
            "RELAY_PUBLISHER": "kafka",
            "RELAY_KAFKA__BOOTSTRAP_SERVERS": scene.kafka,
            "RELAY_DESTINATION": scene.topic,
            "RELAY_COMPLETION": self.completion,
            "RELAY_HTTP": "127.0.0.1:0",
        }
