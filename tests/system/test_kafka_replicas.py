"""Three brokers, a copy of each topic on every one of them, and writes that need more copies than there are.

The first test takes a broker away for good; the others go on with two.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from time import monotonic, sleep
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from publishers import kafka_config
from publishers.kafka import KafkaPublisher
from publishers.kafka_client import Client
from relay.demo.postgres import ServerError
from relay.event import Event
from relay.outcome import Delivered, Outcome, Unconfirmed
from relay.testing import Received, make_event
from tests.conftest import missing
from tests.servers.kafka import KafkaBroker, KafkaCluster
from tests.servers.kafka_gate import KafkaGate
from tests.servers.kafka_rig import KafkaRig, in_order, lanes
from tests.servers.process import wait_until
from tests.system.trials import Fault, run_trials

pytestmark = [pytest.mark.server, pytest.mark.slow]
PATIENCE = 30.0


class Stage:
    """The cluster, with a thread that stays: a server ends with the thread that started it."""

    def __init__(self, cluster: KafkaCluster, operator: ThreadPoolExecutor) -> None:
        self.cluster = cluster
        self.operator = operator

    @property
    def brokers(self) -> list[KafkaBroker]:
        return [broker for broker in self.cluster.brokers if broker.running]

    @property
    def address(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def leader(self, topic: str) -> KafkaBroker | None:
        """The one that leads the topic, if it is there."""
        admin = AdminClient({"bootstrap.servers": self.address})
        number = admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader
        return next((broker for broker in self.brokers if broker.node_id == number), None)

    def without_one(self) -> None:
        """One broker less: writes that need three copies are refused from now on."""
        if len(self.brokers) == 3:
            self.operator.submit(self.brokers[-1].terminate).result()

    def rig(self, copies: int, via: str | None = None) -> KafkaRig:
        config = {"min.insync.replicas": str(copies)}
        return KafkaRig(self.address, partitions=1, config=config, via=via)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    try:
        cluster = KafkaCluster()
    except ServerError as error:
        missing(str(error))
    with ThreadPoolExecutor(1) as operator:
        try:
            operator.submit(cluster.start).result()
            yield Stage(cluster, operator)
        finally:
            operator.submit(cluster.stop).result()


def some_events(rig: KafkaRig, number: int) -> list[Event]:
    return [make_event(f"order:{n % 2}", destination=rig.destination) for n in range(number)]


def publish(publisher: KafkaPublisher, events: Sequence[Event], seconds: float = PATIENCE) -> list[Outcome]:
    return list(publisher.publish(events, monotonic() + seconds))


def wait_until_writable(rig: KafkaRig) -> None:
    """Until the broker takes a record; the record has no headers and does not count."""
    probe = Producer({"bootstrap.servers": rig.address, "acks": "all"})
    probe.produce(rig.destination, partition=0, value=b"probe")
    assert probe.flush(PATIENCE) == 0


def wait_until_refused(rig: KafkaRig) -> None:
    probe = Producer({"bootstrap.servers": rig.address, "acks": "all", "retries": 0})
    errors: list[Any] = []

    def refused() -> bool:
        probe.produce(
            rig.destination, partition=0, value=b"probe", on_delivery=lambda error, _: errors.append(error)
        )
        probe.flush(PATIENCE)
        return errors[-1] is not None and errors[-1].name() == "NOT_ENOUGH_REPLICAS"

    wait_until(refused, PATIENCE, "the broker to miss a copy")


class LeaderRig:
    """Trials in which the leader of the topic is killed."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._rig = stage.rig(copies=2)

    def fresh_destination(self) -> str:
        return self._rig.destination

    def make(self) -> KafkaPublisher:
        return self._rig.make(config={"batch.num.messages": 5, "log_level": 0})

    def received(self, destination: str) -> list[Received]:
        return self._rig.received(0)

    def faults(self) -> Mapping[str, Fault]:
        return {"leader killed": self._kill}

    def _kill(self, rng: Random, _deadline_seconds: float) -> None:
        topic = self._rig.destination
        leader = self._stage.leader(topic)
        assert leader is not None
        self._stage.operator.submit(leader.kill).result()
        wait_until(lambda: self._stage.leader(topic) is not None, PATIENCE, "another leader")


class CopiesRig(LeaderRig):
    """Trials in which a copy is missing for a while."""

    def faults(self) -> Mapping[str, Fault]:
        return {"too few copies": self._demand_more}

    def _demand_more(self, rng: Random, deadline_seconds: float) -> None:
        for _ in range(3):
            self._rig.alter(min_insync_replicas="3")
            sleep(deadline_seconds * rng.uniform(0.2, 2))
            self._rig.alter(min_insync_replicas="2")
            sleep(rng.uniform(0, 0.1))


def test_the_death_of_a_leader_loses_and_reorders_nothing(stage: Stage) -> None:
    (verdict,) = run_trials(LeaderRig(stage), ["leader killed"], seed=1, deadline_seconds=1.0)
    assert verdict.bit, "nothing had to be sent again"
    assert verdict.kept_the_promise, verdict


def test_replica_refusals_never_reorder(stage: Stage) -> None:
    stage.without_one()
    bit = 0
    for seed in range(2):
        (verdict,) = run_trials(CopiesRig(stage), ["too few copies"], seed=seed, deadline_seconds=0.7)
        assert verdict.kept_the_promise, verdict
        bit += verdict.bit
    assert bit


def test_missing_replicas_are_the_brokers_trouble_until_they_are_back(stage: Stage) -> None:
    stage.without_one()
    rig = stage.rig(copies=3)
    publisher = rig.make()
    events = some_events(rig, 20)
    outcomes = publish(publisher, events, seconds=1.5)
    assert isinstance(outcomes[0], Unconfirmed)
    assert outcomes[0].scope == "broker"
    assert rig.messages() == []
    rig.alter(min_insync_replicas="2")
    assert all(isinstance(outcome, Delivered) for outcome in publish(publisher, events))
    publisher.close()
    assert in_order(rig.messages(), events)


def publish_with_the_first_request_refused_and_the_second_taken(
    stage: Stage, rig: KafkaRig, publisher: KafkaPublisher, gate: KafkaGate, events: Sequence[Event]
) -> list[Outcome]:
    """Between the two, the broker gets what it missed."""
    with ThreadPoolExecutor(1) as thread:
        gate.hold(2)
        publishing = thread.submit(publish, publisher, events)
        assert gate.held.wait(PATIENCE), "no second request came"
        rig.alter(min_insync_replicas="2")
        wait_until_writable(rig)
        gate.release()
        return publishing.result()


@contextmanager
def gate_before_leader(stage: Stage, rig: KafkaRig) -> Iterator[KafkaGate]:
    leader = stage.leader(rig.destination)
    assert leader is not None
    with KafkaGate(leader) as gate:
        rig.via = gate.address
        yield gate


@pytest.mark.parametrize("scouts", [True, False], ids=["as it is", "without scouts"])
def test_the_first_batch_of_a_new_producer_is_not_lost_when_it_is_refused_and_the_second_is_not(
    stage: Stage, scouts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker knows nothing of a new producer and takes its second batch without the first. librdkafka
    concludes that it has the first one as well, and reports it as delivered. Without scouts this happens."""
    stage.without_one()
    if not scouts:
        monkeypatch.setattr(Client, "cold", lambda *_: set())
    rig = stage.rig(copies=3)
    with gate_before_leader(stage, rig) as gate:
        publisher = rig.make(config={"batch.num.messages": 1})
        events = some_events(rig, 10)
        outcomes = publish_with_the_first_request_refused_and_the_second_taken(
            stage, rig, publisher, gate, events
        )
        publisher.close()
    assert all(isinstance(outcome, Delivered) for outcome in outcomes)
    if scouts:
        assert in_order(rig.messages(), events)
    else:
        there = {position for lane in lanes(rig.messages()).values() for position in lane}
        assert events[0].position not in there, "librdkafka has mended this: the scouts can go"


@pytest.mark.parametrize("idempotent", [True, False], ids=["as it is", "without idempotence"])
def test_a_batch_that_is_refused_is_not_overtaken_by_the_next(
    stage: Stage, idempotent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.without_one()
    monkeypatch.setitem(kafka_config._SAFETY, "enable.idempotence", idempotent)
    rig = stage.rig(copies=2)
    with gate_before_leader(stage, rig) as gate:
        publisher = rig.make(config={"batch.num.messages": 1})
        events = some_events(rig, 10)
        assert all(isinstance(outcome, Delivered) for outcome in publish(publisher, events[:2]))
        rig.alter(min_insync_replicas="3")
        wait_until_refused(rig)
        outcomes = publish_with_the_first_request_refused_and_the_second_taken(
            stage, rig, publisher, gate, events[2:]
        )
        publisher.close()
    assert all(isinstance(outcome, Delivered) for outcome in outcomes)
    assert in_order(rig.messages(), events) == idempotent
