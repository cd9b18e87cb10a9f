"""One long outage of each broker: python -m tests.faults.outage [--minutes 10]

Two relays with default settings, events that may fail three times, and writers that go on. While the broker
is down no event is given up and no attempt is counted; once it is back all of them are delivered in order.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psycopg

from relay.store.migrate import migrate
from tests.faults.arena import Arena, BrokerName, Place
from tests.system.relays import insert, relays, statuses, wait_until

EVENTS_A_MINUTE, KEYS, MAX_ATTEMPTS = 600, 50, 3
PAUSE_SECONDS = 0.5
BROKERS: tuple[BrokerName, ...] = ("kafka", "rabbitmq")


def tell(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {line}\n")
    sys.stdout.flush()


def outage(arena: Arena, broker: BrokerName, minutes: float) -> None:
    """Raises AssertionError where a promise was broken."""
    place = arena.place(broker)
    database = _database(arena, broker)
    settings = _settings(place, broker)
    with tempfile.TemporaryDirectory() as directory, relays(Path(directory)) as start:
        workers = [start(database, publisher=broker, **settings) for _ in range(2)]
        _insert(database, 1)
        wait_until(lambda: statuses(database) == {"completed": EVENTS_A_MINUTE}, what="events flow")
        place.server.do(lambda server: server.kill())
        tell(f"{broker}: killed, {EVENTS_A_MINUTE} events published before")
        steps = max(round(60 * minutes / PAUSE_SECONDS), 1)
        for step in range(steps):
            if step % (60 / PAUSE_SECONDS) == 0:
                _insert(database, 2 + round(step * PAUSE_SECONDS / 60))
            time.sleep(PAUSE_SECONDS)
        waiting = _look(database)
        tell(f"{broker}: down for {minutes:g} minutes; {waiting}")
        assert not [status for status, _ in waiting if status not in ("pending", "processing", "completed")]
        assert not [attempts for status, attempts in waiting if status == "pending" and attempts]
        place.server.do(lambda server: server.start())
        began = time.monotonic()
        total = sum(waiting.values())
        wait_until(lambda: statuses(database) == {"completed": total}, 180, what="all is published")
        tell(f"{broker}: back; all {total} events published {time.monotonic() - began:.1f} s later")
        assert all(worker.process.poll() is None for worker in workers), "a relay has ended"
    assert _look(database) == {("completed", 1): total}, "more than the one attempt that succeeded"
    firsts: dict[str, list[int]] = {}
    seen: set[str] = set()
    messages = place.messages()
    for message in messages:
        if message.event_id not in seen:
            seen.add(message.event_id)
            firsts.setdefault(message.key, []).append(message.position)
    inverted = [key for key, positions in firsts.items() if positions != sorted(positions)]
    tell(f"{broker}: {len(messages)} messages, {len(seen)} of {total} events, {len(inverted)} keys inverted")
    assert len(seen) == total
    assert not inverted


def _database(arena: Arena, broker: str) -> str:
    server = arena.postgres.server
    with psycopg.connect(server.url(), autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE outage_{broker}")
    database = server.url(f"outage_{broker}")
    with psycopg.connect(database, autocommit=True) as conn:
        migrate(conn)
        conn.execute(f"ALTER TABLE outbox ALTER max_attempts SET DEFAULT {MAX_ATTEMPTS}")
    return database


def _settings(place: Place, broker: str) -> dict[str, object]:
    options = {name: value for name, value in place.options.items() if name != "kind"}
    return {f"{broker}__{name}": value for name, value in options.items()} | {
        "destination": place.destination
    }


def _insert(database: str, minute: int) -> None:
    insert(database, EVENTS_A_MINUTE, KEYS, f"minute-{minute}")


def _look(database: str) -> Counter[tuple[str, int]]:
    """How many events are in which status, after how many attempts."""
    with psycopg.connect(database) as conn:
        rows = conn.execute("SELECT status::text, attempts, count(*) FROM outbox GROUP BY 1, 2").fetchall()
    return Counter({(status, attempts): number for status, attempts, number in rows})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.outage", description="One long outage.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--broker", choices=BROKERS)
    arguments = parser.parse_args()
    with Arena() as arena:
        for broker in BROKERS:
            if arguments.broker in (None, broker):
                outage(arena, broker, arguments.minutes)


if __name__ == "__main__":
    main()
