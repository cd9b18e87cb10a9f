"""A topic of the demo's own on the user's Kafka, deleted when the demo ends."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.errors import RelayError

PARTITIONS = 4
SECONDS = 10.0
BY_DEFAULT = -1  # as many replicas as the cluster gives by itself


@contextmanager
def topic_on(servers: str, topic: str) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0, "socket.timeout.ms": 10_000})
    try:
        admin.list_topics(timeout=SECONDS / 2)
        wanted = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=BY_DEFAULT)
        admin.create_topics([wanted], request_timeout=SECONDS)[topic].result(SECONDS * 2)
    except (KafkaException, TimeoutError) as error:
        raise RelayError(
            f"cannot create the topic {topic} on {servers}: {_reason(error)}; check --kafka"
        ) from error
    try:
        yield
    finally:
        try:
            admin.delete_topics([topic], request_timeout=SECONDS)[topic].result(SECONDS * 2)
        except (KafkaException, TimeoutError) as error:
            raise RelayError(
                f"cannot delete the topic {topic} on {servers}: {_reason(error)}; delete it by hand"
            ) from error


def _reason(error: BaseException) -> str:
    return str(error.args[0].str()) if isinstance(error, KafkaException) else "no answer in time"
