"""Consumers in tests: a place at a broker to publish to and consume from, a ledger, and threads that consume.

Messages are published by the relay's own publishers, so that consumers read what relays write.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol
from uuid import uuid4

import pika
import psycopg
from confluent_kafka import Consumer as KafkaClient
from confluent_kafka import Producer, TopicPartition

from relay.consumers import Consumer, KafkaConsumer, Message, RabbitConsumer
from relay.event import Event
from relay.outcome import Delivered
from relay.testing import make_event
from tests.servers.kafka_rig import KafkaRig
from tests.servers.rabbit_rig import RabbitRig
from tests.system.relays import wait_until

NAME = "billing"


class Place(Protocol):
    """Where a test's messages go and come from."""

    def publish(self, events: Sequence[Event], format: str = "plain") -> None:  # noqa: A002
        ...

    def send(self, value: bytes, headers: dict[str, str]) -> None:
        """A message that no relay wrote."""

    def consumer(self, handler: Any, database: str, **options: Any) -> Consumer: ...

    def left(self) -> int:
        """How many messages the broker would hand out again to a consumer that starts now."""


def quickly(failures: int) -> float:
    return 0.01


class KafkaPlace:
    def __init__(self, address: str, partitions: int = 1) -> None:
        self.rig = KafkaRig(address, partitions=partitions)
        self.address = address
        self.group = f"group-{uuid4().hex}"

    def publish(self, events: Sequence[Event], format: str = "plain") -> None:  # noqa: A002
        publisher = self.rig.make(format=format)
        try:
            _publish(publisher, events, self.rig.destination)
        finally:
            publisher.close()

    def send(self, value: bytes, headers: dict[str, str]) -> None:
        producer = Producer({"bootstrap.servers": self.address})
        producer.produce(self.rig.destination, value=value, headers=list(headers.items()))
        assert producer.flush(20) == 0

    def consumer(self, handler: Any, database: str, **options: Any) -> Consumer:
        config = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 50}
        given: dict[str, Any] = {
            "database_url": database,
            "bootstrap_servers": self.address,
            "topics": [self.rig.destination],
            "group": self.group,
            "backoff": quickly,
        } | options
        return KafkaConsumer(NAME, handler, **given | {"config": config | options.get("config", {})})

    def committed(self) -> dict[int, int]:
        """By partition: the offset at which the group goes on; 0 where it has committed none."""
        client = KafkaClient({"bootstrap.servers": self.address, "group.id": self.group})
        try:
            asked = [TopicPartition(self.rig.destination, n) for n in range(self.rig.partitions)]
            return {p.partition: max(p.offset, 0) for p in client.committed(asked, timeout=20)}
        finally:
            client.close()

    def left(self) -> int:
        return len(self.rig.messages()) - sum(self.committed().values())


class RabbitPlace:
    def __init__(self, url: str) -> None:
        self.rig = RabbitRig(url)
        self.url = url

    def publish(self, events: Sequence[Event], format: str = "plain") -> None:  # noqa: A002
        with self.rig.publisher(format=format) as publisher:
            _publish(publisher, events, self.rig.destination)

    def send(self, value: bytes, headers: dict[str, str]) -> None:
        with self.rig.channel() as channel:
            channel.basic_publish("", self.rig.queue, value, pika.BasicProperties(headers=headers))

    def consumer(self, handler: Any, database: str, **options: Any) -> Consumer:
        given: dict[str, Any] = {
            "database_url": database,
            "url": self.url,
            "queue": self.rig.queue,
            "backoff": quickly,
        } | options
        return RabbitConsumer(NAME, handler, **given)

    def left(self) -> int:
        with self.rig.channel() as channel:
            return int(channel.queue_declare(self.rig.queue, passive=True).method.message_count)


def _publish(publisher: Any, events: Sequence[Event], destination: str) -> None:
    placed = [event._replace(destination=destination) for event in events]
    outcomes = publisher.publish(placed, monotonic() + 30)
    assert all(isinstance(outcome, Delivered) for outcome in outcomes), outcomes


def events(number: int, keys: int = 1, **fields: Any) -> list[Event]:
    return [make_event(f"order:{n % keys}", **fields) for n in range(number)]


class Ledger:
    """What handlers have done, in the order in which they did it. Nothing in it forbids a doubled entry."""

    def __init__(self, database: str) -> None:
        self.database = database
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(
                "CREATE TABLE IF NOT EXISTS ledger"
                " (n bigint GENERATED ALWAYS AS IDENTITY, event_id text, key text, position bigint)"
            )

    @staticmethod
    def credit(conn: psycopg.Connection[Any], message: Message) -> None:
        conn.execute(
            "INSERT INTO ledger (event_id, key, position) VALUES (%s, %s, %s)",
            [message.event_id, message.key, message.position],
        )

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database, autocommit=True) as conn:
            return conn.execute(statement).fetchall()

    def ids(self) -> list[str]:
        return [row[0] for row in self.ask("SELECT event_id FROM ledger ORDER BY n")]

    def wait_for(self, number: int) -> None:
        wait_until(lambda: len(self.ids()) >= number, what=f"{number} entries in the ledger")

    def assert_once_in_order(self, expected: Sequence[Event]) -> None:
        """Each event has one entry, and the entries of each key are in the events' order."""
        found = self.ids()
        assert sorted(found) == sorted(event.event_id for event in expected)
        for key in {event.key for event in expected}:
            lane = [event.event_id for event in expected if event.key == key]
            assert [event_id for event_id in found if event_id in set(lane)] == lane

    def dead_letters(self) -> list[tuple[Any, ...]]:
        return self.ask("SELECT reason, event_id, error FROM inbox_dedupe_dead_letters ORDER BY id")


class Running:
    """A consumer in a thread."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.consumer.run()
        except BaseException as error:  # noqa: BLE001 - told by stop()
            self.error = error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self.consumer.stop()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the consumer did not stop"
        if self.error is not None:
            raise self.error


@contextmanager
def running(*consumers: Consumer) -> Iterator[list[Running]]:
    started = [Running(consumer) for consumer in consumers]
    try:
        yield started
    finally:
        for one in started:
            one.consumer.stop()
    for one in started:
        one.stop()
