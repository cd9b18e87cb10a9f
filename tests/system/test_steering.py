"""Operators steer running relays: what is paused stops within a second, and goes on when it is resumed."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.system.relays import ROOT, RelayProcess, wait_until

Start = Callable[..., RelayProcess]
A_SECOND = timedelta(seconds=1)


def steer(database: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "relay", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"RELAY_DATABASE_URL": database, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def value(database: str, query: str) -> Any:
    with psycopg.connect(database) as conn:
        row = conn.execute(query).fetchone()
    assert row is not None
    return row[0]


@contextmanager
def writing(database: str) -> Iterator[None]:
    """A writer that goes on all the time: two types of events for each of ten keys of its own."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(database, autocommit=True) as conn:
            while not stop.wait(0.02):
                conn.execute(
                    "INSERT INTO outbox (partition_key, event_type, destination, payload)"
                    " SELECT t || ':' || i, t, 'to-' || t, '{}'"
                    " FROM generate_series(0, 9) i, unnest('{paid,shipped}'::text[]) t"
                )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize(
    "arguments,held",
    [
        (["--all"], "true"),
        (["--destination", "to-paid"], "destination = 'to-paid'"),
        (["--type", "paid"], "event_type = 'paid'"),
        (["--key", "paid:3"], "partition_key = 'paid:3'"),
    ],
)
def test_what_is_paused_stops_within_a_second_and_goes_on_when_resumed(
    relay: Start, database: str, arguments: list[str], held: str
) -> None:
    worker = relay(database)
    flowing = f"SELECT count(*) FROM outbox WHERE {held} AND completed_at IS NOT NULL"
    others = f"SELECT count(*) FROM outbox WHERE NOT ({held}) AND completed_at IS NOT NULL"
    waiting = f"SELECT count(*) FROM outbox WHERE {held} AND status = 'pending'"
    with writing(database):
        wait_until(lambda: value(database, flowing) > 20, what="events flow")
        steer(database, "pause", *arguments, "--reason", "upgrade", "--actor", "ann")
        paused_at = value(database, "SELECT paused_at FROM outbox_pauses")
        backlog = value(database, waiting)
        wait_until(
            lambda: (
                value(database, f"SELECT max(created_at) FROM outbox WHERE {held}") > paused_at + 2 * A_SECOND
            ),
            what="events are written long after the pause",
        )
        assert value(database, waiting) > backlog
        last = value(database, f"SELECT max(completed_at) FROM outbox WHERE {held}")
        assert last < paused_at + A_SECOND
        if arguments != ["--all"]:
            seen = value(database, others)
            wait_until(lambda: value(database, others) > seen, what="the others go on")
        steer(database, "resume", *arguments, "--actor", "bob")
        resumed_at = value(database, "SELECT max(at) FROM outbox_audit")
        again = f"SELECT min(completed_at) FROM outbox WHERE {held} AND completed_at >= '{resumed_at}'"
        wait_until(lambda: value(database, again), what="events flow again")
        assert value(database, again) < resumed_at + A_SECOND
    left = "SELECT count(*) FROM outbox WHERE status <> 'completed'"
    wait_until(lambda: value(database, left) == 0, what="everything is published")
    assert value(database, "SELECT max(attempts) FROM outbox") == 1
    with psycopg.connect(database) as conn:
        recorded = conn.execute("SELECT actor, action FROM outbox_audit ORDER BY id").fetchall()
    assert recorded == [("ann", "pause"), ("bob", "resume")]
    positions: dict[str, list[int]] = {}
    for line in worker.lines:
        positions.setdefault(line["headers"]["partition_key"], []).append(int(line["headers"]["position"]))
    assert all(lane == sorted(lane) for lane in positions.values())
    assert sum(map(len, positions.values())) == value(database, "SELECT count(*) FROM outbox")


def test_a_pause_for_a_second_ends_by_itself(relay: Start, database: str) -> None:
    worker = relay(database)
    wait_until(lambda: "watching" in worker.log, what="it relays")
    steer(database, "pause", "--all", "--for", "1h")
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload) VALUES ('order:1', 'OrderPaid', '{}')"
        )
    steer(database, "pause", "--all", "--for", "1s")
    completed = "SELECT max(completed_at) FROM outbox"
    wait_until(lambda: value(database, completed), what="it is published")
    until = value(database, "SELECT until FROM outbox_pauses")
    assert until <= value(database, completed) < until + A_SECOND
    assert steer(database, "resume", "--all")["ended"]


def test_running_workers_are_shown_with_their_shares(relay: Start, database: str) -> None:
    for _ in range(2):
        relay(database)
    wait_until(lambda: len(steer(database, "workers")["workers"]) == 2, what="both are registered")
    found = steer(database, "workers")["workers"]
    assert sum(worker["buckets"] for worker in found) == 1024
    for worker in found:
        assert (worker["status"], worker["connected"], worker["remark"]) == ("alive", True, None)
        assert worker["id"].startswith(worker["host"])
