"""A worker whose clock is off: Kafka refuses what it stamps, and that is no fault of the events."""

from time import monotonic

from relay.outcome import Unconfirmed
from relay.testing import make_event
from tests.conftest import Kafka
from tests.servers.kafka_rig import KafkaRig


def test_records_refused_for_their_time_are_not_given_up(kafka: Kafka) -> None:
    # To a topic that takes no record older than itself every clock is behind.
    rig = KafkaRig(kafka.address, config={"message.timestamp.before.max.ms": "0"})
    publisher = rig.make()
    try:
        outcomes = publisher.publish(
            [make_event(destination=rig.destination) for _ in range(3)], monotonic() + 10
        )
    finally:
        publisher.close()
    first = outcomes[0]
    assert isinstance(first, Unconfirmed)
    assert first.scope == "settings"
    assert "clock" in first.reason
