"""A Kafka that stalls, refuses, forgets and lies, and what the publisher makes of it.

Each test shows that its fault really happened.
"""

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import Producer

from publishers import kafka_client, kafka_config
from publishers.kafka import KafkaPublisher
from publishers.kafka_call import confirm
from relay.demo.postgres import ServerError
from relay.event import Event
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed
from relay.testing import make_event
from tests.conftest import Kafka
from tests.servers.kafka_rig import KafkaRig, in_order, lanes
from tests.servers.process import wait_until
from tests.servers.proxy import Direction, TcpProxy

PATIENCE = 20.0


def publish(publisher: KafkaPublisher, events: Sequence[Event], seconds: float = PATIENCE) -> list[Outcome]:
    return list(publisher.publish(events, monotonic() + seconds))


def publish_as_the_relay_does(publisher: KafkaPublisher, events: Sequence[Event]) -> None:
    """Again, from the first undelivered event of each key, until all are delivered."""
    deadline = monotonic() + PATIENCE
    while events and monotonic() < deadline:
        outcomes = publish(publisher, events)
        events = [
            event
            for event, outcome in zip(events, outcomes, strict=True)
            if not isinstance(outcome, Delivered)
        ]
    assert not events


def some_events(rig: KafkaRig, number: int, keys: int = 5) -> list[Event]:
    return [make_event(f"order:{n % keys}", destination=rig.destination) for n in range(number)]


def all_delivered(outcomes: Sequence[Outcome]) -> bool:
    return all(isinstance(outcome, Delivered) for outcome in outcomes)


@pytest.fixture
def rig(kafka: Kafka) -> KafkaRig:
    return KafkaRig(kafka.address)


@pytest.fixture
def behind_proxy(kafka: Kafka, kafka_proxy: TcpProxy) -> KafkaRig:
    return KafkaRig(kafka.address, via=kafka_proxy.address)


class WatchedProducer(Producer):
    """Remembers all that were made, and fails the test when one is used after it was purged."""

    made: "list[weakref.ref[WatchedProducer]]" = []  # noqa: RUF012
    purges = 0
    accepted = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.purged = False
        self.made.append(weakref.ref(self))

    def purge(self, *args: Any, **kwargs: Any) -> None:
        self.purged = True
        type(self).purges += 1
        super().purge(*args, **kwargs)

    def produce(self, *args: Any, **kwargs: Any) -> None:
        assert not self.purged, "a purged producer was used again"
        super().produce(*args, **kwargs)
        type(self).accepted += 1


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> type[WatchedProducer]:
    monkeypatch.setattr(kafka_client, "Producer", WatchedProducer)
    monkeypatch.setattr(WatchedProducer, "made", [])
    monkeypatch.setattr(WatchedProducer, "purges", 0)
    monkeypatch.setattr(WatchedProducer, "accepted", 0)
    return WatchedProducer


# Stalls


@pytest.mark.parametrize("direction", ["to_client", "to_server", "both"])
def test_a_stall_longer_than_the_deadline_keeps_order(
    behind_proxy: KafkaRig, kafka_proxy: TcpProxy, direction: Direction
) -> None:
    publisher = behind_proxy.make()
    events = some_events(behind_proxy, 400)
    assert all_delivered(publish(publisher, events[:100]))
    kafka_proxy.stall(direction)
    outcomes = publish(publisher, events[100:], seconds=1.0)
    assert not any(isinstance(outcome, Delivered) for outcome in outcomes)
    assert publisher.incidents["stranded"] > 0
    kafka_proxy.restore()
    publish_as_the_relay_does(publisher, events[100:])
    publisher.close()
    messages = behind_proxy.messages()
    assert in_order(messages, events)
    if direction == "to_client":
        assert len(messages) > len(events), "the broker had taken what it could not confirm"


@pytest.mark.parametrize("timeout_ms", [0, 1000], ids=["as it is", "with librdkafka's timeout"])
def test_no_record_expires_by_itself_and_lets_the_ones_behind_it_through(
    behind_proxy: KafkaRig,
    kafka_proxy: TcpProxy,
    producers: type[WatchedProducer],
    timeout_ms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client's queue holds half of the run: if that half expires, the other half takes its place."""
    monkeypatch.setitem(kafka_config._SAFETY, "message.timeout.ms", timeout_ms)
    publisher = behind_proxy.make(config={"queue.buffering.max.messages": 50})
    events = some_events(behind_proxy, 101, keys=1)
    assert all_delivered(publish(publisher, events[:1]))
    kafka_proxy.stall()
    with ThreadPoolExecutor(1) as thread:
        publishing = thread.submit(publish, publisher, events[1:])
        with contextlib.suppress(ServerError):
            wait_until(lambda: producers.accepted > 60, 4, "the other half to be taken")
        kafka_proxy.restore()
        outcomes = publishing.result()
    publisher.close()
    found = lanes(behind_proxy.messages())["order:0"]
    if timeout_ms == 0:
        assert all_delivered(outcomes)
        assert found == [event.position for event in events]
    else:
        assert events[-1].position in found, "what stood behind got through"
        assert not all_delivered(outcomes)
        assert publisher.incidents["overtaken"] > 0


def test_a_purged_producer_is_never_used_again(
    behind_proxy: KafkaRig, kafka_proxy: TcpProxy, producers: type[WatchedProducer]
) -> None:
    publisher = behind_proxy.make()
    events = some_events(behind_proxy, 60)
    assert all_delivered(publish(publisher, events[:20]))
    assert (len(producers.made), producers.purges) == (1, 0)
    kafka_proxy.stall()
    publish(publisher, events[20:], seconds=0.5)
    assert producers.purges == 1
    kafka_proxy.restore()
    publish_as_the_relay_does(publisher, events[20:])
    publisher.close()
    assert len(producers.made) == 2
    assert all(made() is None for made in producers.made), "a discarded producer is still alive"
    assert in_order(behind_proxy.messages(), events)


def test_a_deadline_is_kept_while_the_broker_is_stalled_and_so_is_that_of_close(
    behind_proxy: KafkaRig, kafka_proxy: TcpProxy
) -> None:
    before = client_threads()
    publisher = behind_proxy.make(config={"queue.buffering.max.messages": 50})
    assert all_delivered(publish(publisher, some_events(behind_proxy, 10)))
    kafka_proxy.stall()
    for _ in range(2):  # with a connection that stalls, then with one that is never established
        begun = monotonic()
        outcomes = publish(publisher, some_events(behind_proxy, 400), seconds=0.5)
        assert monotonic() - begun < 3.0
        assert {outcome.scope for outcome in outcomes if isinstance(outcome, Unconfirmed)} <= {
            "broker",
            "event",
        }
        assert not any(isinstance(outcome, Delivered) for outcome in outcomes)
    begun = monotonic()
    publisher.close()
    assert monotonic() - begun < 5.0
    wait_until(lambda: client_threads() <= before, 5, "librdkafka's threads to end")


def client_threads() -> set[str]:
    """Threads of librdkafka in this process: Python does not know of them."""
    tasks = Path("/proc/self/task").iterdir()
    return {task.name for task in tasks if (task / "comm").read_text().startswith("rdk:")}


def test_close_leaves_no_thread_of_the_client(rig: KafkaRig) -> None:
    before = client_threads()
    publisher = rig.make()
    assert all_delivered(publish(publisher, some_events(rig, 10)))
    assert client_threads() > before
    publisher.close()
    assert client_threads() <= before


def test_after_the_deadline_nothing_is_sent(rig: KafkaRig) -> None:
    publisher = rig.make()
    assert all_delivered(publish(publisher, some_events(rig, 1)))
    outcomes = publish(publisher, some_events(rig, 5), seconds=-1.0)
    publisher.close()
    assert not any(isinstance(outcome, Delivered) for outcome in outcomes)
    assert len(rig.messages()) == 1


# Refusals


def test_nothing_of_a_key_lands_after_a_record_that_is_too_large_and_other_keys_go_on(kafka: Kafka) -> None:
    rig = KafkaRig(kafka.address, partitions=1, config={"max.message.bytes": "3000"})
    events = some_events(rig, 40, keys=4)
    events[13] = events[13]._replace(payload=b"x" * 5000)  # order:1
    publisher = rig.make()
    outcomes = publish(publisher, events)
    publisher.close()
    assert isinstance(outcomes[13], Refused)
    behind = [n for n, event in enumerate(events) if event.key == "order:1" and n > 13]
    assert all(isinstance(outcomes[n], Unconfirmed) for n in behind)
    landed = [event for n, event in enumerate(events) if n != 13 and n not in behind]
    assert in_order(rig.messages(), landed)
    assert publisher.incidents["overtaken"] == 0


def with_one_too_large(rig: KafkaRig, number: int, keys: int, culprit: int) -> list[Event]:
    events = some_events(rig, number, keys)
    events[culprit] = events[culprit]._replace(payload=b"x" * 5000)
    return events


def test_innocent_batch_mates_of_an_unforeseen_refusal_are_delivered_in_order(kafka: Kafka) -> None:
    rig = KafkaRig(kafka.address, partitions=1)
    publisher = rig.make(config={"linger.ms": 200})
    assert all_delivered(publish(publisher, [make_event("warm", destination=rig.destination)]))
    rig.lower_limit(4000)  # after it was read
    events = with_one_too_large(rig, 30, 3, culprit=16)  # order:1
    outcomes = publish(publisher, events)
    publisher.close()
    assert outcomes[16] == Refused("the broker refused it: Broker: Message size too large")
    for event, outcome, number in zip(events, outcomes, range(30), strict=True):
        if event.key != "order:1" or number < 16:
            assert isinstance(outcome, Delivered), number
        elif number > 16:
            assert isinstance(outcome, Unconfirmed), number
    assert publisher.incidents["overtaken"] == 0
    found = lanes(rig.messages())
    for key in ("order:0", "order:2"):
        assert found[key] == [event.position for event in events if event.key == key]
    assert found["order:1"] == [event.position for event in events[:16] if event.key == "order:1"]


def test_a_record_too_large_behind_the_suspects_of_its_key_does_not_condemn_them(kafka: Kafka) -> None:
    """The refusal of a batch and the preflight of a later record meet in one key."""
    rig = KafkaRig(kafka.address, partitions=1, config={"max.message.bytes": "9000"})
    publisher = rig.make(config={"linger.ms": 200})
    assert all_delivered(publish(publisher, [make_event("warm", destination=rig.destination)]))
    rig.lower_limit(4000)
    events = some_events(rig, 12, keys=2)
    events[5] = events[5]._replace(payload=b"x" * 5000)  # order:1: the broker refuses its batch
    events[8] = events[8]._replace(payload=b"x" * 20_000)  # order:0: never sent
    outcomes = publish(publisher, events)
    publisher.close()
    assert isinstance(outcomes[8], Refused)
    assert isinstance(outcomes[5], Refused)
    assert all(isinstance(outcomes[n], Delivered) for n in (0, 1, 2, 3, 4, 6))
    assert all(isinstance(outcomes[n], Unconfirmed) for n in (7, 9, 10, 11))


@pytest.mark.parametrize("per_key", [0, 1])
def test_an_unforeseen_refusal_lets_nothing_overtake_with_one_per_key_and_is_counted_without(
    kafka: Kafka, per_key: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = KafkaRig(kafka.address, partitions=1)
    publisher = rig.make(max_unconfirmed_per_key=per_key, config={"batch.num.messages": 1})
    assert all_delivered(publish(publisher, [make_event("warm", destination=rig.destination)]))
    rig.lower_limit(4000)
    events = with_one_too_large(rig, 20, 2, culprit=5)  # order:1
    with caplog.at_level(logging.ERROR):
        outcomes = publish(publisher, events)
    publisher.close()
    assert isinstance(outcomes[5], Refused)
    ahead = set(lanes(rig.messages())["order:1"]) & {event.position for event in events[6:]}
    assert publisher.incidents["overtaken"] == len(ahead)
    if per_key == 1:
        assert not ahead
    else:
        assert ahead, "a successor got through"
        assert (
            f"{len(ahead)} events of key order:1 were delivered ahead of {events[5].event_id}" in caplog.text
        )
    assert not any(
        isinstance(outcome, Delivered)
        for event, outcome in zip(events[6:], outcomes[6:], strict=True)
        if event.key == "order:1"
    ), "what got ahead is not reported as delivered"


# The client fails


def test_a_lost_callback_counts_as_unconfirmed(rig: KafkaRig, monkeypatch: pytest.MonkeyPatch) -> None:
    events = some_events(rig, 40)
    lost: list[str] = []

    def lossy(results: list[Any], index: int, error: Any, message: Any) -> None:
        if not lost and index == 12:  # order:2
            lost.append(message.key().decode())
        else:
            confirm(results, index, error, message)

    monkeypatch.setattr("publishers.kafka.confirm", lossy)
    publisher = rig.make()
    outcomes = publish(publisher, events)
    assert lost == [events[12].event_id]
    assert isinstance(outcomes[12], Unconfirmed)
    assert not any(isinstance(outcomes[n], Delivered) for n in range(13, 40) if n % 5 == 2)
    assert all(isinstance(outcomes[n], Delivered) for n in range(40) if n % 5 != 2)
    publish_as_the_relay_does(publisher, events[12::5])
    publisher.close()
    assert in_order(rig.messages(), events)


def test_a_callback_that_fails_takes_the_client_with_it_and_no_event(
    rig: KafkaRig, monkeypatch: pytest.MonkeyPatch, producers: type[WatchedProducer]
) -> None:
    events = some_events(rig, 40)
    failed: list[int] = []

    def failing(results: list[Any], index: int, error: Any, message: Any) -> None:
        if not failed and index > 10:
            failed.append(index)
            raise SystemError("returned a result with an exception set")
        confirm(results, index, error, message)

    monkeypatch.setattr("publishers.kafka.confirm", failing)
    publisher = rig.make()
    outcomes = publish(publisher, events)
    assert failed
    assert not all_delivered(outcomes)
    assert publisher.incidents["client_rebuilt"] == 1
    left = [
        event for event, outcome in zip(events, outcomes, strict=True) if not isinstance(outcome, Delivered)
    ]
    publish_as_the_relay_does(publisher, left)
    publisher.close()
    assert len(producers.made) == 2
    assert in_order(rig.messages(), events)


def break_for_good(producer: Producer) -> None:
    """Raise librdkafka's test error in a live client: fatal, as if a sequence number had been lost."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = ctypes.CDLL(next(line.split()[-1] for line in maps if "librdkafka" in line))
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__)
    out_of_order = 45
    assert library.rd_kafka_test_fatal_error(handle, out_of_order, b"for the test") == 0


def test_a_fatal_error_rebuilds_the_client(
    rig: KafkaRig, producers: type[WatchedProducer], caplog: pytest.LogCaptureFixture
) -> None:
    publisher = rig.make()
    events = some_events(rig, 60)
    assert all_delivered(publish(publisher, events[:20]))
    live = producers.made[0]()
    assert live is not None
    break_for_good(live)
    del live
    outcomes = publish(publisher, events[20:])
    assert not any(isinstance(outcome, Delivered) for outcome in outcomes)
    assert isinstance(outcomes[0], Unconfirmed)
    assert outcomes[0].scope == "broker"
    assert publisher.incidents["client_rebuilt"] == 1
    assert "the Kafka client failed and is made anew" in caplog.text
    assert all_delivered(publish(publisher, events[20:]))
    publisher.close()
    assert len(producers.made) == 2
    assert in_order(rig.messages(), events)


# Topics come and go


def test_events_of_an_unknown_topic_go_out_when_it_appears(kafka: Kafka) -> None:
    rig = KafkaRig(kafka.address, create=False)
    publisher = rig.make()
    events = some_events(rig, 20)
    (outcome, *_) = publish(publisher, events)
    assert isinstance(outcome, Unconfirmed)
    assert outcome.scope == "destination"
    rig.create()
    publish_as_the_relay_does(publisher, events)
    publisher.close()
    assert in_order(rig.messages(), events)


def test_a_topic_deleted_under_way_is_reported_as_such_while_others_go_on(kafka: Kafka) -> None:
    doomed, other = KafkaRig(kafka.address), KafkaRig(kafka.address)
    publisher = doomed.make()
    assert all_delivered(publish(publisher, [*some_events(doomed, 20), *some_events(other, 20)]))
    doomed.delete()
    begun = monotonic()
    events = some_events(other, 20, keys=3)
    outcomes = publish(publisher, [make_event("lost", destination=doomed.destination), *events], seconds=30)
    assert monotonic() - begun < 15, "it is noticed, not waited for"
    assert isinstance(outcomes[0], Unconfirmed)
    assert outcomes[0].scope == "destination"
    assert doomed.destination in outcomes[0].reason
    assert all_delivered(outcomes[1:])
    doomed.partitions = 1
    doomed.create()
    publish_as_the_relay_does(publisher, [make_event("lost", destination=doomed.destination)])
    publisher.close()
    assert len(doomed.messages()) == 1


# Other processes


def _publish_in_child(publisher: KafkaPublisher, events: Sequence[Event], sink: Any) -> None:
    outcomes = publish(publisher, events)
    begun = monotonic()
    publisher.close()
    sink.send((all_delivered(outcomes), monotonic() - begun))


def _make_and_publish(options: dict[str, Any], events: Sequence[Event], sink: Any) -> None:
    _publish_in_child(KafkaPublisher(options), events, sink)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_publisher_that_was_used_before_a_fork_works_on_both_sides_of_it(rig: KafkaRig) -> None:
    publisher = rig.make()
    assert all_delivered(publish(publisher, some_events(rig, 10)))
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=_publish_in_child, args=(publisher, some_events(rig, 10), theirs)
    )
    child.start()
    assert all_delivered(publish(publisher, some_events(rig, 10)))
    assert ours.poll(PATIENCE), "the child is stuck"
    delivered, close_took = ours.recv()
    child.join(PATIENCE)
    publisher.close()
    assert delivered
    assert close_took < 5.0
    assert child.exitcode == 0
    assert len(rig.messages()) == 30


def test_two_spawned_processes_publish_side_by_side(rig: KafkaRig) -> None:
    context = multiprocessing.get_context("spawn")
    batches = [some_events(rig, 50, keys=1), [make_event("invoice:1", destination=rig.destination)]]
    pipes = [context.Pipe() for _ in batches]
    children = [
        context.Process(target=_make_and_publish, args=({"bootstrap_servers": rig.via}, batch, theirs))
        for batch, (_, theirs) in zip(batches, pipes, strict=True)
    ]
    for child in children:
        child.start()
    for child, (ours, _) in zip(children, pipes, strict=True):
        assert ours.poll(60), "the child is stuck"
        assert ours.recv()[0]
        child.join(PATIENCE)
        assert child.exitcode == 0
    assert in_order(rig.messages(), [event for batch in batches for event in batch])


def _publish_one_by_one(options: dict[str, Any], events: Sequence[Event], sink: Any) -> None:
    publisher = KafkaPublisher(options)
    for number, event in enumerate(events):
        assert all_delivered(publish(publisher, [event]))
        if number < 10:
            sink.send(event.position)
    publisher.close()


def test_a_late_zombie_process_only_adds_duplicates(rig: KafkaRig) -> None:
    """A worker freezes in the middle of a key, another takes over, and the first one goes on."""
    context = multiprocessing.get_context("spawn")
    events = some_events(rig, 2000, keys=1)
    ours, theirs = context.Pipe()
    zombie = context.Process(
        target=_publish_one_by_one, args=({"bootstrap_servers": rig.via}, events, theirs)
    )
    zombie.start()
    assert zombie.pid is not None
    settled = [ours.recv() for _ in range(10)]
    os.kill(zombie.pid, signal.SIGSTOP)
    publisher = rig.make()
    taken_over = [event._replace(generation=2) for event in events if event.position not in settled]
    publish_as_the_relay_does(publisher, taken_over)
    publisher.close()
    os.kill(zombie.pid, signal.SIGCONT)
    zombie.join(60)
    assert zombie.exitcode == 0
    messages = rig.messages()
    generations = [dict(message.headers())["lease_generation"] for message in messages]
    assert b"1" in generations[generations.index(b"2") :], "the zombie did not publish late"
    assert in_order(messages, events)
