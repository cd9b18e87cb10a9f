"""What confluent-kafka does by itself: the ceiling of the Kafka publisher.

The same messages with the same keys, partitions and headers, through a producer with the same settings, and
a delivery callback for each that does nothing but notice an error. Headers are made in the loop, as anyone
who publishes such messages has to.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from confluent_kafka import Producer

from publishers.kafka import key_hash
from publishers.kafka_config import producer_config
from relay.errors import RelayError
from relay.event import Event
from relay.message import Headers, plain_headers


class RawMessage(NamedTuple):
    topic: str
    value: bytes
    key: str
    partition: int
    headers: Headers


def raw_messages(events: Iterable[Event], partitions: int) -> Iterator[RawMessage]:
    for event in events:
        yield RawMessage(
            event.destination,
            event.payload,
            event.event_id,
            key_hash(event.key) % partitions,
            plain_headers(event),
        )


class RawKafkaLoop:
    """Publishes batches and waits for each, as the publisher does; warm after the first."""

    def __init__(self, servers: str, config: Mapping[str, Any] | None = None) -> None:
        self._producer = Producer(
            producer_config(servers, {**(config or {}), "log_level": 0}, 1_000_000, lambda _: None)
        )
        self._errors: list[Any] = []

    def publish(self, messages: Iterable[RawMessage]) -> None:
        self._produce(messages)
        self._flush()

    def _produce(self, messages: Iterable[RawMessage]) -> None:
        produce, confirm = self._producer.produce, self._confirm
        for topic, value, key, partition, headers in messages:
            produce(
                topic,
                value=value,
                key=key,
                partition=partition,
                headers=headers,  # type: ignore[arg-type]
                on_delivery=confirm,
            )

    def _flush(self) -> None:
        if self._producer.flush(60) or self._errors:
            raise RelayError(f"Kafka did not take all messages of the raw loop: {self._errors[:1]}")

    def in_batches(self, batches: Sequence[Sequence[Event]], partitions: int) -> list[float]:
        """Seconds of each."""
        seconds = []
        for batch in batches:
            started = perf_counter()
            self.publish(raw_messages(batch, partitions))
            seconds.append(perf_counter() - started)
        return seconds

    def free_running(self, batches: Sequence[Sequence[Event]], partitions: int) -> float:
        """Seconds for all of them, without a wait in between."""
        started = perf_counter()
        for batch in batches:
            self._produce(raw_messages(batch, partitions))
            self._producer.poll(0)
        self._flush()
        return perf_counter() - started

    def _confirm(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._errors.append(error)
