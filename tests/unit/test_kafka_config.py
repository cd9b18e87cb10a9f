"""What may be set through [kafka.config], checked against the librdkafka that is installed."""

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from publishers import kafka_config
from publishers.kafka import KafkaPublisher
from publishers.kafka_config import WHY_NOT
from relay.errors import SettingsError

# What the issue of safety is about, under the names of librdkafka's own documentation.
SAFETY = [
    "request.required.acks",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "message.timeout.ms",
    "request.timeout.ms",
    "message.send.max.retries",
    "max.in.flight.requests.per.connection",
    "queuing.strategy",
    "partitioner",
    "transactional.id",
    "transaction.timeout.ms",
    "allow.auto.create.topics",
    "delivery.report.only.error",
    "message.max.bytes",
    "metadata.broker.list",
]


def librdkafka_properties(folder: Path) -> dict[str, str]:
    """Property and description, as the installed library prints them."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    path = next(line.split()[-1] for line in maps if "librdkafka" in line)
    library, libc = ctypes.CDLL(path), ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    target = folder / "properties"
    file = ctypes.c_void_p(libc.fopen(str(target).encode(), b"w"))
    library.rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    rows = [line.split("|") for line in target.read_text().splitlines() if line.count("|") >= 5]
    return {row[0].strip(): row[-1].strip() for row in rows if re.fullmatch(r"[a-z_.]+", row[0].strip())}


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    return librdkafka_properties(tmp_path)


def test_every_alias_of_a_safety_setting_is_refused_as_the_setting_is(properties: dict[str, str]) -> None:
    assert set(SAFETY) <= properties.keys()
    aliases = {
        name: found[1]
        for name, text in properties.items()
        if (found := re.search(r"Alias for `([^`]+)`", text))
    }
    assert aliases["delivery.timeout.ms"] == "message.timeout.ms"
    for name, original in aliases.items():
        assert (name in WHY_NOT) == (original in WHY_NOT), f"{name} is {original}"


@pytest.mark.parametrize("name", sorted(set(SAFETY) | set(WHY_NOT)))
@pytest.mark.parametrize("disguise", ["{}", "topic.{}", " {} ", "Topic.{}"])
def test_a_safety_setting_is_refused_with_a_reason(name: str, disguise: str) -> None:
    written = disguise.format(name)
    with pytest.raises(SettingsError) as refusal:
        KafkaPublisher({"bootstrap_servers": "localhost:1", "config": {written: "0"}})
    assert str(refusal.value) == f"[kafka.config] {written} cannot be set: {WHY_NOT[name]}"


@pytest.mark.parametrize("name", sorted(name for name in WHY_NOT if "_cb" not in name))
def test_no_reason_is_given_for_a_name_that_nobody_knows(name: str, properties: dict[str, str]) -> None:
    of_confluent_kafka = {"default.topic.config", "on_delivery", "logger"}
    hidden = {"test.mock.num.brokers"}
    assert name in properties.keys() | of_confluent_kafka | hidden


def test_a_topic_prefix_does_reach_librdkafka() -> None:
    with pytest.raises(KafkaException, match="acks"):
        Producer({"enable.idempotence": True, "topic.acks": 1})


def test_the_producer_is_made_with_what_safety_needs_and_the_rest_as_asked() -> None:
    mine: dict[str, Any] = {"linger.ms": 50, "compression.type": "gzip", "batch.size": 5_000_000}
    config = kafka_config.producer_config("broker:9092", mine, 1_000, print)
    assert config["acks"] == "all"
    assert config["enable.idempotence"] is True
    assert config["message.timeout.ms"] == 0
    assert config["allow.auto.create.topics"] is False
    assert config["linger.ms"] == 50
    assert config["compression.type"] == "gzip"
    assert config["batch.size"] == 1_000


@pytest.mark.parametrize(
    "config,expected",
    [
        ({}, False),
        ({"compression.type": "none"}, False),
        ({"topic.compression.codec": "inherit"}, False),
        ({"compression.type": "zstd"}, True),
        ({"compression.codec": "LZ4"}, True),
        ({"topic.compression.type": "gzip"}, True),
        ({"compression.type": "none", "topic.compression.codec": "snappy"}, True),
    ],
)
def test_compression_is_known_by_all_its_names(config: dict[str, Any], expected: bool) -> None:
    kafka_config.check(config)
    assert kafka_config.compresses(config) is expected


def test_login_and_encryption_pass_through_to_every_client() -> None:
    mine = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "relay",
        "sasl.password": "secret",
        "enable.ssl.certificate.verification": True,
        "ssl.endpoint.identification.algorithm": "https",
        "topic.metadata.refresh.interval.ms": 60_000,
        "socket.keepalive.enable": True,
    }
    KafkaPublisher({"bootstrap_servers": "localhost:1", "config": mine})
    assert kafka_config.client_config("localhost:1", mine) == {**mine, "bootstrap.servers": "localhost:1"}
    assert mine.items() <= kafka_config.producer_config("localhost:1", mine, 1_000_000, print).items()


@pytest.mark.parametrize(
    "config,said",
    [
        ({"no.such.setting": 1}, 'No such configuration property: "no.such.setting"'),
        ({"compression.type": "lzma"}, "compression"),
        ({"batch.size": "many"}, "batch.size"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/no/such/file.pem"}, "ssl.ca.location"),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}, "sasl.username"),
        ({"dr_msg_cb": "x"}, "what the client reports belongs to the relay"),
    ],
)
def test_a_mistake_is_an_error_before_the_first_event(config: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape("[kafka.config]")) as mistake:
        KafkaPublisher({"bootstrap_servers": "localhost:1", "config": config})
    assert said in str(mistake.value)


def test_a_mistake_beside_a_password_does_not_show_it() -> None:
    config = {"sasl.password": "hunter2", "security.protocol": "nonsense"}
    with pytest.raises(SettingsError) as mistake:
        KafkaPublisher({"bootstrap_servers": "localhost:1", "config": config})
    assert "hunter2" not in str(mistake.value)
