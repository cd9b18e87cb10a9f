"""A topic of a test's own: publishers to it, what is in it, and what can be done to it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from publishers.kafka import KafkaPublisher
from relay.event import Event
from relay.testing import Received
from tests.servers.kafka import create_topic
from tests.servers.process import wait_until


class KafkaRig:
    """`via` is where publishers connect, if not to the broker itself: a proxy, say."""

    def __init__(
        self,
        address: str,
        *,
        partitions: int = 3,
        config: Mapping[str, str] | None = None,
        via: str | None = None,
        create: bool = True,
    ) -> None:
        self.address = address
        self.via = via or address
        self.partitions = partitions
        self.destination = f"topic-{uuid4().hex}"
        if create:
            self.create(config)

    def create(self, config: Mapping[str, str] | None = None) -> None:
        create_topic(self.address, self.destination, self.partitions, config=config)

    def make(self, **options: Any) -> KafkaPublisher:
        return KafkaPublisher({"bootstrap_servers": self.via, **options})

    def received(self, at_least: int) -> list[Received]:
        return [_received(message) for message in self.messages(at_least)]

    def messages(self, at_least: int = 0) -> list[Any]:
        """Everything in the topic, each partition in its order; waits for `at_least`."""
        return read_topic(self.address, self.destination, at_least)

    def undeliverable(self, event: Event) -> Event:
        return event._replace(destination=f"no-such-topic-{uuid4().hex}")

    def alter(self, **config: str) -> None:
        """Change the topic's configuration: alter(max_message_bytes="2000")."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.destination, incremental_configs=entries)
        admin = self._admin()  # named: a client must outlive its answer
        admin.incremental_alter_configs([resource])[resource].result(20)

    def lower_limit(self, limit: int) -> None:
        """Set max.message.bytes, and wait until the broker really refuses what is larger."""
        self.alter(max_message_bytes=str(limit))
        probe = Producer({"bootstrap.servers": self.address, "message.max.bytes": 10_000_000})
        errors: list[Any] = []

        def refused() -> bool:
            for partition in range(self.partitions):
                probe.produce(
                    self.destination,
                    key="probe",
                    value=b"x" * limit,
                    partition=partition,
                    on_delivery=lambda error, _: errors.append(error),
                )
            probe.flush(10)
            last = errors[-self.partitions :]
            return all(error is not None and error.name() == "MSG_SIZE_TOO_LARGE" for error in last)

        wait_until(refused, 20, "the broker to enforce its new limit")

    def grow(self, partitions: int) -> None:
        admin = self._admin()
        admin.create_partitions([NewPartitions(self.destination, partitions)])[self.destination].result(20)
        self.partitions = partitions

    def delete(self) -> None:
        admin = self._admin()
        admin.delete_topics([self.destination])[self.destination].result(20)
        wait_until(
            lambda: self.destination not in admin.list_topics(timeout=5).topics, 20, "the topic to be gone"
        )

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address})


def read_topic(address: str, topic: str, at_least: int = 0) -> list[Any]:
    """All messages up to what is the end by now, or more until there are `at_least`."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": uuid4().hex, "fetch.wait.max.ms": 20})
    try:
        numbers = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        ends = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1]
            for number in numbers
        }
        wanted = max(sum(ends.values()), at_least)
        found: list[Any] = []
        deadline = monotonic() + 20
        while len(found) < wanted and monotonic() < deadline:
            found += [message for message in consumer.consume(1000, 0.2) if message.error() is None]
        return found
    finally:
        consumer.close()


def lanes(messages: Iterable[Any]) -> dict[str, list[int]]:
    """By key: the positions of its events' first occurrences, in the order of the topic."""
    found: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        headers = {name: value.decode() for name, value in message.headers() or []}
        if "position" not in headers:
            continue  # a probe
        position = int(headers["position"])
        lane = found[headers["partition_key"]]
        if position not in lane:
            lane.append(position)
    return dict(found)


def in_order(messages: Iterable[Any], events: Sequence[Event]) -> bool:
    """Whether exactly these events are there, and the first occurrences of each key in order."""
    expected: dict[str, list[int]] = defaultdict(list)
    for event in events:
        expected[event.key].append(event.position)
    return lanes(messages) == expected


def _received(message: Any) -> Received:
    headers = {name: value.decode() for name, value in message.headers()}
    return Received(message.key().decode(), message.value(), headers)
