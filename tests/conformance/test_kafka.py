"""The suite against a real broker, and what is particular to Kafka where nothing goes wrong in between.

What a misbehaving broker does to it is in tests/system/test_kafka_faults.py.
"""

import os
import subprocess
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import Producer

from publishers import kafka_topics
from publishers.kafka import KafkaPublisher, key_hash
from publishers.kafka_topics import batch_bytes
from relay.errors import SettingsError
from relay.event import Event
from relay.message import plain_headers
from relay.outcome import Delivered, Refused, Unconfirmed
from relay.testing import PublisherConformance, make_event
from tests.conftest import Kafka
from tests.servers.kafka import find_jars
from tests.servers.kafka_rig import KafkaRig, in_order

PATIENCE = 20.0


class TestKafka(PublisherConformance):
    @pytest.fixture
    def rig(self, kafka: Kafka) -> KafkaRig:
        return KafkaRig(kafka.address)


class TestKafkaOnePerKey(PublisherConformance):
    @pytest.fixture
    def rig(self, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> KafkaRig:
        rig = KafkaRig(kafka.address)
        make = rig.make
        monkeypatch.setattr(rig, "make", lambda: make(max_unconfirmed_per_key=1))
        return rig


class TestKafkaWithoutReceipts(PublisherConformance):
    @pytest.fixture
    def rig(self, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> KafkaRig:
        rig = KafkaRig(kafka.address)
        make = rig.make
        monkeypatch.setattr(rig, "make", lambda: make(receipts=False))
        return rig


def publish(publisher: KafkaPublisher, events: list[Event]) -> list[object]:
    return list(publisher.publish(events, monotonic() + PATIENCE))


# Where a key goes


JAVA = """
import java.util.Properties;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.StringSerializer;

public class Partitions {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int i = 2; i < args.length; i++) {
                var record = new ProducerRecord<>(args[1], args[i], "");
                System.out.println(producer.send(record).get().partition());
            }
        }
    }
}
"""
VECTORS = {
    "": 275646681,
    "a": -1563381124,
    "abc": 479470107,
    "order-42": 501153024,
    "customer:000123": 750453629,
    "日本語キー": 1445825182,
}


@pytest.mark.parametrize("key,expected", VECTORS.items())
def test_the_hash_of_a_key_is_javas(key: str, expected: int) -> None:
    assert key_hash(key) == expected & 0x7FFFFFFF


def test_a_key_goes_to_the_partition_that_the_java_client_chooses(kafka: Kafka, tmp_path: Path) -> None:
    rig = KafkaRig(kafka.address, partitions=12)
    keys = [*(key for key in VECTORS if key), "order:9182", "ключ", "🐎", "x" * 255]
    keys += [f"customer:{number:06}" for number in range(40)]
    program = tmp_path / "Partitions.java"
    program.write_text(JAVA)
    # Stopping at the first compiler tier: it runs for a second.
    tuning = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    command = ["java", *tuning, "-cp", f"{find_jars()}/*", str(program), kafka.address, rig.destination]
    java = subprocess.run(
        [*command, *keys],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    chosen = [int(line) for line in java.stdout.split()]
    publisher = rig.make()
    outcomes = publish(publisher, [make_event(key, destination=rig.destination) for key in keys])
    publisher.close()
    for key, outcome, partition in zip(keys, outcomes, chosen, strict=True):
        assert isinstance(outcome, Delivered)
        assert str(outcome.receipt).startswith(f"{rig.destination}[{partition}]@"), key
    assert len(set(chosen)) > 6


def test_the_message_key_is_the_event_id_or_if_asked_the_partition_key(kafka: Kafka) -> None:
    rig = KafkaRig(kafka.address)
    for options in ({}, {"message_key": "partition_key"}):
        publisher = rig.make(**options)
        publish(publisher, [make_event("order:7", event_id="evt-7", destination=rig.destination)])
        publisher.close()
    messages = rig.messages(2)
    assert [message.key() for message in messages] == [b"evt-7", b"order:7"]
    assert len({message.partition() for message in messages}) == 1


def test_growth_of_a_topic_is_noticed_logged_and_counted(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kafka_topics, "REFRESH_SECONDS", 0.0)
    rig = KafkaRig(kafka.address, partitions=1)
    publisher = rig.make()
    events = []
    deadline = monotonic() + PATIENCE
    while not publisher.incidents["partition_growth"] and monotonic() < deadline:
        batch = [make_event(f"order:{number}", destination=rig.destination) for number in range(50)]
        assert all(isinstance(outcome, Delivered) for outcome in publish(publisher, batch))
        events += batch
        if rig.partitions == 1:
            rig.grow(6)
    batch = [make_event(f"order:{number}", destination=rig.destination) for number in range(50)]
    outcomes = publish(publisher, batch)
    publisher.close()
    assert publisher.incidents["partition_growth"] == 1
    assert f"topic {rig.destination} went from 1 to 6 partitions" in caplog.text
    used = {str(outcome.receipt).split("@")[0] for outcome in outcomes if isinstance(outcome, Delivered)}
    assert len(used) == 6
    assert len(rig.messages()) == len(events) + len(batch)


# How large a record may be


def of_size(size: int, **fields: Any) -> Event:
    """An event that makes a batch of exactly this many bytes."""
    event = make_event(payload=b"", **fields)
    payload = b""
    while (missing := size - _size(event._replace(payload=payload))) > 0:
        payload += b"x" * missing
    # Where the length takes another byte there is one size that no payload has.
    while _size(event._replace(payload=payload)) > size:
        payload = payload[:-1]
    return event._replace(payload=payload)


def _size(event: Event) -> int:
    return batch_bytes(event.event_id.encode(), event.payload, plain_headers(event))


@pytest.mark.parametrize("limit", [1_500, 8_800, 70_000])
def test_the_broker_takes_a_record_of_the_topics_limit_and_none_that_is_larger(
    kafka: Kafka, limit: int
) -> None:
    rng = Random(limit)
    rig = KafkaRig(kafka.address, partitions=1, config={"max.message.bytes": str(limit)})
    raw = Producer(
        {"bootstrap.servers": kafka.address, "message.max.bytes": 10_000_000, "batch.num.messages": 1}
    )
    answers: list[tuple[int, str | None]] = []
    for _ in range(20):
        headers = {f"h{n}": "é" * rng.randrange(20) for n in range(rng.randrange(8))}
        size = limit + rng.choice([-1, 0, 1])
        event = of_size(size, key="k" * rng.randrange(1, 200), headers=headers)

        def answer(error: Any, message: object, size: int = _size(event)) -> None:
            answers.append((size, error.name() if error else None))

        raw.produce(
            rig.destination,
            key=event.event_id,
            value=event.payload,
            headers=plain_headers(event),  # type: ignore[arg-type]
            on_delivery=answer,
        )
    raw.flush(PATIENCE)
    assert len(answers) == 20
    assert {size > limit for size, _ in answers} == {True, False}
    for size, error in answers:
        assert error == ("MSG_SIZE_TOO_LARGE" if size > limit else None), size


def test_a_record_of_exactly_the_limit_is_delivered_and_a_larger_one_refused(kafka: Kafka) -> None:
    rig = KafkaRig(kafka.address, config={"max.message.bytes": "3000"})
    exact = of_size(3000, key="order:1", destination=rig.destination, headers={"tenant": "a"})
    larger = of_size(3001, key="order:2", destination=rig.destination, headers={"tenant": "a"})
    publisher = rig.make()
    outcomes = publish(publisher, [exact, larger])
    publisher.close()
    assert isinstance(outcomes[0], Delivered)
    assert outcomes[1] == Refused(f"3001 bytes are more than topic '{rig.destination}' takes (3000)")
    assert [message.key().decode() for message in rig.messages(1)] == [exact.event_id]


@pytest.mark.parametrize("name", ["compression.type", "topic.compression.codec"])
def test_of_compressed_records_the_broker_says_which_is_too_large(kafka: Kafka, name: str) -> None:
    rig = KafkaRig(kafka.address, partitions=1, config={"max.message.bytes": "3000"})
    even = make_event("order:1", destination=rig.destination, payload=b"x" * 20_000)
    behind = make_event("order:1", destination=rig.destination)
    noise = make_event("order:2", destination=rig.destination, payload=Random(1).randbytes(20_000))
    mate = make_event("order:3", destination=rig.destination)
    publisher = rig.make(config={name: "gzip"})
    outcomes = publish(publisher, [even, behind, noise, mate])
    publisher.close()
    assert [type(outcome) for outcome in outcomes] == [Delivered, Delivered, Refused, Delivered]
    assert "the broker refused it" in str(outcomes[2])
    assert in_order(rig.messages(3), [even, behind, mate])


def test_a_limit_that_was_raised_is_known_before_a_record_is_refused(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("publishers.kafka.SURE_SECONDS", 0.0)
    rig = KafkaRig(kafka.address, config={"max.message.bytes": "2000"})
    publisher = rig.make()
    large = make_event(destination=rig.destination, payload=b"x" * 10_000)
    assert isinstance(publish(publisher, [large])[0], Refused)
    rig.alter(max_message_bytes="20000")
    deadline = monotonic() + PATIENCE
    while isinstance(outcome := publish(publisher, [large])[0], Refused) and monotonic() < deadline:
        pass
    publisher.close()
    assert isinstance(outcome, Delivered)


def test_small_records_never_fail_by_their_sum(kafka: Kafka) -> None:
    rig = KafkaRig(kafka.address, partitions=1, config={"max.message.bytes": "5000"})
    events = [make_event(f"order:{n % 3}", destination=rig.destination) for n in range(600)]
    refused = []
    raw = Producer({"bootstrap.servers": kafka.address, "linger.ms": 100})
    for event in events:
        raw.produce(
            rig.destination,
            key=event.event_id,
            value=event.payload * 10,
            on_delivery=lambda error, _: refused.append(error.name()) if error else None,
        )
    raw.flush(PATIENCE)
    assert "MSG_SIZE_TOO_LARGE" in refused, "the sum of these records is too large for the topic"

    publisher = rig.make(config={"linger.ms": 100})
    outcomes = publish(publisher, [event._replace(payload=event.payload * 10) for event in events])
    publisher.close()
    assert all(isinstance(outcome, Delivered) for outcome in outcomes)
    assert in_order(rig.messages(), events)


def test_more_events_than_the_clients_queue_holds_are_delivered_in_order(kafka: Kafka) -> None:
    rig = KafkaRig(kafka.address)
    publisher = rig.make(config={"queue.buffering.max.messages": 10})
    events = [make_event(f"order:{n % 5}", destination=rig.destination) for n in range(400)]
    assert all(isinstance(outcome, Delivered) for outcome in publish(publisher, events))
    publisher.close()
    assert in_order(rig.messages(), events)


# What is wrong with the destination or the settings


def test_an_unknown_topic_is_reported_as_the_destinations_trouble_within_a_second(kafka: Kafka) -> None:
    rig = KafkaRig(kafka.address)
    publisher = rig.make()
    took = []
    for number in range(3):
        begun = monotonic()
        (outcome,) = publish(publisher, [make_event(destination=f"no-such-topic-{number}")])
        took.append(monotonic() - begun)
        assert isinstance(outcome, Unconfirmed)
        assert outcome.scope == "destination"
        assert f"no-such-topic-{number}" in outcome.reason
    publisher.close()
    assert min(took) < 1.0


@pytest.mark.parametrize(
    "name",
    ["", ".", "two words", "größe", "x" * 300, "x" * 600, "ü" * 300, "日" * 200, "nul\0", "{event_type}"],
)
def test_a_destination_that_is_no_topics_name_fails_alone(kafka: Kafka, name: str) -> None:
    rig = KafkaRig(kafka.address)
    publisher = rig.make()
    outcomes = publish(
        publisher,
        [make_event("order:1", destination=name), make_event("order:2", destination=rig.destination)],
    )
    publisher.close()
    assert not isinstance(outcomes[0], Delivered)
    assert isinstance(outcomes[1], Delivered)


def test_a_missing_address_is_a_sentence_that_says_what_to_set() -> None:
    with pytest.raises(SettingsError, match="RELAY_KAFKA__BOOTSTRAP_SERVERS"):
        KafkaPublisher({})
