"""Consumers that are killed, rebalanced, cut off and left without a database lose and double nothing."""

import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from random import random
from typing import Any

import pika
import psycopg
import pytest

from relay.consumers import KafkaConsumer, Message, RabbitConsumer
from relay.consumers.rabbitmq_link import Link
from relay.demo.postgres import PostgresServer
from relay.event import Event
from relay.store.migrate import migrate
from relay.testing import make_event
from tests.conftest import Kafka
from tests.servers.proxy import TcpProxy
from tests.system.consumer_kit import KafkaPlace, Ledger, Place, RabbitPlace, events, running
from tests.system.relays import ROOT, wait_until

Connection = psycopg.Connection[Any]


@pytest.fixture(params=["kafka", "rabbitmq"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "kafka":
        return KafkaPlace(request.getfixturevalue("kafka").address)
    return RabbitPlace(request.getfixturevalue("rabbitmq"))


@pytest.fixture
def ledger(database: str) -> Ledger:
    return Ledger(database)


Start = Callable[[Any, str, str], subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts consumer processes, all of which are gone at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(place: Any, database: str, die: str) -> subprocess.Popen[bytes]:
        plan = {
            "kind": "kafka" if isinstance(place, KafkaPlace) else "rabbitmq",
            "place": {name: value for name, value in vars(place).items() if name != "rig"},
            "rig": {"destination": place.rig.destination, "queue": getattr(place.rig, "queue", "")},
            "database": database,
            "die": die,
        }
        argv = [sys.executable, "-m", "tests.system.consuming", json.dumps(plan)]
        started.append(subprocess.Popen(argv, cwd=ROOT))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "place, die",
    [("kafka", "after commit"), ("rabbitmq", "before commit"), ("rabbitmq", "after commit")],
    indirect=["place"],
)
def test_a_consumer_killed_in_the_middle_of_an_event_neither_loses_nor_doubles_it(
    place: Place, ledger: Ledger, start: Start, die: str
) -> None:
    batch = [*events(5), make_event("order:0", event_id="evt-fatal"), *events(5)]
    place.publish(batch)
    process = start(place, ledger.database, die)
    assert process.wait(60) == -signal.SIGKILL
    entries = 6 if die == "after commit" else 5
    ledger.assert_once_in_order(batch[:entries])
    wait_until(lambda: place.left() >= 6, what="the fatal one comes again")
    with running(place.consumer(ledger.credit, ledger.database)):
        ledger.wait_for(11)
        wait_until(lambda: ledger.ids().count(batch[-1].event_id))
    ledger.assert_once_in_order(batch)
    assert place.left() == 0


def test_a_consumer_ends_cleanly_on_a_signal(place: Place, ledger: Ledger, start: Start) -> None:
    batch = events(5)
    place.publish(batch)
    process = start(place, ledger.database, "never")
    ledger.wait_for(5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert place.left() == 0


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_rebalances_lose_nothing_double_nothing_and_keep_the_order_of_keys(
    kafka: Kafka, ledger: Ledger, strategy: str
) -> None:
    place = KafkaPlace(kafka.address, partitions=4)
    published: list[Event] = []
    enough = threading.Event()

    def publish() -> None:
        while not enough.is_set():
            batch = events(12, keys=12)
            place.publish(batch)
            published.extend(batch)

    def fail_now_and_then(conn: Connection, message: Message) -> None:
        ledger.credit(conn, message)
        if random() < 0.1:
            raise RuntimeError("now and then")

    def consumer() -> KafkaConsumer:
        config = {"partition.assignment.strategy": strategy}
        made = place.consumer(fail_now_and_then, ledger.database, max_attempts=50, config=config)
        assert isinstance(made, KafkaConsumer)
        return made

    def go_on_until_shared(*consumers: KafkaConsumer) -> None:
        def shared() -> bool:
            owned = [len(c._progress) for c in consumers]
            return sum(owned) == 4 and all(owned)

        wait_until(shared, what="the partitions are shared")
        ledger.wait_for(len(ledger.ids()) + 20)

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        one, two, three = consumer(), consumer(), consumer()
        with running(one) as (first,):
            go_on_until_shared(one)
            with running(two):
                go_on_until_shared(one, two)
                first.stop()
                go_on_until_shared(two)
                with running(three):
                    go_on_until_shared(two, three)
                    enough.set()
                    publishing.join(60)
                    ledger.wait_for(len(published))
    finally:
        enough.set()
    ledger.assert_once_in_order(published)
    assert place.left() == 0


def test_a_partition_whose_key_waits_is_not_read_far_ahead(kafka: Kafka, ledger: Ledger) -> None:
    place = KafkaPlace(kafka.address)
    batch = events(50)
    mended = threading.Event()

    def fail_for_a_while(conn: Connection, message: Message) -> None:
        if not mended.is_set():
            raise RuntimeError("not yet")
        ledger.credit(conn, message)

    place.publish(batch)
    consumer = place.consumer(fail_for_a_while, ledger.database, max_attempts=10**6, max_held=10)
    assert isinstance(consumer, KafkaConsumer)
    with running(consumer):
        wait_until(lambda: consumer._paused)
        assert len(consumer._lanes) == 10
        mended.set()
        ledger.wait_for(50)
    ledger.assert_once_in_order(batch)


def test_retries_longer_than_the_poll_interval_cost_no_partition(
    kafka: Kafka, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """The group takes partitions from those who do not poll; a consumer that waits for a retry polls."""
    place = KafkaPlace(kafka.address)
    batch = events(3)
    failed: list[str] = []

    def fail_once(conn: Connection, message: Message) -> None:
        if message.event_id == batch[0].event_id and not failed:
            failed.append(message.event_id)
            raise RuntimeError("not yet")
        ledger.credit(conn, message)

    place.publish(batch)
    config = {"max.poll.interval.ms": 6000, "session.timeout.ms": 6000}
    consumer = place.consumer(fail_once, ledger.database, config=config, backoff=lambda _: 8.0)
    with caplog.at_level(logging.INFO), running(consumer):
        ledger.wait_for(3)
        heard = [record.getMessage() for record in caplog.records]
    ledger.assert_once_in_order(batch)
    assert [line for line in heard if "given" in line] == [
        f"consumer billing was given {place.rig.destination}[0]"
    ]
    assert not [line for line in heard if "lost" in line or "gave up" in line]


def test_a_restart_of_the_database_loses_nothing_and_ends_no_consumer(
    kafka: Kafka, rabbitmq: str, own_postgres: PostgresServer
) -> None:
    database = own_postgres.url()
    migrate(database)
    ledger = Ledger(database)
    batch = [*events(20, keys=4), *(make_event(f"invoice:{n % 4}") for n in range(20))]
    kafka_place, rabbit_place = KafkaPlace(kafka.address), RabbitPlace(rabbitmq)
    kafka_place.publish(batch[:20])
    rabbit_place.publish(batch[20:])
    began, go_on = threading.Event(), threading.Event()

    def credit(conn: Connection, message: Message) -> None:
        ledger.credit(conn, message)
        if message.event_id in (batch[10].event_id, batch[30].event_id):
            began.set()
            go_on.wait(60)

    consumers = (kafka_place.consumer(credit, database), rabbit_place.consumer(credit, database))
    with running(*consumers) as (first, second):
        assert began.wait(60)
        own_postgres.kill()
        go_on.set()
        wait_until(lambda: all(c._conn is None for c in consumers), what="both have noticed")
        own_postgres.start()
        wait_until(lambda: len(ledger.ids()) >= 40)
        assert first.alive
        assert second.alive
    ledger.assert_once_in_order(batch)
    assert kafka_place.left() == rabbit_place.left() == 0


def test_a_consumer_outlives_the_connection_to_rabbitmq(
    rabbitmq: str, ledger: Ledger, proxy: Callable[[str], TcpProxy]
) -> None:
    place = RabbitPlace(rabbitmq)
    gate = proxy(rabbitmq)
    batch = events(30, keys=3)
    place.publish(batch)
    cut = threading.Event()

    def credit(conn: Connection, message: Message) -> None:
        ledger.credit(conn, message)
        if message.event_id == batch[10].event_id and not cut.is_set():
            cut.set()
            gate.cut()

    consumer = place.consumer(credit, ledger.database, url=gate.url(rabbitmq))
    assert isinstance(consumer, RabbitConsumer)
    with running(consumer):
        assert cut.wait(60)
        wait_until(lambda: consumer._link is None, what="the loss is noticed")
        gate.restore()
        ledger.wait_for(30)
    ledger.assert_once_in_order(batch)
    assert place.left() == 0


UNKNOWN_TAG = 999_999  # whoever acknowledges it loses the channel and no more, as by a consumer_timeout


def test_a_link_whose_channel_the_broker_closes_says_so(rabbitmq: str) -> None:
    place = RabbitPlace(rabbitmq)
    link = Link(pika.URLParameters(rabbitmq), place.rig.queue, 10, "test")
    try:
        link.acknowledge(UNKNOWN_TAG)
        wait_until(lambda: link.lost is not None, 20, "the loss is noticed")
        said = f"closed the channel that consumes queue {place.rig.queue}: PRECONDITION_FAILED"
        assert said in (link.lost or "")
    finally:
        link.close()


def test_a_consumer_outlives_its_channel_at_rabbitmq(rabbitmq: str, ledger: Ledger) -> None:
    """With a message in hand that fails and fails: it comes again, and holds its key as before."""
    place = RabbitPlace(rabbitmq)
    mended = threading.Event()
    batch = events(6, keys=3)

    def credit(conn: Connection, message: Message) -> None:
        ledger.credit(conn, message)
        if message.event_id == batch[0].event_id and not mended.is_set():
            raise RuntimeError("not yet")

    consumer = place.consumer(credit, ledger.database, on_exhausted="block")
    assert isinstance(consumer, RabbitConsumer)
    place.publish(batch[:3])
    with running(consumer):
        ledger.wait_for(2)
        link = consumer._link
        assert link is not None
        link.acknowledge(UNKNOWN_TAG)
        wait_until(lambda: consumer._link not in (link, None), 20, "the loss is noticed")
        place.publish(batch[3:])
        ledger.wait_for(4)
        mended.set()
        ledger.wait_for(6)
    ledger.assert_once_in_order(batch)
    assert place.left() == 0
