"""What a broker says of a topic, however odd, is an outcome and never an error."""

from collections import Counter
from concurrent.futures import Future
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from publishers import kafka_topics
from publishers.kafka import KafkaPublisher
from publishers.kafka_call import Call
from publishers.kafka_topics import DEFAULT_LIMIT, Topic, Topics
from relay.outcome import Outcome, Refused, Unconfirmed
from relay.testing import make_event


class FakeProducer:
    """Answers for one topic with so many partitions."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def list_topics(self, name: str, timeout: float) -> Any:
        found = SimpleNamespace(error=None, partitions=dict.fromkeys(range(self._partitions)))
        return SimpleNamespace(topics={name: found}, controller_id=1, brokers={1: None})


def topics() -> Topics:
    return Topics({}, Counter(), lambda _: None)


def get(name: str, producer: Any) -> Topic | Outcome:
    return topics().get(producer, name, monotonic() + 5)


@pytest.mark.parametrize("name", ["x" * 250, "x" * 600, "ü" * 300, "日" * 200])
def test_a_name_that_is_too_long_for_a_topic_refuses_its_event_without_asking(name: str) -> None:
    outcome = get(name, producer=None)
    assert isinstance(outcome, Refused)
    assert "cannot be the name of a topic" in outcome.reason
    assert len(outcome.reason) < 200


def test_a_topic_without_partitions_is_the_destinations_trouble() -> None:
    assert get("empty", FakeProducer(0)) == Unconfirmed("topic 'empty' has no partitions", "destination")


@pytest.mark.parametrize(
    "answer",
    [{}, {"max.message.bytes": None}, {"max.message.bytes": "large"}],
    ids=["missing", "none", "text"],
)
def test_a_limit_that_the_broker_does_not_tell_cannot_be_read(
    answer: dict[str, str | None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config: Future[Any] = Future()
    config.set_result({name: SimpleNamespace(value=value) for name, value in answer.items()})
    admin = SimpleNamespace(describe_configs=lambda resources, **_: dict.fromkeys(resources, config))
    monkeypatch.setattr(kafka_topics, "AdminClient", lambda *_, **__: admin)
    topic = get("orders", FakeProducer(3))
    assert isinstance(topic, Topic)
    assert (topic.partitions, topic.limit, topic.limit_known) == (3, DEFAULT_LIMIT, False)
    assert "the limit of topic orders cannot be read" in caplog.text


def test_a_suspect_whose_topic_has_gone_is_not_refused_for_its_batchs_sake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publisher = KafkaPublisher({"bootstrap_servers": "localhost:1"})
    gone = Unconfirmed("topic 'orders' has no partitions", "destination")
    monkeypatch.setattr(publisher._topics, "get", lambda *_: gone)
    call = Call([make_event()], monotonic() + 5, Counter())
    call.results[0] = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    publisher._send_alone(call, FakeProducer(0), 0)  # type: ignore[arg-type]
    assert call.results[0] == gone
