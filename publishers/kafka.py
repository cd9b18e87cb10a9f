"""Publishes to Apache Kafka through confluent-kafka.

Guarantees: idempotent, acknowledged by all in-sync replicas; the first occurrences of a key's events are in
order. librdkafka's own message timeout is off, because a record that expires by itself lets the ones behind
it through. Instead the call's deadline ends everything: what is not confirmed by then is purged, the producer
is discarded, and a new one sends from the first unconfirmed event when the relay publishes it again.

A record that the broker would refuse for its size is refused before it is sent, unless it is compressed: only
the broker knows how large it is then. If a batch is refused all the same, each of its records is sent alone:
the one at fault is found, its mates are delivered.

The message key is the event id; the partition comes from the partition key, as the Java client chooses it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from time import monotonic
from typing import Any, NamedTuple

from publishers import classify
from relay.errors import MissingExtra, SettingsError
from relay.event import Event
from relay.message import Headers, encoder
from relay.outcome import Outcome, Refused, Unconfirmed

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
    from murmurhash2 import murmurhash2

    from publishers import kafka_config
    from publishers.classify import Trouble
    from publishers.kafka_call import STRANDED, Call, confirm, confirm_without_receipt, trouble_of
    from publishers.kafka_client import Client
    from publishers.kafka_topics import Topic, Topics, batch_bytes
except ImportError as error:
    raise MissingExtra("the Kafka publisher", "kafka") from error

JAVA_SEED = 0x9747B28C
# More than key, headers of the relay and framing ever take.
OVERHEAD = 8192
# A limit this young is believed when it refuses a record.
SURE_SECONDS = 5.0


@lru_cache(maxsize=65536)
def key_hash(key: str) -> int:
    """The Java client's positive murmur2 of the key: partition = key_hash(key) % partitions."""
    return int(murmurhash2(key.encode(), JAVA_SEED)) & 0x7FFFFFFF


class Route(NamedTuple):
    """Where the events of a topic go in this round."""

    partitions: int
    surely_fits: int  # bytes of payload
    cold: set[int]
    scouts: dict[int, int]  # by cold partition: the one event that is sent there


class KafkaPublisher:
    def __init__(self, options: Mapping[str, Any]) -> None:
        config = dict(options.get("config") or {})
        kafka_config.check(config)
        self._compresses = kafka_config.compresses(config)
        servers = options.get("bootstrap_servers")
        if not servers:
            raise SettingsError(
                "publisher = 'kafka' needs an address: set [kafka] bootstrap_servers or"
                " RELAY_KAFKA__BOOTSTRAP_SERVERS, e.g. localhost:9092"
            )
        self._key_is_event_id = options.get("message_key", "event_id") == "event_id"
        self._per_key = int(options.get("max_unconfirmed_per_key", 0))
        self._confirm = confirm if options.get("receipts", True) else confirm_without_receipt
        self._headers = encoder(options.get("format", "plain"), "kafka")
        # What an operator should know of, by kind; the worker shows it as a metric.
        self.incidents: Counter[str] = Counter()
        self._client = Client(str(servers), config, self.incidents)
        self._topics = Topics(
            kafka_config.client_config(str(servers), config), self.incidents, self._client.interrupted
        )

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        call = Call(events, deadline, self.incidents)
        left: Sequence[int] = range(len(events))
        try:
            self._client.begin()
            while left and monotonic() < deadline:
                left = self._round(call, left)
        except (KafkaException, SystemError, RuntimeError) as error:
            # Fatal errors come out of any call, and callbacks may be lost with them.
            self._client.rebuild(error)
        return call.conclude(self._client.ended)

    def close(self) -> None:
        self._client.discard()

    def _round(self, call: Call, left: Sequence[int]) -> Sequence[int]:
        """Send what may be in flight together and wait for it; what has to wait is returned."""
        producer, routes = self._ready(call, left)
        sent, later = self._produce(call, producer, routes, left)
        self._wait(call, producer, sent)
        if not call.delivered(*sent):
            self._send_suspects(call, producer, sent)
        for route in routes.values():
            if isinstance(route, Route):
                route.cold.difference_update(
                    partition for partition, index in route.scouts.items() if call.delivered(index)
                )
        return later if self._client.alive else ()

    def _ready(self, call: Call, left: Sequence[int]) -> tuple[Producer, dict[str, Route | Outcome]]:
        """A producer whose batches fit all topics of these events; the topics, or what is wrong with them."""
        names = {call.events[index].destination for index in left}
        while True:
            limit = self._topics.smallest_limit()
            if not self._client.fits(limit):
                self._client.make(limit)
                self._topics.doubt()
            producer = self._client.producer
            routes: dict[str, Route | Outcome] = {}
            for name in names:
                found = self._topics.get(producer, name, call.deadline)
                if not isinstance(found, Topic):
                    routes[name] = found
                    if isinstance(found, Unconfirmed) and found.scope != "destination":
                        return producer, dict.fromkeys(names, found)
                else:
                    cold = self._client.cold(name, found.partitions)
                    routes[name] = Route(found.partitions, found.limit - OVERHEAD, cold, {})
            if self._client.fits(self._topics.smallest_limit()):
                return producer, routes

    def _produce(
        self, call: Call, producer: Producer, routes: Mapping[str, Route | Outcome], left: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Hand events to the client; returns those handed over, and those that wait for the next round."""
        sent: list[int] = []
        later: list[int] = []
        waiting: set[str] = set()  # keys of which the rest goes out in the next round
        in_flight: Counter[str] = Counter()
        events, stopped = call.events, call.stopped
        for index in left:
            event = events[index]
            key = event.key
            if key in stopped:
                continue
            if key in waiting:
                later.append(index)
                continue
            route = routes[event.destination]
            if not isinstance(route, Route):
                call.stop(index, route)
                continue
            partition = key_hash(key) % route.partitions
            if route.cold and partition in route.cold:
                if partition in route.scouts:
                    waiting.add(key)
                    later.append(index)
                    continue
                route.scouts[partition] = index
            headers = self._headers(event)
            if event.headers or len(event.payload) > route.surely_fits:
                fits = self._fits(call, producer, event, headers)
                if isinstance(fits, Refused):
                    call.stop(index, fits)
                    continue
                if not fits:
                    waiting.add(key)
            failure = self._hand_over(call, producer, index, event, partition, headers)
            if failure is not None:
                call.stop(index, failure)
                continue
            sent.append(index)
            if self._per_key:
                in_flight[key] += 1
                if in_flight[key] == self._per_key:
                    waiting.add(key)
        return sent, later

    def _fits(self, call: Call, producer: Producer, event: Event, headers: Headers) -> bool | Refused:
        """Whether the topic takes a record of this size. False: it may not, and only the broker can tell."""
        size = batch_bytes(self._message_key(event).encode(), event.payload, headers)
        topic = self._topics.get(producer, event.destination, call.deadline)
        if isinstance(topic, Topic) and size > topic.limit:
            if self._compresses:
                return False  # the limit is for what arrives, a batch of its own
            # The limit may have been raised since it was read.
            topic = self._topics.get(producer, event.destination, call.deadline, max_age=SURE_SECONDS)
        if not isinstance(topic, Topic) or size <= topic.limit:
            return True
        if not topic.limit_known:
            return False
        return Refused(f"{size} bytes are more than topic '{event.destination}' takes ({topic.limit})")

    def _message_key(self, event: Event) -> str:
        return event.event_id if self._key_is_event_id else event.key

    def _hand_over(
        self, call: Call, producer: Producer, index: int, event: Event, partition: int, headers: Headers
    ) -> Outcome | None:
        """Hand one event to the client; what kept it from being handed over, if anything."""
        while True:
            try:
                producer.produce(
                    event.destination,
                    value=event.payload,
                    key=event.event_id if self._key_is_event_id else event.key,
                    partition=partition,
                    headers=headers,  # type: ignore[arg-type]
                    on_delivery=partial(self._confirm, call.results, index),
                )
                return None
            except BufferError:
                if monotonic() >= call.deadline:
                    return Unconfirmed("the client's queue stayed full until the deadline", "broker")
                producer.poll(0.1)
            except KafkaException as error:
                inner: KafkaError = error.args[0]
                if trouble_of(inner) is Trouble.FATAL:
                    raise
                self._topics.doubt(event.destination)
                return classify.outcome(trouble_of(inner), inner.str())
            except (TypeError, ValueError) as error:
                return Refused(f"it cannot be written as a Kafka message: {error}")

    def _wait(self, call: Call, producer: Producer, sent: Sequence[int]) -> None:
        """Wait for the callbacks; without all of them by the deadline the producer is discarded."""
        gone: dict[str, Outcome] = {}
        while not self._client.wait(producer, call.deadline):
            if monotonic() >= call.deadline or self._client.ended is not None:
                break
            unanswered = {call.events[index].destination for index in sent if call.results[index] is None}
            gone |= self._gone(producer, unanswered, call.deadline)
            if unanswered <= gone.keys():
                break
        if len(producer):
            for name in {call.events[index].destination for index in sent}:
                self._topics.doubt(name)
            self._client.discard()
        if call.delivered(*sent):
            return
        for index, failure in [(index, call.results[index]) for index in sent if not call.delivered(index)]:
            name = call.events[index].destination
            if name in gone:
                call.results[index] = gone[name]
            elif isinstance(failure, KafkaError):
                self.incidents["stranded"] += failure.name() == STRANDED
                match trouble_of(failure):
                    case Trouble.DESTINATION:
                        self._topics.doubt(name)
                    case Trouble.FATAL | Trouble.SETTINGS if self._client.alive:
                        self._client.rebuild(failure.str())

    def _gone(self, producer: Producer, names: Iterable[str], deadline: float) -> dict[str, Outcome]:
        """Of topics that do not answer, those that are not there any more: a delivery never says so."""
        gone: dict[str, Outcome] = {}
        for name in names:
            found = self._topics.partitions(producer, name, min(deadline, monotonic() + 0.1))
            if isinstance(found, Unconfirmed) and found.scope == "destination":
                gone[name] = found
        return gone

    def _send_suspects(self, call: Call, producer: Producer, sent: Sequence[int]) -> None:
        """Send those whose batch was refused one by one, each key up to the first that is not delivered."""
        undelivered: set[str] = set()
        for index in call.suspects(sent):
            key = call.events[index].key
            if key not in undelivered and self._client.alive:
                self._send_alone(call, producer, index)
            if not call.delivered(index):
                undelivered.add(key)
        call.stopped |= undelivered

    def _send_alone(self, call: Call, producer: Producer, index: int) -> None:
        """Find out whether the broker refuses this event for its own sake."""
        event = call.events[index]
        topic = self._topics.get(producer, event.destination, call.deadline)
        if not isinstance(topic, Topic):
            call.results[index] = topic
            return
        call.results[index] = None
        partition = key_hash(event.key) % topic.partitions
        failure = self._hand_over(call, producer, index, event, partition, self._headers(event))
        if failure is not None:
            call.results[index] = failure
        else:
            self._wait(call, producer, [index])
        call.convict(index)
