"""Consumes Kafka topics as a member of a consumer group, through librdkafka.

Guarantees, beside those of `consumer`: an offset is committed only when everything before it in its partition
has been applied or parked, in transactions that have been committed. When a partition is taken away, what is
held of it is dropped between two handler calls, after the offsets of what is done were committed; its next
owner begins with the first message that was not done. Messages of a partition beyond `max_held` stay with
the broker until those before them are done.

Rebalances are cooperative unless `config` says otherwise. A consumer that is away longer than
max.poll.interval.ms (5 minutes), in one handler call, loses its partitions; what it then commits to the
database, the next owner finds in the inbox.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Unpack

from relay.consumers.applying import Handler
from relay.consumers.consumer import Consumer, Options
from relay.consumers.lanes import Delivery
from relay.consumers.message import Raw, lane_key, texts
from relay.consumers.progress import Progress
from relay.errors import MissingExtra, RelayError, SettingsError

try:
    import confluent_kafka
    from confluent_kafka import KafkaError, KafkaException, TopicPartition
except ImportError as error:
    raise MissingExtra("a Kafka consumer", "kafka") from error

log = logging.getLogger(__name__)

COMMIT_SECONDS = 1.0
START_SECONDS = 15.0

_DEFAULTS: dict[str, Any] = {
    "auto.offset.reset": "earliest",  # a new consumer wants all that was ever said
    "partition.assignment.strategy": "cooperative-sticky",
}
_SAFETY: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": False,
    "allow.auto.create.topics": False,
}
_OWN = {
    "group.id": "pass group=…",
    "bootstrap.servers": "pass bootstrap_servers=…",
    "metadata.broker.list": "pass bootstrap_servers=…",
    **dict.fromkeys(_SAFETY, "the consumer commits offsets itself, after the database"),
}


class KafkaConsumer(Consumer):
    transport = "kafka"

    def __init__(
        self,
        name: str,
        handler: Handler,
        *,
        bootstrap_servers: str,
        topics: Sequence[str],
        group: str | None = None,
        config: Mapping[str, Any] | None = None,
        max_held: int = 500,
        **options: Unpack[Options],
    ) -> None:
        """options: see Consumer; config: any property of librdkafka that is not the consumer's own."""
        super().__init__(name, handler, **options)
        if isinstance(topics, str) or not topics:
            raise SettingsError("topics must be a list of at least one topic")
        if max_held < 1:
            raise SettingsError("max_held must be 1 or more")
        self._topics = list(topics)
        self._max_held = max_held
        self._config = _configuration(name, bootstrap_servers, group or name, config or {})
        self._client: Any = None
        self._progress: dict[tuple[str, int], Progress] = {}
        self._paused: set[tuple[str, int]] = set()
        self._next_commit = 0.0
        self._said: str | None = None  # by the client, of what goes wrong

    def _open(self) -> None:
        callbacks = {"error_cb": self._on_error, "on_commit": self._on_commit}
        try:
            self._client = confluent_kafka.Consumer(self._config | callbacks, logger=log)
            for topic in self._topics:
                self._require(topic)
        except KafkaException as error:
            said = self._said or error.args[0].str()
            servers = self._config["bootstrap.servers"]
            raise RelayError(f"cannot read from Kafka at {servers}: {said}") from error
        self._client.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _require(self, topic: str) -> None:
        if topic.startswith("^"):
            return  # a pattern: there may be none yet
        found = self._client.list_topics(topic, timeout=START_SECONDS).topics[topic]
        if found.error is not None:
            raise RelayError(f"the topic {topic} cannot be read: {found.error.str()}: create it first")

    def _take(self, seconds: float) -> Delivery | None:
        self._commit_now_and_then()
        message = self._client.poll(seconds)
        if message is None:
            return None
        if message.error() is not None:
            self._hear(message.error())
            return None
        place = (message.topic(), message.partition())
        progress = self._progress.get(place)
        if progress is None:
            return None  # it was taken away meanwhile
        progress.take(message.offset())
        source = f"{place[0]}[{place[1]}]@{message.offset()}"
        headers = texts(message.headers())
        raw = Raw(message.value(), headers, source, known_by_source=True, transport=self.transport)
        if self._lanes.held(place) + 1 >= self._max_held and place not in self._paused:
            self._client.pause([TopicPartition(*place)])
            self._paused.add(place)
        return Delivery(place, lane_key(raw), raw, message.offset())

    def _done(self, delivery: Delivery) -> None:
        place = delivery.place
        assert isinstance(place, tuple)
        if (progress := self._progress.get(place)) is not None:
            progress.done(delivery.token)
        if place in self._paused and self._lanes.held(place) <= self._max_held // 2:
            self._paused.discard(place)
            self._client.resume([TopicPartition(*place)])

    def _close(self) -> None:
        if self._client is None:
            return
        self._commit(list(self._progress), asynchronous=False)
        with suppress(KafkaException, RuntimeError):
            self._client.close()  # gives up the partitions
        self._client = None

    def _commit_now_and_then(self) -> None:
        if monotonic() >= self._next_commit:
            self._next_commit = monotonic() + COMMIT_SECONDS
            self._commit(list(self._progress), asynchronous=True)

    def _commit(self, places: Sequence[tuple[str, int]], *, asynchronous: bool) -> None:
        """Commit what is done. What fails here is read again, and found in the inbox."""
        offsets = []
        for place in places:
            offset = self._progress[place].to_commit()
            if offset is not None:
                self._progress[place].commit(offset)
                offsets.append(TopicPartition(*place, offset))
        if not offsets:
            return
        try:
            self._client.commit(offsets=offsets, asynchronous=asynchronous)
        except KafkaException as error:
            log.warning("offsets were not committed: %s", error.args[0].str())

    def _on_assign(self, client: Any, partitions: Sequence[Any]) -> None:
        for partition in partitions:
            self._progress[partition.topic, partition.partition] = Progress()
        log.info("consumer %s was given %s", self.name, _shown(partitions))

    def _on_revoke(self, client: Any, partitions: Sequence[Any]) -> None:
        places = [(p.topic, p.partition) for p in partitions]
        self._commit([place for place in places if place in self._progress], asynchronous=False)
        self._forget(places)
        log.info("consumer %s gave up %s", self.name, _shown(partitions))

    def _on_lost(self, client: Any, partitions: Sequence[Any]) -> None:
        self._forget([(p.topic, p.partition) for p in partitions])
        log.warning("consumer %s has lost %s", self.name, _shown(partitions))

    def _forget(self, places: Sequence[tuple[str, int]]) -> None:
        for place in places:
            self._lanes.drop(place)
            self._progress.pop(place, None)
            if place in self._paused:
                self._paused.discard(place)
                with suppress(KafkaException):
                    self._client.resume([TopicPartition(*place)])

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[Any]) -> None:
        for partition in partitions:
            failure = error or partition.error
            if failure is not None:
                log.warning("offsets of %s were not committed: %s", _shown([partition]), failure.str())
                if progress := self._progress.get((partition.topic, partition.partition)):
                    progress.commit(None)

    def _on_error(self, error: KafkaError) -> None:
        self._said = error.str()
        log.warning("Kafka: %s", self._said)

    def _hear(self, error: Any) -> None:
        if error.fatal():
            raise RelayError(f"the Kafka client of consumer {self.name} failed: {error.str()}")
        log.warning("Kafka: %s", error.str())


def _configuration(name: str, servers: str, group: str, config: Mapping[str, Any]) -> dict[str, Any]:
    for own, advice in _OWN.items():
        if own in config:
            raise SettingsError(f"config {own} cannot be set: {advice}")
    defaults = dict(_DEFAULTS)
    if config.get("group.protocol") == "consumer":
        del defaults["partition.assignment.strategy"]  # the broker assigns
    fixed = _SAFETY | {"bootstrap.servers": servers, "group.id": group}
    merged = {"client.id": f"outbox-relay-{name}", **defaults, **config, **fixed}
    try:
        confluent_kafka.Consumer(merged | {"bootstrap.servers": "", "log_level": 0}).close()
    except (KafkaException, ValueError, TypeError) as error:
        said = error.args[0].str() if isinstance(error, KafkaException) else error
        raise SettingsError(f"config is not accepted by librdkafka: {said}") from None
    return merged


def _shown(partitions: Sequence[Any]) -> str:
    return ", ".join(f"{p.topic}[{p.partition}]" for p in partitions) or "nothing"
