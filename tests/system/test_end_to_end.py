"""From the till to the ledger: whatever is killed on the way, each committed payment is credited once.

Tills pay orders in transactions of which some roll back; two relays publish; two billing consumers, whose
handler fails for a fifth of its calls, credit. Relays and consumers are killed at random and started anew.
A naive consumer of the same events, which tells the broker too early and has no inbox, is killed as well: its
book has to be wrong, or the faults did not bite and the test proves nothing.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from relay import Outbox
from tests.conftest import Kafka
from tests.system.consumer_kit import KafkaPlace, Place, RabbitPlace
from tests.system.crediting import make_ledger
from tests.system.relays import ROOT, RelayProcess, wait_until

SEED = int(os.environ.get("RELAY_TEST_SEED") or time.time_ns() % 1_000_000)
MUTANT = os.environ.get("RELAY_TEST_MUTANT", "").split()  # what billing gets wrong: see crediting.py
FAULT_SECONDS = 6.0
LONGEST_SECONDS = 90.0  # until the faults have bitten
TILLS = 2
PAUSE_SECONDS = 0.15
CUSTOMERS = 8
ROLLED_BACK = 0.2
# Events that a relay has published and not settled: once it is killed, they come again.
IN_DOUBT = """
SELECT count(*) FROM outbox o
JOIN outbox_workers w ON w.id = o.claimed_by AND (w.metadata ->> 'pid')::int = %s
JOIN ledger l ON l.order_id = (o.payload ->> 'order_id')::bigint
WHERE o.status = 'processing'
"""
QUICK: dict[str, Any] = {
    "lease_seconds": 10,
    "heartbeat_seconds": 0.5,
    "stale_seconds": 3,
    "grace_seconds": 8,
}

pytestmark = pytest.mark.slow


class Till(threading.Thread):
    """Pays orders until it is closed, a few in one transaction."""

    def __init__(self, database: str, seed: str) -> None:
        super().__init__(daemon=True)
        self.rolled_back = 0
        self._database = database
        self._dice = Random(seed)
        self._outbox = Outbox()
        self._closing = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._database, autocommit=True) as conn:
            while not self._closing.wait(self._dice.random() * PAUSE_SECONDS):
                changes_its_mind = self._dice.random() < ROLLED_BACK
                with conn.transaction(force_rollback=changes_its_mind):
                    for _ in range(self._dice.randint(1, 5)):
                        self._pay(conn)
                self.rolled_back += changes_its_mind

    def _pay(self, conn: "psycopg.Connection[Any]") -> None:
        cents = self._dice.randint(1, 100_000)
        row = conn.execute("INSERT INTO paid_orders (cents) VALUES (%s) RETURNING id", [cents]).fetchone()
        assert row is not None
        key = f"customer:{self._dice.randrange(CUSTOMERS)}"
        self._outbox.emit(conn, "OrderPaid", key=key, payload={"order_id": row[0], "cents": cents})

    def close(self) -> None:
        self._closing.set()
        if self.is_alive():
            self.join()


class ConsumerProcess:
    """One life of a billing consumer; see crediting.py for its options."""

    def __init__(self, log: Path, options: dict[str, Any]) -> None:
        self._log = log
        command = [sys.executable, "-m", "tests.system.crediting", json.dumps(options)]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stderr=file, cwd=ROOT)

    @property
    def log(self) -> str:
        return self._log.read_text()


class Slot:
    """A place for one process after another: `start(life)` starts one, which then says that it works."""

    def __init__(self, name: str, start: Callable[[int], RelayProcess | ConsumerProcess], says: str) -> None:
        self.name = name
        self.kills = 0
        self.past = ""  # what those said that have ended
        self._start = start
        self._says = says
        self._current = start(0)

    def works(self) -> bool:
        assert self._current.process.poll() is None, f"{self.name} ended by itself:\n{self._current.log}"
        return self._says in self._current.log

    @property
    def pid(self) -> int:
        return self._current.process.pid

    def kill(self) -> None:
        self._current.process.kill()
        self._current.process.wait()

    def start(self) -> None:
        self.past += self._current.log
        self.kills += 1
        self._current = self._start(self.kills)

    def stop(self) -> None:
        self._current.process.terminate()
        code = self._current.process.wait(60)
        self.past += self._current.log
        assert code == 0, f"{self.name} ended with exit code {code}:\n{self._current.log}"


@dataclass
class Route:
    """How events get from here to there."""

    places: dict[str, Place]  # by the name of the book
    relay: dict[str, Any]  # settings
    source: Callable[[str, int], dict[str, Any]]  # of a consumer: by the name of its book and its number


class World:
    """Everything between the tills and the ledger."""

    def __init__(self, database: str, directory: Path, route: Route, seed: int) -> None:
        self._database = database
        self._directory = directory
        self._route = route
        self._seed = seed
        make_ledger(database)
        self.rows("CREATE TABLE paid_orders (id bigint GENERATED ALWAYS AS IDENTITY, cents bigint)")
        self.tills = [Till(database, f"{seed}-till-{number}") for number in range(TILLS)]
        self.relays = [Slot(f"relay {number}", self._relay, "relays") for number in range(2)]
        self.billing = [self._consumer("billing", number, MUTANT) for number in range(2)]
        self.naive = self._consumer("naive", 0, ["hasty", "forgetful"])

    @property
    def slots(self) -> list[Slot]:
        return [*self.relays, *self.billing, self.naive]

    def _relay(self, life: int) -> RelayProcess:
        return RelayProcess(self._database, self._directory, **QUICK, **self._route.relay)

    def _consumer(self, book: str, number: int, naive: list[str]) -> Slot:
        name = f"{book}-{number}"

        def start(life: int) -> ConsumerProcess:
            options = {
                "database": self._database,
                "book": book,
                "seed": f"{self._seed}-{name}-{life}",
                "naive": naive,
            }
            options |= self._route.source(book, number)
            return ConsumerProcess(self._directory / f"{name}-{life}.log", options)

        return Slot(name, start, f"consumer {book} consumes")

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._database) as conn:
            result = conn.execute(statement, parameters)
            return result.fetchall() if result.description else []

    def paid(self) -> dict[int, list[int]]:
        return {order: [cents] for order, cents in self.rows("SELECT id, cents FROM paid_orders")}

    def book(self, name: str) -> dict[int, list[int]]:
        """By order, all that was credited."""
        entries = "SELECT order_id, array_agg(cents) FROM ledger WHERE book = %s GROUP BY 1"
        return dict(self.rows(entries, name))

    def unpublished(self) -> int:
        return int(self.rows("SELECT count(*) FROM outbox WHERE status <> 'completed'")[0][0])

    def doubled(self, book: str) -> int:
        return sum(len(entries) > 1 for entries in self.book(book).values())

    def has_bitten(self) -> bool:
        """Whether something came twice, and each process was killed, the naive one with something in hand."""
        return all(slot.kills for slot in self.slots) and self.naive.kills > 1 and self.doubled("naive") > 0

    def disturb(self, dice: Random) -> None:
        """Kill processes that work, and start them anew, until that has done what it should."""
        began = time.monotonic()
        while time.monotonic() < began + FAULT_SECONDS or not self.has_bitten():
            assert time.monotonic() < began + LONGEST_SECONDS, "the faults did not bite"
            time.sleep(dice.uniform(0.2, 1.0))
            working = [slot for slot in self.slots if slot.works()]
            victims = dice.sample(working, min(len(working), dice.choice([1, 1, 2])))
            for slot in victims:
                if slot in self.relays:
                    self._wait_for_a_bad_moment(slot)
                slot.kill()
            time.sleep(dice.random() * 0.2)
            for slot in victims:
                slot.start()

    def _wait_for_a_bad_moment(self, relay: Slot) -> None:
        """Freeze the relay where it holds events that were credited already; within reason."""
        for _ in range(30):
            os.kill(relay.pid, signal.SIGSTOP)
            time.sleep(0.05)
            if self.rows(IN_DOUBT, relay.pid) != [(0,)]:
                return
            os.kill(relay.pid, signal.SIGCONT)
            time.sleep(0.01)

    def drain(self) -> None:
        """Let everything come to its end, and end it in good order."""
        for till in self.tills:
            till.close()
        wait_until(lambda: all(slot.works() for slot in self.slots), what="everything works again")
        wait_until(lambda: self.unpublished() == 0, what="everything is published")
        for relay in self.relays:
            relay.stop()
        wait_until(lambda: self._left("naive") == 0, what="the naive consumer was given everything")
        self.naive.stop()
        self._consume_all()

    def _left(self, book: str) -> int:
        return self._route.places[book].left()

    def _missing(self) -> list[int]:
        """Paid orders that billing has not credited."""
        return sorted(self.paid().keys() - self.book("billing").keys())

    def _consume_all(self) -> None:
        """Until the broker has nothing left for billing, nor had billing anything in hand when it ended."""
        while True:
            try:
                wait_until(lambda: self._left("billing") == 0 and not self._missing())
            except AssertionError:
                assert self._missing() == [], "never credited"
                raise
            for consumer in self.billing:
                consumer.stop()
            if self._left("billing") == 0:
                return
            for consumer in self.billing:
                consumer.start()

    def end(self) -> None:
        for till in self.tills:
            till.close()
        for slot in self.slots:
            slot.kill()


@contextmanager
def world(database: str, directory: Path, route: Route, seed: int) -> Iterator[World]:
    made = World(database, directory, route, seed)
    try:
        yield made
    finally:
        made.end()


def expect_each_payment_once(
    database: str, directory: Path, route: Route, tells: Callable[[str, object], None]
) -> None:
    tells("tells", f"end to end: RELAY_TEST_SEED={SEED}")
    with world(database, directory, route, SEED) as shop:
        wait_until(lambda: all(slot.works() for slot in shop.slots), what="everything works")
        for till in shop.tills:
            till.start()
        wait_until(lambda: shop.book("billing") and shop.book("naive"), what="the first credits")
        shop.disturb(Random(SEED))
        shop.drain()
        paid, credited, naive = shop.paid(), shop.book("billing"), shop.book("naive")
        assert credited == paid
        # All of that has happened, or the above says little.
        failures = sum(slot.past.count("failed, attempt") for slot in shop.billing)
        lost, doubled = len(paid.keys() - naive.keys()), shop.doubled("naive")
        assert min(failures, lost, doubled, *(till.rolled_back for till in shop.tills)) > 0
        assert shop.rows("SELECT count(*) FROM inbox_dedupe_dead_letters") == [(0,)]
        kills = ", ".join(f"{slot.name} {slot.kills}" for slot in shop.slots)
        tells(
            "tells",
            f"end to end: {len(paid)} payments credited once, {failures} handler calls failed; "
            f"killed: {kills}; the naive book lacks {lost} and has {doubled} twice",
        )


def test_each_committed_payment_is_credited_once_through_kafka(
    database: str, kafka: Kafka, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    place = KafkaPlace(kafka.address, partitions=4)
    places = {"billing": place, "naive": copy(place)}
    places["naive"].group += "-naive"

    def source(book: str, number: int) -> dict[str, Any]:
        config: dict[str, Any] = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
        if number == 0:  # comes back as the member it was; the other one is a new member each time
            config["group.instance.id"] = f"{book}-0"
        options = {"bootstrap_servers": place.address, "topics": [place.rig.destination], "config": config}
        return {"kafka": options | {"group": places[book].group}}

    relay = {
        "publisher": "kafka",
        "destination": place.rig.destination,
        "kafka__bootstrap_servers": kafka.address,
    }
    expect_each_payment_once(database, tmp_path, Route({**places}, relay, source), record_property)


def test_each_committed_payment_is_credited_once_through_rabbitmq(
    database: str, rabbitmq: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    place = RabbitPlace(rabbitmq)
    places = {"billing": place, "naive": copy(place)}
    places["naive"].rig = copy(place.rig)
    places["naive"].rig.queue += "-naive"
    with place.rig.channel() as channel:
        channel.queue_declare(places["naive"].rig.queue, durable=True)
        channel.queue_bind(places["naive"].rig.queue, place.rig.destination, "#")

    def source(book: str, number: int) -> dict[str, Any]:
        return {"rabbitmq": {"url": rabbitmq, "queue": places[book].rig.queue}}

    relay = {
        "publisher": "rabbitmq",
        "destination": place.rig.destination,
        "rabbitmq__url": rabbitmq,
        "rabbitmq__confirm_seconds": 3,
    }
    expect_each_payment_once(database, tmp_path, Route({**places}, relay, source), record_property)
