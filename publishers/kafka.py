"""Publishes to Apache Kafka through confluent-kafka.

Guarantees: idempotent, acknowledged by all in-sync replicas; the first occurrences of a key's events are in
order. librdkafka's own message timeout is off, because a record that expires by itself lets the ones behind
it through. Instead the call's deadline ends everything: what is not confirmed by then is purged, the producer
is discarded, and a new one sends from the first unconfirmed event when the relay publishes it again.

A record that the broker would refuse for its size is refused before it is sent. If a batch is refused all the
same, each of its records is sent alone: the one at fault is found, its mates are delivered.

The message key is the event id; the partition comes from the partition key, as the Java client chooses it.
"""

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from time import monotonic
from typing import Any

from publishers import classify, kafka_config
from publishers.classify import Trouble
from relay.errors import MissingExtra, SettingsError
from relay.event import Event
from relay.message import encoder
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
    from murmurhash2 import murmurhash2

    from publishers.kafka_topics import Topics, batch_bytes
except ImportError as error:
    raise MissingExtra("the Kafka publisher", "kafka") from error

log = logging.getLogger(__name__)

JAVA_SEED = 0x9747B28C
CLOSE_SECONDS = 3.0
# Above this a record's exact size is computed and compared with the topic's limit.
SURELY_SMALL = 100_000


@lru_cache(maxsize=65536)
def key_hash(key: str) -> int:
    """The Java client's positive murmur2 of the key: partition = key_hash(key) % partitions."""
    return int(murmurhash2(key.encode(), JAVA_SEED)) & 0x7FFFFFFF


class KafkaPublisher:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self._user_config = dict(options.get("config") or {})
        kafka_config.check(self._user_config)
        self._servers = options.get("bootstrap_servers")
        if not self._servers:
            raise SettingsError(
                "publisher = 'kafka' needs an address: set [kafka] bootstrap_servers or"
                " RELAY_KAFKA__BOOTSTRAP_SERVERS, e.g. localhost:9092"
            )
        self._key_is_event_id = options.get("message_key", "event_id") == "event_id"
        self._wave = int(options.get("max_unconfirmed_per_key", 0))
        self._headers = encoder(options.get("format", "plain"), "kafka")
        # What an operator should know of, by kind; the worker shows it as a metric.
        self.incidents: Counter[str] = Counter()
        self._producer: Producer | None = None
        self._made_in = 0
        self._batch_bytes = 0
        self._ended: Outcome | None = None  # by wrong settings: nothing will get through
        self._topics = Topics(
            kafka_config.client_config(self._servers, self._user_config), self.incidents, lambda: self._ended
        )

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        self._ended = None
        outcomes: list[Outcome | None] = [None] * len(events)
        stopped: set[str] = set()
        for wave in _waves(events, self._wave):
            self._send_wave(events, wave, outcomes, stopped, deadline)
            if self._producer is None:
                break
        return self._hold_back(events, outcomes)

    def close(self) -> None:
        self._discard()

    def _send_wave(
        self,
        events: Sequence[Event],
        wave: Sequence[int],
        outcomes: list[Outcome | None],
        stopped: set[str],
        deadline: float,
    ) -> None:
        """Send these events and wait; then, alone, those whose batch was refused."""
        try:
            self._send(events, [i for i in wave if events[i].key not in stopped], outcomes, stopped, deadline)
            suspects = [
                i for i in wave if isinstance(outcomes[i], Refused) and _came_from_broker(outcomes[i])
            ]
            for index in suspects:
                if events[index].key in stopped or self._producer is None:
                    continue
                outcomes[index] = None
                self._send(events, [index], outcomes, stopped, deadline)
                if not isinstance(outcomes[index], Delivered):
                    stopped.add(events[index].key)
        except (KafkaException, SystemError, RuntimeError) as error:
            # Fatal errors come out of any call, and callbacks may be lost with them.
            log.error("the Kafka client failed: %s", error)
            self.incidents["client_rebuilt"] += 1
            self._discard()
        stopped.update(events[i].key for i in wave if not isinstance(outcomes[i], Delivered))

    def _send(
        self,
        events: Sequence[Event],
        chosen: Sequence[int],
        outcomes: list[Outcome | None],
        stopped: set[str],
        deadline: float,
    ) -> None:
        """Produce and wait for the callbacks. Without a callback by the deadline an outcome stays None."""
        producer = self._connected(events, chosen, outcomes, deadline)
        for index in chosen:
            event = events[index]
            if outcomes[index] is not None:
                stopped.add(event.key)
            elif event.key not in stopped:
                failure = self._produce(producer, event, partial(_confirm, outcomes, index), deadline)
                if failure is not None:
                    outcomes[index] = failure
                    stopped.add(event.key)
        while producer.flush(max(0.0, min(deadline - monotonic(), 0.5))):
            if monotonic() >= deadline or self._ended is not None:
                break
        if len(producer):
            log.warning("%d events were not confirmed in time: the producer is discarded", len(producer))
            for topic in {events[i].destination for i in chosen}:
                self._topics.forget(topic)
            self._discard()
        elif any(_is_fatal(outcomes[i]) for i in chosen):
            self.incidents["client_rebuilt"] += 1
            self._discard()

    def _connected(
        self, events: Sequence[Event], chosen: Sequence[int], outcomes: list[Outcome | None], deadline: float
    ) -> Producer:
        """A producer whose batches fit all topics of these events; what has no topic gets its outcome."""
        producer = self._current() or self._new_producer()
        troubled: dict[str, Outcome] = {}
        for topic in {events[i].destination for i in chosen}:
            found = self._topics.get(producer, topic, deadline)
            if isinstance(found, Delivered | Unconfirmed | Refused):
                troubled[topic] = found
        if troubled:
            for index in chosen:
                outcomes[index] = troubled.get(events[index].destination)
        if self._topics.smallest_limit() < self._batch_bytes:
            self._discard()
            producer = self._new_producer()
        return producer

    def _current(self) -> Producer | None:
        if self._producer is not None and self._made_in != os.getpid():
            # A forked copy never delivers, and closing it would wait for threads that are not here.
            self._producer = None
        return self._producer

    def _new_producer(self) -> Producer:
        self._batch_bytes = self._topics.smallest_limit()
        config = kafka_config.producer_config(
            str(self._servers), self._user_config, self._batch_bytes, self._on_error
        )
        try:
            self._producer = Producer(config, logger=log)
        except KafkaException as error:
            raise SettingsError(f"[kafka.config]: {error.args[0].str()}") from error
        self._made_in = os.getpid()
        return self._producer

    def _produce(self, producer: Producer, event: Event, confirm: Any, deadline: float) -> Outcome | None:
        """Hand one event to the client; what kept it from being handed over, if anything."""
        topic = self._topics.known(event.destination)
        key = event.event_id if self._key_is_event_id else event.key
        headers = self._headers(event)
        if len(event.payload) > SURELY_SMALL or topic.limit < SURELY_SMALL or event.headers:
            size = batch_bytes(key.encode(), event.payload, headers)
            if size > topic.limit:
                return Refused(
                    f"{size} bytes are more than topic '{event.destination}' takes ({topic.limit})"
                )
        while True:
            try:
                producer.produce(
                    event.destination,
                    value=event.payload,
                    key=key,
                    partition=key_hash(event.key) % topic.partitions,
                    headers=headers,  # type: ignore[arg-type]
                    on_delivery=confirm,
                )
                return None
            except BufferError:
                producer.poll(0.1)
                if monotonic() >= deadline:
                    return Unconfirmed("the client's queue stayed full until the deadline", "broker")
            except KafkaException as error:
                return _outcome(error.args[0])

    def _on_error(self, error: KafkaError) -> None:
        trouble = classify.kafka(error.name())
        if trouble is Trouble.SETTINGS:
            self._ended = _outcome(error)
            log.error("Kafka: %s", error.str())
        else:
            log.warning("Kafka: %s", error.str())

    def _discard(self) -> None:
        """Purge and drop the producer. It is never used again: what it still holds may arrive late."""
        producer, self._producer = self._producer, None
        if producer is not None and self._made_in == os.getpid():
            producer.purge()
            producer.flush(CLOSE_SECONDS)

    def _hold_back(self, events: Sequence[Event], outcomes: Sequence[Outcome | None]) -> list[Outcome]:
        """What has no callback is unconfirmed, and nothing behind an undelivered event of its key counts."""
        kept: list[Outcome] = []
        stopped: set[str] = set()
        missing = self._ended or Unconfirmed("not confirmed in time", "broker")
        for event, outcome in zip(events, outcomes, strict=True):
            if stopped and event.key in stopped:
                if isinstance(outcome, Delivered):
                    self.incidents["overtaken"] += 1
                    log.error(
                        "event %s of key %s was delivered ahead of an earlier one that the broker refused; it"
                        " will be published again behind it",
                        event.event_id,
                        event.key,
                    )
                kept.append(Unconfirmed("held up behind an earlier event of its key"))
                continue
            if not isinstance(outcome, Delivered):
                stopped.add(event.key)
            kept.append(outcome or missing)
        return kept


def _waves(events: Sequence[Event], per_key: int) -> Iterator[Sequence[int]]:
    """Indexes of the events in order, such that each wave has at most `per_key` of any key (0: no bound)."""
    if not per_key:
        yield range(len(events))
        return
    waves: dict[int, list[int]] = defaultdict(list)
    seen: Counter[str] = Counter()
    for index, event in enumerate(events):
        waves[seen[event.key] // per_key].append(index)
        seen[event.key] += 1
    yield from (waves[number] for number in sorted(waves))


_BROKER_SAID = "the broker refused it: "


def _confirm(outcomes: list[Outcome | None], index: int, error: KafkaError | None, message: Any) -> None:
    if error is None:
        outcomes[index] = Delivered(f"{message.topic()}[{message.partition()}]@{message.offset()}")
    else:
        outcomes[index] = _outcome(error, _BROKER_SAID)


def _came_from_broker(outcome: Outcome | None) -> bool:
    return isinstance(outcome, Refused) and outcome.reason.startswith(_BROKER_SAID)


def _is_fatal(outcome: Outcome | None) -> bool:
    return isinstance(outcome, Unconfirmed) and outcome.reason.startswith(_FATAL)


_FATAL = "the client failed for good: "


def _outcome(error: KafkaError, prefix: str = "") -> Outcome:
    trouble = Trouble.FATAL if error.fatal() else classify.kafka(error.name())
    if trouble is Trouble.FATAL:
        prefix = _FATAL
    elif trouble is not Trouble.RECORD:
        prefix = ""
    return classify.outcome(trouble, f"{prefix}{error.str()}")
