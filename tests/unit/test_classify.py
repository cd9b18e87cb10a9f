"""The table of troubles is whole: every code of every client maps to an outcome, none by accident."""

import pika.spec
import pytest
from confluent_kafka import KafkaError

from publishers import classify
from publishers.classify import KAFKA, RABBITMQ, WEBHOOK, Trouble
from relay.outcome import Refused, Unconfirmed

KAFKA_NAMES = sorted(
    name for name in dir(KafkaError) if name.strip("_").isupper() and type(getattr(KafkaError, name)) is int
)
AMQP_CODES = {
    name: code
    for name, code in vars(pika.spec).items()
    if name.isupper() and type(code) is int and 300 <= code < 600
}


@pytest.mark.parametrize(
    "trouble,expected",
    [
        (Trouble.BROKER, Unconfirmed("why", "broker", 7.0)),
        (Trouble.FATAL, Unconfirmed("why", "broker", 7.0)),
        (Trouble.DESTINATION, Unconfirmed("why", "destination", 7.0)),
        (Trouble.HOST, Unconfirmed("why", "destination", 7.0, holds="host")),
        (Trouble.SETTINGS, Unconfirmed("why", "settings", 7.0)),
        (Trouble.EVENT, Unconfirmed("why", "event", 7.0)),
        (Trouble.RECORD, Refused("why")),
    ],
)
def test_a_trouble_says_whom_the_relay_holds_it_against(
    trouble: Trouble, expected: Unconfirmed | Refused
) -> None:
    assert classify.outcome(trouble, "why", 7.0) == expected


def test_every_trouble_has_an_outcome() -> None:
    assert all(isinstance(classify.outcome(trouble, "why"), Unconfirmed | Refused) for trouble in Trouble)


@pytest.mark.parametrize("name", sorted(KAFKA))
def test_every_kafka_entry_is_a_name_that_the_client_uses(name: str) -> None:
    assert KafkaError(getattr(KafkaError, name)).name() == name


@pytest.mark.parametrize("name", KAFKA_NAMES)
def test_every_kafka_code_is_listed_or_the_brokers(name: str) -> None:
    found = classify.kafka(KafkaError(getattr(KafkaError, name)).name())
    assert found is KAFKA.get(name, Trouble.BROKER)


# What happens to everyone when brokers come, go or are slow: never against an event, never a stop.
@pytest.mark.parametrize(
    "name",
    [
        "_MSG_TIMED_OUT",
        "_PURGE_QUEUE",
        "_PURGE_INFLIGHT",
        "_TRANSPORT",
        "_RESOLVE",
        "_ALL_BROKERS_DOWN",
        "_TIMED_OUT",
        "_QUEUE_FULL",
        "_ISR_INSUFF",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "KAFKA_STORAGE_ERROR",
        "THROTTLING_QUOTA_EXCEEDED",
        "INVALID_MSG",  # corrupt on the way, not as it was written
        "UNKNOWN",
    ],
)
def test_a_cluster_in_trouble_is_the_brokers(name: str) -> None:
    assert name in KAFKA_NAMES
    assert classify.kafka(name) is Trouble.BROKER


@pytest.mark.parametrize("name", ["MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD"])
def test_only_what_kafka_says_of_a_record_is_the_records(name: str) -> None:
    assert classify.kafka(name) is Trouble.RECORD


def test_no_other_kafka_code_parks_an_event() -> None:
    assert {name for name in KAFKA_NAMES if classify.kafka(name) is Trouble.RECORD} == {
        "MSG_SIZE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_RECORD",
        "POLICY_VIOLATION",
    }


def test_amqp_has_the_codes_we_know() -> None:
    assert len(AMQP_CODES) == 18


@pytest.mark.parametrize("code", sorted(AMQP_CODES.values()))
def test_every_amqp_code_is_listed(code: int) -> None:
    assert classify.rabbitmq(code) is RABBITMQ[code]


@pytest.mark.parametrize("code", sorted(code for code in RABBITMQ if isinstance(code, int)))
def test_every_rabbitmq_entry_is_a_code_of_amqp(code: int) -> None:
    assert code in AMQP_CODES.values()


def test_an_unknown_amqp_code_is_the_brokers() -> None:
    assert classify.rabbitmq(599) is Trouble.BROKER


@pytest.mark.parametrize(
    "status,trouble",
    [
        (101, Trouble.HOST),
        (301, Trouble.DESTINATION),
        (304, Trouble.DESTINATION),
        (308, Trouble.DESTINATION),
        (400, Trouble.RECORD),
        (401, Trouble.DESTINATION),
        (403, Trouble.DESTINATION),
        (404, Trouble.DESTINATION),
        (408, Trouble.HOST),
        (409, Trouble.EVENT),
        (410, Trouble.DESTINATION),
        (413, Trouble.RECORD),
        (422, Trouble.RECORD),
        (423, Trouble.EVENT),
        (425, Trouble.HOST),
        (429, Trouble.HOST),
        (431, Trouble.RECORD),
        (500, Trouble.HOST),
        (503, Trouble.HOST),
        (599, Trouble.HOST),
        (999, Trouble.HOST),
    ],
)
def test_a_status_is_whose_trouble(status: int, trouble: Trouble) -> None:
    assert classify.webhook(status) is trouble


@pytest.mark.parametrize("what", sorted(WEBHOOK, key=str))
def test_no_webhook_entry_holds_up_other_hosts_or_parks_events(what: int | str) -> None:
    expected = {Trouble.RECORD} if what == "url" else {Trouble.HOST, Trouble.DESTINATION, Trouble.EVENT}
    assert classify.webhook(what) in expected
