"""RabbitMQ that stalls, blocks and dies; processes that fork and close.

Each test shows that its fault happened.
"""

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import pytest

from publishers.rabbitmq import RabbitPublisher
from relay.demo.postgres import ServerError
from relay.event import Event
from tests.conftest import missing
from tests.servers.process import wait_until
from tests.servers.proxy import TcpProxy
from tests.servers.rabbit_rig import RabbitRig, delivered, publish
from tests.servers.rabbitmq import RabbitNode
from tests.system.trials_rabbitmq import trials

pytestmark = [pytest.mark.server]

MakeProxy = Callable[[str], TcpProxy]


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitNode]:
    """A node of these tests alone: they raise its alarms and end it."""
    try:
        node = RabbitNode()
    except ServerError as error:
        missing(str(error))
    with node:
        yield node


@pytest.fixture
def rig(node: RabbitNode) -> RabbitRig:
    return RabbitRig(node.url)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_silent_stall_is_noticed_within_20_s(rig: RabbitRig, proxy: MakeProxy, direction: Any) -> None:
    through = proxy(rig.url)
    events = [rig.event("order:1") for _ in range(3)]
    with rig.publisher(url=through.url(rig.url)) as publisher:
        publish(publisher, rig.event())
        through.stall(direction)
        begun = monotonic()
        outcomes = publish(publisher, *events, seconds=60)
        waited = monotonic() - begun
        assert publisher.incidents["stranded"] == 1
        assert delivered(outcomes) == [False] * 3
        assert outcomes[0].scope == "broker"
        assert 14 < waited < 20
        through.restore()
        assert delivered(publish(publisher, *events)) == [True] * 3
    assert list(dict.fromkeys(rig.drain()))[1:] == [event.event_id for event in events]


def test_the_deadline_of_the_call_ends_a_stall_before_confirm_seconds_do(
    rig: RabbitRig, proxy: MakeProxy
) -> None:
    through = proxy(rig.url)
    with rig.publisher(url=through.url(rig.url)) as publisher:
        publish(publisher, rig.event())
        through.stall()
        begun = monotonic()
        (outcome,) = publish(publisher, rig.event(), seconds=1.0)
        assert publisher.incidents["stranded"] == 1
        assert 0.9 < monotonic() - begun < 3
        assert outcome.scope == "broker"


def test_a_stall_while_connecting_ends_with_confirm_seconds(rig: RabbitRig, proxy: MakeProxy) -> None:
    through = proxy(rig.url)
    through.stall()
    with rig.publisher(url=through.url(rig.url), confirm_seconds=1.0) as publisher:
        begun = monotonic()
        (outcome,) = publish(publisher, rig.event())
        assert 0.9 < monotonic() - begun < 3
        assert through.connections == 1
        assert outcome.scope == "broker"


def test_one_queue_that_confirms_nothing_does_not_count_against_the_broker(
    rig: RabbitRig, node: RabbitNode
) -> None:
    stuck = RabbitRig(node.url)
    _each_queue_process(node, stuck.queue, "suspend")
    events = [rig.event("order:1"), stuck.event("order:2"), stuck.event("order:2"), rig.event("order:3")]
    with rig.publisher(confirm_seconds=1.0) as publisher:
        outcomes = publish(publisher, *events)
        assert publisher.incidents["stranded"] == 1
        assert delivered(outcomes) == [True, False, False, True]
        assert (outcomes[1].scope, outcomes[1].holds) == ("destination", "route")
        _each_queue_process(node, stuck.queue, "resume")
        assert delivered(publish(publisher, *events[1:3])) == [True, True]
    assert list(dict.fromkeys(stuck.drain())) == [event.event_id for event in events[1:3]]


def _each_queue_process(node: RabbitNode, queue: str, what: str) -> None:
    node.ctl(
        "eval",
        f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)),'
        f" sys:{what}(amqqueue:get_pid(Q)).",
    )


@contextmanager
def alarm(node: RabbitNode) -> Iterator[Callable[[], None]]:
    """No memory to spare; yields what ends it."""

    def end() -> None:
        node.ctl("set_vm_memory_high_watermark", "0.4")

    node.ctl("set_vm_memory_high_watermark", "0")
    try:
        yield end
    finally:
        end()


def test_an_alarm_recovers_without_loss(
    rig: RabbitRig, node: RabbitNode, caplog: pytest.LogCaptureFixture
) -> None:
    events = [rig.event(f"order:{n % 10}") for n in range(100)]
    with rig.publisher(confirm_seconds=0.5) as publisher, ThreadPoolExecutor(1) as pool:
        publish(publisher, rig.event("order:warm"))
        with alarm(node) as end:
            publishing = pool.submit(publish, publisher, *events)
            wait_until(lambda: "takes no messages for now" in caplog.text, 10, "the connection to be blocked")
            # Longer than the wait for a confirm: a blocked connection is not given up for it.
            with pytest.raises(TimeoutError):
                publishing.result(1.5)
            end()
            assert delivered(publishing.result(30)) == [True] * 100
        assert publisher.incidents["stranded"] == 0
    assert "takes messages again" in caplog.text
    assert len(rig.drain()) == 101


def test_an_alarm_past_the_deadline_is_the_brokers_trouble_and_close_does_not_wait_for_it(
    rig: RabbitRig, node: RabbitNode, caplog: pytest.LogCaptureFixture
) -> None:
    events = [rig.event("order:1") for _ in range(3)]
    publisher = rig.make()
    with alarm(node):
        outcomes = publish(publisher, *events, seconds=2.0)
        assert "takes no messages for now" in caplog.text
        assert delivered(outcomes) == [False] * 3
        assert outcomes[0].scope == "broker"
        assert "memory" in outcomes[0].reason
        publish(publisher, *events, seconds=0.5)
        begun = monotonic()
        publisher.close()
        assert monotonic() - begun < 5
    with rig.publisher() as after:
        assert delivered(publish(after, *events)) == [True] * 3
    assert list(dict.fromkeys(rig.drain())) == [event.event_id for event in events]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_what_was_delivered_outlives_the_broker_and_the_rest_follows(
    rig: RabbitRig, node: RabbitNode, how: str
) -> None:
    events = [rig.event(f"order:{n % 5}") for n in range(50)]
    with rig.publisher() as publisher:
        assert delivered(publish(publisher, *events[:25])) == [True] * 25
        getattr(node, how)()
        (outcome,) = publish(publisher, events[25], seconds=2.0)
        assert outcome.scope == "broker"
        node.start()
        assert delivered(publish(publisher, *events[25:])) == [True] * 25
    rig.assert_in_order(events)


def _publish_elsewhere(publisher: RabbitPublisher, events: list[Event], answer: Connection) -> None:
    answer.send(delivered(publish(publisher, *events)))
    publisher.close()


def _publish_with(options: dict[str, Any], events: list[Event], answer: Connection) -> None:
    _publish_elsewhere(RabbitPublisher(options), events, answer)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_two_processes_publish_side_by_side(rig: RabbitRig, method: str) -> None:
    """After a fork even with the very same publisher, which was connected before it."""
    context = multiprocessing.get_context(method)
    mine = [rig.event("order:mine") for _ in range(50)]
    theirs = [rig.event("order:theirs") for _ in range(50)]
    threads = set(threading.enumerate())
    with rig.publisher() as publisher:
        assert delivered(publish(publisher, *mine[:10])) == [True] * 10
        here, there = context.Pipe()
        target, subject = (
            (_publish_elsewhere, publisher) if method == "fork" else (_publish_with, rig.options)
        )
        process = context.Process(target=target, args=(subject, theirs, there))  # type: ignore[attr-defined]
        process.start()
        assert delivered(publish(publisher, *mine[10:30])) == [True] * 20
        assert here.poll(30)
        assert here.recv() == [True] * 50
        process.join(10)
        assert process.exitcode == 0
        assert delivered(publish(publisher, *mine[30:])) == [True] * 20
    here.close()
    there.close()
    assert set(threading.enumerate()) <= threads
    rig.assert_in_order([*mine, *theirs])


@pytest.mark.parametrize("state", ["idle", "holding messages", "connecting"])
def test_close_keeps_its_time_and_leaves_no_thread_on_a_dead_network(
    rig: RabbitRig, proxy: MakeProxy, state: str
) -> None:
    through = proxy(rig.url)
    publisher = rig.make(url=through.url(rig.url))
    if state != "connecting":
        publish(publisher, rig.event())
        assert "rabbitmq" in {thread.name for thread in threading.enumerate()}
    through.stall()
    if state != "idle":
        publish(publisher, rig.event(), seconds=0.5)
    begun = monotonic()
    publisher.close()
    assert monotonic() - begun < 4
    publisher.close()
    assert through.connections >= 1
    assert "rabbitmq" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.slow
def test_randomised_faults_lose_nothing_and_keep_the_order() -> None:
    run = list(trials(bites=12, seed=20))
    assert sum(trial.bit for trial in run) == 12, [str(trial) for trial in run]
    assert all(trial.verdict.kept_the_promise for trial in run), [str(trial) for trial in run]
