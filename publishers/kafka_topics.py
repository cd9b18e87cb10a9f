"""What the relay must know of a topic before it sends: its partitions and how large a record may be.

Facts are kept for a minute. Growth of a topic moves keys to other partitions: it is noticed, logged and
counted.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from publishers import classify
from relay.outcome import Outcome

log = logging.getLogger(__name__)

REFRESH_SECONDS = 60.0
# Kafka's own default, where a topic's configuration may not be read.
DEFAULT_LIMIT = 1_048_588


@dataclass(frozen=True)
class Topic:
    partitions: int
    limit: int  # bytes of a batch
    fresh_until: float


class Topics:
    """`interrupted` says what ended all hope while waiting, if anything did."""

    def __init__(
        self, config: dict[str, Any], incidents: Counter[str], interrupted: Callable[[], Outcome | None]
    ) -> None:
        self._config = config
        self._incidents = incidents
        self._interrupted = interrupted
        self._known: dict[str, Topic] = {}

    def smallest_limit(self) -> int:
        return min((topic.limit for topic in self._known.values()), default=DEFAULT_LIMIT)

    def known(self, name: str) -> Topic:
        """A topic that get() has returned."""
        return self._known[name]

    def forget(self, name: str) -> None:
        """Look again before the next use: something is not as it was."""
        if topic := self._known.get(name):
            self._known[name] = Topic(topic.partitions, topic.limit, 0.0)

    def get(self, producer: Producer, name: str, deadline: float) -> Topic | Outcome:
        """The topic, or what keeps its events from being sent."""
        known = self._known.get(name)
        if known is not None and monotonic() < known.fresh_until:
            return known
        partitions = self._partitions(producer, name, deadline)
        if not isinstance(partitions, int):
            return partitions
        if known is not None and partitions != known.partitions:
            self._incidents["partition_growth"] += 1
            log.error(
                "topic %s went from %d to %d partitions: keys move, and their order across the change is"
                " the consumers' to keep",
                name,
                known.partitions,
                partitions,
            )
        topic = Topic(partitions, self._limit(name, known, deadline), monotonic() + REFRESH_SECONDS)
        self._known[name] = topic
        return topic

    def _partitions(self, producer: Producer, name: str, deadline: float) -> int | Outcome:
        while True:
            patience = max(0.1, min(deadline - monotonic(), 1.0))
            try:
                found = producer.list_topics(name, timeout=patience).topics[name]
            except KafkaException as error:
                if (ended := self._interrupted()) is not None:
                    return ended
                if monotonic() < deadline:
                    continue
                return _outcome(error, f"no answer about topic '{name}'")
            if found.error is not None:
                trouble = classify.kafka(found.error.name())
                return classify.outcome(trouble, f"topic '{name}': {found.error.str()}")
            return len(found.partitions)

    def _limit(self, name: str, known: Topic | None, deadline: float) -> int:
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        patience = max(0.1, min(deadline - monotonic(), 5.0))
        try:
            asked: Sequence[Any] = list(
                AdminClient(self._config, logger=log)
                .describe_configs([resource], request_timeout=patience)
                .values()
            )
            return int(asked[0].result(patience)["max.message.bytes"].value)
        except (KafkaException, KeyError, ValueError, TimeoutError) as error:
            limit = known.limit if known else DEFAULT_LIMIT
            log.warning(
                "the limit of topic %s cannot be read (%s): assuming %d bytes a record", name, error, limit
            )
            return limit


def _outcome(error: KafkaException, subject: str) -> Outcome:
    inner = error.args[0]
    return classify.outcome(classify.kafka(inner.name()), f"{subject}: {inner.str()}")


def batch_bytes(key: bytes, value: bytes, headers: Sequence[tuple[str, str]]) -> int:
    """The exact size of an uncompressed batch with this record alone (message format v2)."""
    body = (
        1  # attributes
        + 1  # timestamp delta
        + 1  # offset delta
        + _sized(len(key))
        + _sized(len(value))
        + _varint(len(headers))
        + sum(_sized(len(name.encode())) + _sized(len(text.encode())) for name, text in headers)
    )
    return 61 + _sized(body)


def _sized(length: int) -> int:
    return _varint(length) + length


def _varint(number: int) -> int:
    """Bytes of a zigzag varint of a number that is not negative."""
    return max(1, ((number << 1).bit_length() + 6) // 7)
