"""The suite against a real broker, and what is particular to Kafka."""

from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from publishers.kafka import KafkaPublisher, key_hash
from relay.errors import SettingsError
from relay.event import Event
from relay.outcome import Delivered, Unconfirmed
from relay.testing import PublisherConformance, Received, make_event
from tests.conftest import Kafka

PARTITIONS = 3


class KafkaRig:
    def __init__(self, kafka: Kafka) -> None:
        self._address = kafka.address
        self.destination = kafka.create_topic(PARTITIONS)

    def make(self) -> KafkaPublisher:
        return KafkaPublisher({"bootstrap_servers": self._address})

    def received(self, at_least: int) -> list[Received]:
        return [_received(message) for message in self.messages(at_least)]

    def messages(self, at_least: int) -> list[Any]:
        consumer = Consumer({"bootstrap.servers": self._address, "group.id": uuid4().hex})
        try:
            consumer.assign([TopicPartition(self.destination, number, 0) for number in range(PARTITIONS)])
            found: list[Any] = []
            deadline = monotonic() + 20
            while len(found) < at_least and monotonic() < deadline:
                found += [message for message in consumer.consume(1000, 0.2) if message.error() is None]
            return found
        finally:
            consumer.close()

    def undeliverable(self, event: Event) -> Event:
        return event._replace(destination=f"no-such-topic-{uuid4().hex}")


def _received(message: Any) -> Received:
    headers = {name: value.decode() for name, value in message.headers()}
    return Received(message.key().decode(), message.value(), headers)


class TestKafka(PublisherConformance):
    @pytest.fixture
    def rig(self, kafka: Kafka) -> KafkaRig:
        return KafkaRig(kafka)


def test_a_key_goes_to_the_partition_that_the_java_client_would_choose(kafka: Kafka) -> None:
    rig = KafkaRig(kafka)
    publisher = rig.make()
    keys = [f"customer:{number:06}" for number in range(20)]
    outcomes = publisher.publish(
        [make_event(key, destination=rig.destination) for key in keys], monotonic() + 20
    )
    publisher.close()
    for key, outcome in zip(keys, outcomes, strict=True):
        assert isinstance(outcome, Delivered)
        assert outcome.receipt is not None
        assert outcome.receipt.startswith(f"{rig.destination}[{key_hash(key) % PARTITIONS}]@")


def test_an_unknown_topic_is_reported_as_the_destinations_trouble(kafka: Kafka) -> None:
    publisher = KafkaRig(kafka).make()
    (outcome,) = publisher.publish([make_event(destination="no-such-topic")], monotonic() + 20)
    publisher.close()
    assert isinstance(outcome, Unconfirmed)
    assert outcome.scope == "destination"
    assert "no-such-topic" in outcome.reason


@pytest.mark.parametrize(
    "key,expected",
    [
        ("", 275646681),
        ("a", -1563381124),
        ("abc", 479470107),
        ("order-42", 501153024),
        ("customer:000123", 750453629),
        ("日本語キー", 1445825182),
    ],
)
def test_the_hash_of_a_key_is_javas(key: str, expected: int) -> None:
    assert key_hash(key) == expected & 0x7FFFFFFF


@pytest.mark.parametrize("name", ["acks", "enable.idempotence", "message.timeout.ms"])
def test_a_safety_setting_cannot_be_unset(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        KafkaPublisher({"bootstrap_servers": "localhost:1", "config": {name: "0"}})


def test_a_missing_address_is_a_sentence_that_says_what_to_set() -> None:
    with pytest.raises(SettingsError, match="RELAY_KAFKA__BOOTSTRAP_SERVERS"):
        KafkaPublisher({})
