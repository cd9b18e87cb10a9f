"""What the relay must know of a topic before it sends: its partitions and how large a record may be.

Facts are kept for a minute. Growth of a topic moves keys to other partitions: it is noticed, logged and
counted. Where the limit may not be read, records of any size are sent, and the broker has the last word.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from publishers import classify
from publishers.classify import Trouble
from relay.outcome import Outcome, Refused

log = logging.getLogger(__name__)

REFRESH_SECONDS = 60.0
# Kafka's own default, where a topic's configuration may not be read.
DEFAULT_LIMIT = 1_048_588
# Kafka's own limit. In bytes, since the characters of a topic's name are ASCII; of more than 512 the client
# makes an error of its own, not of the topic.
LONGEST_NAME = 249


@dataclass(frozen=True)
class Topic:
    partitions: int
    limit: int  # bytes of a batch
    limit_known: bool
    read_at: float


class Topics:
    """`interrupted` says what ended all hope while waiting, if anything did."""

    def __init__(
        self,
        config: dict[str, Any],
        incidents: Counter[str],
        interrupted: Callable[[Producer], Outcome | None],
    ) -> None:
        self._config = config
        self._incidents = incidents
        self._interrupted = interrupted
        self._known: dict[str, Topic] = {}
        self._has_controller = True

    def smallest_limit(self) -> int:
        return min((topic.limit for topic in self._known.values()), default=DEFAULT_LIMIT)

    def doubt(self, name: str | None = None) -> None:
        """Look again before the next use of this topic, or of any: something is not as it was."""
        for each in [name] if name is not None else list(self._known):
            if topic := self._known.get(each):
                self._known[each] = replace(topic, read_at=float("-inf"))

    def get(
        self, producer: Producer, name: str, deadline: float, max_age: float | None = None
    ) -> Topic | Outcome:
        """The topic, or what keeps its events from being sent."""
        known = self._known.get(name)
        age = REFRESH_SECONDS if max_age is None else max_age
        if known is not None and monotonic() < known.read_at + age:
            return known
        if len(name.encode(errors="replace")) > LONGEST_NAME:
            shown = f"'{name[:40]}…' cannot be the name of a topic"
            return Refused(f"{shown}: it is longer than {LONGEST_NAME} bytes")
        partitions = self.partitions(producer, name, deadline)
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
        limit, limit_known = self._limit(name, known, deadline)
        topic = Topic(partitions, limit, limit_known, monotonic())
        self._known[name] = topic
        return topic

    def partitions(self, producer: Producer, name: str, deadline: float) -> int | Outcome:
        """How many the topic has now, at least one, or why that cannot be said by the deadline."""
        while True:
            patience = max(0.1, min(deadline - monotonic(), 1.0))
            try:
                cluster = producer.list_topics(name, timeout=patience)
                found = cluster.topics[name]
            except KafkaException as error:
                if (ended := self._interrupted(producer)) is not None:
                    return ended
                if monotonic() < deadline:
                    continue
                inner = error.args[0]
                trouble = classify.kafka(inner.name())
                return classify.outcome(trouble, f"no answer about topic '{name}': {inner.str()}")
            except (ValueError, KeyError) as error:
                return Refused(f"'{name}' cannot be the name of a topic: {error}")
            if found.error is not None:
                trouble = classify.kafka(found.error.name())
                if trouble is Trouble.BROKER:
                    trouble = Trouble.DESTINATION  # it was said of this topic alone
                return classify.outcome(trouble, f"topic '{name}': {found.error.str()}")
            if not found.partitions:
                return classify.outcome(Trouble.DESTINATION, f"topic '{name}' has no partitions")
            self._has_controller = cluster.controller_id in cluster.brokers
            return len(found.partitions)

    def _limit(self, name: str, known: Topic | None, deadline: float) -> tuple[int, bool]:
        """The topic's max.message.bytes, and whether the broker said so."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        patience = max(0.1, min(deadline - monotonic(), 5.0))
        error: BaseException | None
        if self._has_controller:
            # Named: the client must outlive its answer.
            admin = AdminClient(self._config, logger=log)
            asked = admin.describe_configs([resource], request_timeout=patience)[resource]
            try:
                # Not result(): the traceback of what it raises would keep the producer alive.
                error = asked.exception(patience + 0.5)
            except TimeoutError:
                error = TimeoutError("no answer")
            if error is None:
                try:
                    return int(asked.result()["max.message.bytes"].value), True
                except (KeyError, TypeError, ValueError):  # not named, without a value, no number
                    error = LookupError("the broker does not say max.message.bytes")
        else:  # nobody to ask: the client would wait for one, and the batch with it
            error = LookupError("the cluster names no controller")
        if known is None:
            log.warning(
                "the limit of topic %s cannot be read (%s): the broker will say what is too large",
                name,
                error,
            )
            return DEFAULT_LIMIT, False
        return known.limit, known.limit_known


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
