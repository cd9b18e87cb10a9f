"""The steady load: single commits at a rate, from a process of its own.

For each event it notes when the INSERT was sent and when its commit was acknowledged. Latency is counted
from the acknowledgement: that is when the writer's user could know of the event.

Two commits of one key never overlap, as in an application that locks what its events are about: without
that, which of the two comes first is for nobody to say.
"""

import threading
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from time import monotonic, sleep
from typing import Any

import psycopg
from psycopg import Connection

from relay.bench.plan import EVENT_TYPE, Keys, Plan
from relay.errors import RelayError

CONNECTIONS = 4
LOCKS = 4096


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
    locks = [threading.Lock() for _ in range(LOCKS)]

    def write(number: int) -> None:
        try:
            _write(connections[number], load, number, started, written[number], locks)
        except BaseException as error:  # noqa: BLE001 - told to the parent
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(RelayError(f"the bench's writer failed: {failures[0]}") if failures else written)


def _write(
    conn: Connection[Any],
    load: Load,
    number: int,
    started: float,
    done: Commits,
    locks: Sequence[threading.Lock],
) -> None:
    plan, insert = load.plan, load.insert.encode()
    keys = Keys(plan, number)
    payload = '{"order_id": %d, "note": "' + "x" * max(0, plan.payload_bytes - 30) + '"}'
    step = CONNECTIONS * plan.per_commit / plan.rate
    due = started + step * number / CONNECTIONS
    end = started + plan.seconds
    # A machine that cannot keep up writes fewer: the report says how many a second.
    while due < end and monotonic() < end:
        if (wait := due - monotonic()) > 0:
            sleep(wait)
        events = [
            (keys.draw(), EVENT_TYPE, payload % (len(done.sent) + more)) for more in range(plan.per_commit)
        ]
        with ExitStack() as held:
            for number_of_lock in sorted({hash(key) % LOCKS for key, _, _ in events}):
                held.enter_context(locks[number_of_lock])
            sent = monotonic()
            positions = _commit(conn, insert, events)
            acknowledged = monotonic()
        done.positions.extend(positions)
        done.sent.extend([sent] * len(positions))
        done.acknowledged.extend([acknowledged] * len(positions))
        due += step


def _commit(conn: Connection[Any], insert: bytes, events: list[tuple[str, str, str]]) -> list[int]:
    """One transaction; the positions of its events."""
    if len(events) == 1:
        row = conn.execute(insert, events[0]).fetchone()
        assert row is not None
        return [row[0]]
    with conn.transaction(), conn.cursor() as cursor:
        cursor.executemany(insert, events, returning=True)
        return [position for each in cursor.results() for (position,) in each.fetchall()]
