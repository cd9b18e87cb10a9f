"""A worker whose clock is off: Kafka refuses what it stamps, and that is no fault of the events."""

from time import monotonic

from relay.outcome import Delivered, Unconfirmed
from relay.testing import make_event
from tests.conftest import Kafka
from tests.servers.kafka_rig import KafkaRig


def test_records_refused_for_their_time_are_not_given_up(kafka: Kafka) -> None:
    # To a topic that takes no record older than itself every clock is behind, unless a record
    # gets there within the millisecond of its stamp.
    rig = KafkaRig(kafka.address, config={"message.timestamp.before.max.ms": "0"})
    publisher = rig.make()
    try:
        for _ in range(100):
            (first,) = publisher.publish([make_event(destination=rig.destination)], monotonic() + 10)
            if not isinstance(first, Delivered):
                break
    finally:
        publisher.close()
    assert isinstance(first, Unconfirmed)
    assert first.scope == "settings"
    assert "clock" in first.reason
