"""What confluent-kafka does by itself: the ceiling of the Kafka publisher.

The same messages with the same keys, partitions and headers, through a producer with the same settings, and
a delivery callback for each that does nothing but notice an error. Headers are made in the loop, as anyone
who publishes such messages has to, unless `prepared` asks for messages that were made beforehand.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        self._producer = Producer(producer_config(servers, config or {}, 1_000_000, lambda _: None))
        self._errors: list[Any] = []

    def publish(self, messages: Iterable[RawMessage]) -> None:
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
        if self._producer.flush(60) or self._errors:
            raise RelayError(f"Kafka did not take all messages of the raw loop: {self._errors[:1]}")

    def _confirm(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._errors.append(error)


def raw_kafka_loop(
    servers: str,
    batches: Sequence[Sequence[Event]],
    partitions: int,
    *,
    prepared: bool = False,
    config: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> float:
    """Seconds for these batches, one after the other; the first one is sent before the clock starts, too."""
    loop = RawKafkaLoop(servers, config)
    loop.publish(raw_messages(batches[0], partitions))
    made = [list(raw_messages(batch, partitions)) for batch in batches] if prepared else None
    started = clock()
    for messages in made or (raw_messages(batch, partitions) for batch in batches):
        loop.publish(messages)
    return clock() - started
