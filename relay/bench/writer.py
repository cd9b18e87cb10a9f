"""The steady load: single commits at a rate, from a process of its own.

For each event it notes when the INSERT was sent and when its commit was acknowledged. Latency is counted
from the acknowledgement: that is when the writer's user could know of the event.
"""

import threading
from array import array
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from time import monotonic, sleep
from typing import Any

import psycopg
from psycopg import Connection

from relay.bench.plan import EVENT_TYPE, Keys, Plan
from relay.errors import RelayError

CONNECTIONS = 4


@dataclass(frozen=True)
class Load:
    """`insert` takes key, type and payload and returns the event's position."""

    url: str
    insert: str
    plan: Plan


@dataclass
class Commits:
    """Of one writer, in the order of its commits."""

    positions: "array[int]"
    sent: "array[float]"
    acknowledged: "array[float]"


def main(pipe: Pipe, load: Load) -> None:
    """The process's target: `ready`, `go`, then the Commits of each connection."""
    failures: list[BaseException] = []
    # Not by the store's connect(): this is somebody's application.
    connections = [
        psycopg.connect(load.url, autocommit=True, application_name="outbox-relay bench writer")
        for _ in range(CONNECTIONS)
    ]
    written = [Commits(array("q"), array("d"), array("d")) for _ in connections]
    pipe.send("ready")
    try:
        pipe.recv()
    except EOFError:
        return
    started = monotonic()

    def write(number: int) -> None:
        try:
            _write(connections[number], load, number, started, written[number])
        except BaseException as error:  # noqa: BLE001 - told to the parent
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(RelayError(f"the bench's writer failed: {failures[0]}") if failures else written)


def _write(conn: Connection[Any], load: Load, number: int, started: float, done: Commits) -> None:
    plan, insert = load.plan, load.insert.encode()
    keys = Keys(plan, number)
    payload = '{"order_id": %d, "note": "' + "x" * max(0, plan.payload_bytes - 30) + '"}'
    step = CONNECTIONS / plan.rate
    due = started + step * number / CONNECTIONS
    while due < started + plan.seconds:
        if (wait := due - monotonic()) > 0:
            sleep(wait)
        sent = monotonic()
        row = conn.execute(insert, [keys.draw(), EVENT_TYPE, payload % len(done.sent)]).fetchone()
        acknowledged = monotonic()
        assert row is not None
        done.positions.append(row[0])
        done.sent.append(sent)
        done.acknowledged.append(acknowledged)
        due += step
