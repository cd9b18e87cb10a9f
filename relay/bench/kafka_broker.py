"""Topics of the bench's own on the user's Kafka: made, read back from the start, deleted."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any

from publishers import kafka as _the_extra  # noqa: F401 - says what to install where it is missing
from relay.bench.checker import Found
from relay.bench.local_processes import listening_process
from relay.bench.plan import Plan
from relay.errors import RelayError, SettingsError

from confluent_kafka import Consumer, KafkaException, TopicPartition  # isort: skip
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # isort: skip

SECONDS = 15.0
FIRST_SECONDS = 5.0
USUAL_LIMIT = 1_000_000  # bytes of a message
READ_SECONDS = 60.0
BY_DEFAULT = -1  # as many replicas as the cluster gives by itself


class KafkaBench:
    source = "the topic"

    def __init__(self, options: Mapping[str, Any], plan: Plan) -> None:
        servers = options.get("bootstrap_servers")
        if not servers:
            raise SettingsError("a bench of Kafka needs its address: set RELAY_KAFKA__BOOTSTRAP_SERVERS")
        self._config = {
            **{name: value for name, value in options["config"].items() if _for_any_client(name)},
            "bootstrap.servers": servers,
            "log_level": 0,
        }
        self._servers = servers
        self._partitions = plan.partitions
        self._existing = plan.destination
        large = plan.payload_bytes > USUAL_LIMIT // 2
        self._topic_config = {"max.message.bytes": str(plan.payload_bytes * 2)} if large else {}
        self._admin = AdminClient(self._config)
        self.process = self._local_process()

    def _local_process(self) -> int | None:
        try:
            brokers = list(self._admin.list_topics(timeout=FIRST_SECONDS).brokers.values())
        except KafkaException as error:
            raise RelayError(f"Kafka at {self._servers} does not answer: {_reason(error)}") from error
        if len(brokers) != 1:
            return None
        return listening_process(str(brokers[0].host), int(brokers[0].port))

    @contextmanager
    def place(self) -> Iterator["Topic"]:
        if self._existing is not None:
            yield Topic(self._config, self._existing, self._ends(self._existing))
            return
        name = f"relay-bench-{secrets.token_hex(4)}"
        wanted = NewTopic(
            name, num_partitions=self._partitions, replication_factor=BY_DEFAULT, config=self._topic_config
        )
        try:
            self._admin.create_topics([wanted], request_timeout=SECONDS)[name].result(2 * SECONDS)
        except (KafkaException, TimeoutError) as error:
            raise RelayError(
                f"cannot create the topic {name}: {_reason(error)}; let the bench create topics, or pass"
                " --destination with one that nobody else uses"
            ) from error
        try:
            self._wait_for_leaders(name)
            yield Topic(self._config, name, dict.fromkeys(range(self._partitions), 0))
        finally:
            with suppress(KafkaException, TimeoutError):
                self._admin.delete_topics([name], request_timeout=SECONDS)[name].result(2 * SECONDS)

    def _wait_for_leaders(self, name: str) -> None:
        deadline = monotonic() + SECONDS
        while monotonic() < deadline:
            found = self._admin.list_topics(name, timeout=SECONDS).topics[name].partitions
            if len(found) == self._partitions and all(p.leader >= 0 for p in found.values()):
                return
            sleep(0.05)
        raise RelayError(f"the partitions of the topic {name} found no leader")

    def _ends(self, name: str) -> dict[int, int]:
        found = self._admin.list_topics(name, timeout=SECONDS).topics[name]
        if found.error is not None:
            raise RelayError(f"there is no topic {name}: create it, or leave --destination out")
        consumer = Consumer({**self._config, "group.id": "relay-bench"})
        try:
            return {
                number: consumer.get_watermark_offsets(TopicPartition(name, number), timeout=SECONDS)[1]
                for number in found.partitions
            }
        finally:
            consumer.close()


class Topic:
    def __init__(self, config: Mapping[str, Any], name: str, starts: Mapping[int, int]) -> None:
        self.name = name
        self._config = config
        self._starts = starts

    def messages(self) -> Iterator[Found]:
        """Those that arrived before the first is read."""
        consumer = Consumer(
            {**self._config, "group.id": "relay-bench", "enable.auto.commit": False, "fetch.min.bytes": 1}
        )
        try:
            yield from self._read(consumer)
        finally:
            consumer.close()

    def _read(self, consumer: Consumer) -> Iterator[Found]:
        partitions = [TopicPartition(self.name, number, start) for number, start in self._starts.items()]
        ends = [consumer.get_watermark_offsets(each, timeout=SECONDS)[1] for each in partitions]
        expected = sum(ends) - sum(self._starts.values())
        consumer.assign(partitions)
        deadline = monotonic() + READ_SECONDS
        while expected > 0:
            messages = consumer.consume(min(10_000, expected), 1.0)
            if not messages and monotonic() > deadline:
                raise RelayError(f"{expected} messages of the topic {self.name} could not be read back")
            for message in messages:
                if error := message.error():
                    raise RelayError(f"the topic {self.name} could not be read back: {error.str()}")
                headers: dict[str, Any] = dict(message.headers() or [])
                yield found(headers)
                expected -= 1


def found(headers: Mapping[str, Any]) -> Found:
    """Of the relay's own headers, in either format."""
    key = headers.get("partition_key") or headers["ce_partitionkey"]
    return Found(key.decode(), int(headers.get("position") or headers["ce_position"]))


def _for_any_client(name: str) -> bool:
    return name.startswith(("security.", "sasl.", "ssl.", "socket.", "client.id", "broker.address"))


def _reason(error: BaseException) -> str:
    return str(error.args[0].str()) if isinstance(error, KafkaException) else "no answer in time"
