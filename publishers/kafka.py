"""Publishes to Apache Kafka through confluent-kafka.

Guarantees: idempotent, acknowledged by all in-sync replicas; the first occurrences of a key's events are in
order. librdkafka's own message timeout is off, because a record that expires by itself lets the ones behind
it through. Instead the call's deadline ends everything: what is not confirmed by then is purged, the producer
is discarded, and a new one sends from the first unconfirmed event when the relay publishes it again.

The message key is the event id; the partition comes from the partition key, as the Java client chooses it.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from time import monotonic
from typing import Any

from relay.errors import MissingExtra, SettingsError
from relay.event import Event
from relay.message import plain_headers
from relay.outcome import Delivered, Outcome, Scope, Unconfirmed

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
    from murmurhash2 import murmurhash2
except ImportError as error:
    raise MissingExtra("the Kafka publisher", "kafka") from error

log = logging.getLogger(__name__)

JAVA_SEED = 0x9747B28C
TOPIC_REFRESH_SECONDS = 60.0
CLOSE_SECONDS = 3.0

SAFETY: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "message.timeout.ms": 0,
    "allow.auto.create.topics": False,
}
_DEFAULTS: dict[str, Any] = {
    "client.id": "outbox-relay",
    "linger.ms": 5,
    "queue.buffering.max.messages": 1_000_000,
}

_DESTINATION_CODES = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
_RECORD_CODES = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
    }
)
_SETTINGS_CODES = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)


def scope_of(code: int) -> Scope:
    """Whose trouble an error is. A record's own is `event`: it is tried again, then given up."""
    if code in _RECORD_CODES:
        return "event"
    if code in _DESTINATION_CODES:
        return "destination"
    if code in _SETTINGS_CODES:
        return "settings"
    return "broker"


@lru_cache(maxsize=65536)
def key_hash(key: str) -> int:
    """The Java client's positive murmur2 of the key: partition = key_hash(key) % partitions."""
    return int(murmurhash2(key.encode(), JAVA_SEED)) & 0x7FFFFFFF


class KafkaPublisher:
    def __init__(self, options: Mapping[str, Any]) -> None:
        config = dict(options.get("config") or {})
        if unsafe := sorted(set(config) & set(SAFETY)):
            raise SettingsError(
                f"[kafka.config] {', '.join(unsafe)} cannot be changed: order and delivery depend on it"
            )
        servers = options.get("bootstrap_servers")
        if not servers:
            raise SettingsError(
                "publisher = 'kafka' needs an address: set [kafka] bootstrap_servers or"
                " RELAY_KAFKA__BOOTSTRAP_SERVERS, e.g. localhost:9092"
            )
        self._config = (
            _DEFAULTS | config | SAFETY | {"bootstrap.servers": servers, "error_cb": self._on_error}
        )
        self._key_is_event_id = options.get("message_key", "event_id") == "event_id"
        self._producer: Producer | None = None
        self._partitions: dict[str, tuple[int, float]] = {}
        self._fatal: Unconfirmed | None = None

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        self._fatal = None
        try:
            producer = self._connected()
            outcomes = self._send(producer, events, deadline)
        except (KafkaException, SystemError, RuntimeError) as error:
            # Fatal errors come out of any call, and callbacks may be lost with them.
            log.error("the Kafka producer failed: %s", error)
            self._discard()
            return [
                self._settings_error() or Unconfirmed(f"the Kafka producer failed: {error}", "broker")
            ] * len(events)
        return _hold_back(events, outcomes)

    def close(self) -> None:
        self._discard()

    def _connected(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(self._config)
            self._partitions.clear()
        return self._producer

    def _send(self, producer: Producer, events: Sequence[Event], deadline: float) -> list[Outcome | None]:
        outcomes: list[Outcome | None] = [None] * len(events)
        stopped: set[str] = set()
        for index, event in enumerate(events):
            if event.key in stopped:
                continue
            failure = self._produce(producer, event, partial(_confirm, outcomes, index), deadline)
            if failure is not None:
                outcomes[index] = failure
                stopped.add(event.key)
        while producer.flush(max(0.0, min(deadline - monotonic(), 1.0))) and monotonic() < deadline:
            if self._fatal is not None:
                break
        if len(producer):
            log.warning("%d events were not confirmed in time; the producer is discarded", len(producer))
            self._discard()
        return outcomes

    def _produce(self, producer: Producer, event: Event, confirm: Any, deadline: float) -> Unconfirmed | None:
        """Hand one event to the client; what kept it from being handed over, if anything."""
        topic = event.destination
        partitions = self._partition_count(producer, topic, deadline)
        if isinstance(partitions, Unconfirmed):
            return partitions
        while True:
            try:
                producer.produce(
                    topic,
                    value=event.payload,
                    key=event.event_id if self._key_is_event_id else event.key,
                    partition=key_hash(event.key) % partitions,
                    headers=[*plain_headers(event)],
                    on_delivery=confirm,
                )
                return None
            except BufferError:
                producer.poll(0.1)
                if monotonic() >= deadline:
                    return Unconfirmed("the client's queue stayed full until the deadline", "broker")
            except KafkaException as error:
                return _unconfirmed(error.args[0])

    def _partition_count(self, producer: Producer, topic: str, deadline: float) -> int | Unconfirmed:
        count, fresh_until = self._partitions.get(topic, (0, 0.0))
        now = monotonic()
        if now < fresh_until:
            return count
        try:
            found = producer.list_topics(topic, timeout=max(0.1, min(deadline - now, 10.0))).topics[topic]
        except KafkaException as error:
            return self._settings_error() or _unconfirmed(error.args[0])
        if found.error is not None:
            return _unconfirmed(found.error, f"topic '{topic}'")
        if count and len(found.partitions) != count:
            log.warning("topic %s went from %d to %d partitions", topic, count, len(found.partitions))
        self._partitions[topic] = (len(found.partitions), now + TOPIC_REFRESH_SECONDS)
        return len(found.partitions)

    def _settings_error(self) -> Unconfirmed | None:
        return self._fatal

    def _on_error(self, error: KafkaError) -> None:
        scope = scope_of(error.code())
        if scope == "settings":
            self._fatal = _unconfirmed(error)
        log.log(logging.ERROR if scope == "settings" else logging.WARNING, "Kafka: %s", error.str())

    def _discard(self) -> None:
        """Purge and drop the producer. It is never used again: what it still holds may arrive late."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(CLOSE_SECONDS)


def _confirm(outcomes: list[Outcome | None], index: int, error: KafkaError | None, message: Any) -> None:
    if error is None:
        outcomes[index] = Delivered(f"{message.topic()}[{message.partition()}]@{message.offset()}")
    else:
        outcomes[index] = _unconfirmed(error)


def _unconfirmed(error: KafkaError, subject: str = "") -> Unconfirmed:
    return Unconfirmed(f"{subject}: {error.str()}" if subject else error.str(), scope_of(error.code()))


def _hold_back(events: Sequence[Event], outcomes: Sequence[Outcome | None]) -> list[Outcome]:
    """What has no callback is unconfirmed, and nothing behind an undelivered event of its key counts."""
    kept: list[Outcome] = []
    stopped: set[str] = set()
    for event, outcome in zip(events, outcomes, strict=True):
        if stopped and event.key in stopped:
            if isinstance(outcome, Delivered):
                log.error("event %s overtook an earlier one of key %s", event.event_id, event.key)
            kept.append(Unconfirmed("held up behind an earlier event of its key"))
            continue
        if not isinstance(outcome, Delivered):
            stopped.add(event.key)
        kept.append(outcome or Unconfirmed("not confirmed in time", "broker"))
    return kept
