"""RabbitMQ that refuses, hides, stalls, blocks and dies. Each test shows that its fault happened."""

import multiprocessing
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from publishers.amqp_flight import Flight
from publishers.amqp_link import Link
from publishers.rabbitmq import RabbitPublisher
from relay.demo.postgres import ServerError
from relay.event import Event
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed
from tests.conftest import missing
from tests.servers.process import wait_until
from tests.servers.proxy import TcpProxy
from tests.servers.rabbit_rig import RabbitRig
from tests.servers.rabbitmq import RabbitNode
from tests.system.trials_rabbitmq import trials

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("rabbitmq")]

MakeProxy = Callable[[str], TcpProxy]


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitNode]:
    """A node of these tests alone: they raise its alarms and add users."""
    try:
        node = RabbitNode()
    except ServerError as error:
        missing(str(error))
    with node:
        yield node


@pytest.fixture
def rig(node: RabbitNode) -> RabbitRig:
    return RabbitRig(node.url)


@contextmanager
def open_publisher(rig: RabbitRig, **options: Any) -> Iterator[RabbitPublisher]:
    publisher = rig.make(**options)
    try:
        yield publisher
    finally:
        publisher.close()


def publish(publisher: RabbitPublisher, *events: Event, seconds: float = 30.0) -> list[Any]:
    return list(publisher.publish(events, monotonic() + seconds))


def delivered(outcomes: list[Outcome]) -> list[bool]:
    return [isinstance(outcome, Delivered) for outcome in outcomes]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What the broker said to the publisher: arguments of confirm, refuse, give_back and interrupt."""
    seen: dict[str, list[Any]] = {}

    def listen(name: str) -> None:
        said = seen[name] = []
        original = getattr(Flight, name)

        def spy(flight: Flight, *args: Any) -> None:
            said.append(args)
            original(flight, *args)

        monkeypatch.setattr(Flight, name, spy)

    for name in ("confirm", "refuse", "give_back", "interrupt"):
        listen(name)
    return seen


# Unroutable, refused, missing


def test_return_and_ack_is_not_delivered(rig: RabbitRig, calls: dict[str, list[Any]]) -> None:
    with rig.channel() as channel:
        channel.queue_unbind(rig.queue, rig.destination, "#")
        channel.queue_bind(rig.queue, rig.destination, "Known")
    events = [rig.event("order:1"), rig.event("order:1"), rig.event("order:2", event_type="Known")]
    with open_publisher(rig) as publisher:
        unroutable, behind, routed = publish(publisher, *events)
    assert calls["give_back"] == [(events[0].event_id,)]
    assert calls["confirm"]
    assert not calls["refuse"]
    assert isinstance(unroutable, Unconfirmed)
    assert unroutable.scope == "destination"
    assert unroutable.holds == "route"
    assert f"'{rig.destination}' with routing key 'OrderPaid'" in unroutable.reason
    assert not isinstance(behind, Delivered)
    assert isinstance(routed, Delivered)
    assert rig.drain() == [events[2].event_id]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_full_queue_that_rejects_is_the_routes_trouble_until_there_is_room(
    node: RabbitNode, queue_type: str, calls: dict[str, list[Any]]
) -> None:
    rig = _small_queue(node, 1, queue_type)
    with open_publisher(rig) as publisher:
        outcome: Any = Delivered()
        filling = 0
        while isinstance(outcome, Delivered):
            (outcome,) = publish(publisher, rig.event())
            filling += 1
            assert filling < 20
        assert calls["refuse"]
        assert (outcome.scope, outcome.holds) == ("destination", "route")
        assert "full" in outcome.reason
        rig.drain()
        assert delivered(publish(publisher, rig.event())) == [True]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_nack_never_lets_a_successor_through(
    node: RabbitNode, queue_type: str, calls: dict[str, list[Any]]
) -> None:
    rig = _small_queue(node, 5, queue_type)
    with open_publisher(rig) as publisher:
        out_of_order = _publish_while_the_queue_overflows(rig, publisher)
        assert publisher.overtaken == 0
    assert len(calls["refuse"]) > 10
    assert out_of_order == 0


def test_without_a_bound_successors_do_get_past_a_nack_and_are_counted(
    node: RabbitNode, calls: dict[str, list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """What the bound is for; and that the test before this one can fail."""
    rig = _small_queue(node, 5, "classic")
    with open_publisher(rig, max_unconfirmed_per_key=0) as publisher:
        out_of_order = _publish_while_the_queue_overflows(rig, publisher)
        assert publisher.overtaken > 0
    assert calls["refuse"]
    assert out_of_order > 0
    assert "overtook" in caplog.text


def _small_queue(node: RabbitNode, length: int, queue_type: str) -> RabbitRig:
    limits = {"x-queue-type": queue_type, "x-max-length": length, "x-overflow": "reject-publish"}
    return RabbitRig(node.url, limits)


def _publish_while_the_queue_overflows(rig: RabbitRig, publisher: RabbitPublisher) -> int:
    """Four keys of fifty into a queue that is emptied now and then; how many came ahead of an earlier one."""
    lanes = {f"order:{n}": [rig.event(f"order:{n}") for _ in range(50)] for n in range(4)}
    place = {event.event_id: (event.key, event.position) for lane in lanes.values() for event in lane}
    arrived: list[str] = []
    done = threading.Event()

    def consume() -> None:
        while not done.wait(0.01):
            arrived.extend(rig.drain())

    with ThreadPoolExecutor(1) as pool:
        consuming = pool.submit(consume)
        try:
            give_up = monotonic() + 60
            while any(lanes.values()):
                assert monotonic() < give_up
                batch = [event for lane in lanes.values() for event in lane[:10]]
                for event, done_with in zip(batch, delivered(publish(publisher, *batch)), strict=True):
                    if done_with:
                        lanes[event.key].remove(event)
        finally:
            done.set()
        consuming.result()
    arrived += rig.drain()
    assert set(arrived) == set(place)
    latest: dict[str, int] = {}
    inversions = 0
    for event_id in dict.fromkeys(arrived):
        key, position = place[event_id]
        inversions += position < latest.get(key, 0)
        latest[key] = max(position, latest.get(key, 0))
    return inversions


def test_a_404_loses_no_earlier_publish(rig: RabbitRig, calls: dict[str, list[Any]]) -> None:
    missing_exchange = f"missing-{uuid4().hex}"
    innocents = [rig.event(f"order:{n}") for n in range(300)]
    astray = rig.event("order:astray", destination=missing_exchange)
    behind = rig.event("order:astray")
    with open_publisher(rig) as publisher:
        publish(publisher, rig.event("order:warm"))
        begun = monotonic()
        outcomes = publish(publisher, *innocents[:150], astray, behind, *innocents[150:])
        assert monotonic() - begun < 5
        assert delivered(outcomes) == [True] * 150 + [False, False] + [True] * 150
        assert (outcomes[150].scope, outcomes[150].holds) == ("destination", "destination")
        assert missing_exchange in outcomes[150].reason
        assert len(calls["interrupt"]) == 1
        # From now on it is tried alone, and what else is in the call is not disturbed.
        confirmed = len(rig.messages(301))
        outcomes = publish(publisher, *[rig.event(f"order:{n}") for n in range(50)], astray, behind)
        assert delivered(outcomes) == [True] * 50 + [False, False]
        assert len(rig.messages(confirmed + 50)) == confirmed + 50
    arrived = rig.drain()
    assert {event.event_id for event in innocents} <= set(arrived)
    assert not {astray.event_id, behind.event_id} & set(arrived)


def test_a_missing_exchange_that_appears_later_gets_its_events(rig: RabbitRig) -> None:
    name = f"later-{uuid4().hex}"
    events = [rig.event("order:1", destination=name) for _ in range(5)]
    with open_publisher(rig) as publisher:
        for _ in range(2):
            outcomes = publish(publisher, *events)
            assert delivered(outcomes) == [False] * 5
            assert outcomes[0].scope == "destination"
        with rig.channel() as channel:
            channel.exchange_declare(name, "topic", durable=True)
            channel.queue_bind(rig.queue, name, "#")
        assert delivered(publish(publisher, *events)) == [True] * 5
    assert rig.drain() == [event.event_id for event in events]


def test_several_missing_exchanges_are_told_apart(rig: RabbitRig, calls: dict[str, list[Any]]) -> None:
    names = [f"missing-{uuid4().hex}" for _ in range(3)]
    events = [rig.event(f"order:{n}", destination=[*names, rig.destination][n % 4]) for n in range(80)]
    with open_publisher(rig) as publisher:
        outcomes = publish(publisher, *events)
    assert delivered(outcomes) == [event.destination == rig.destination for event in events]
    assert all(
        event.destination in outcome.reason
        for event, outcome in zip(events, outcomes, strict=True)
        if isinstance(outcome, Unconfirmed)
    )
    assert len(calls["interrupt"]) == 3


def test_refused_access_is_the_exchanges_trouble_and_others_get_through(
    rig: RabbitRig, node: RabbitNode, calls: dict[str, list[Any]]
) -> None:
    node.ctl("add_user", "limited", "pass-word")
    node.ctl("set_permissions", "limited", "", rig.destination, "")
    url = urlsplit(node.url)._replace(netloc=f"limited:pass-word@127.0.0.1:{node.port}").geturl()
    with open_publisher(rig, url=url) as publisher:
        refused, allowed = publish(
            publisher, rig.event("order:1", destination="amq.topic"), rig.event("order:2")
        )
    node.ctl("delete_user", "limited")
    assert len(calls["interrupt"]) == 1
    assert isinstance(refused, Unconfirmed)
    assert refused.scope == "destination"
    assert "ACCESS_REFUSED" in refused.reason
    assert "pass-word" not in refused.reason
    assert isinstance(allowed, Delivered)


def test_a_record_that_the_broker_refuses_is_found_among_its_batch_mates(
    rig: RabbitRig, calls: dict[str, list[Any]]
) -> None:
    """RabbitMQ closes the channel on a header CC that is no list, and does not say whose it was."""
    events = [rig.event(f"order:{n % 50}") for n in range(200)]
    events[77] = events[77]._replace(headers={"CC": "not a list"})
    with open_publisher(rig) as publisher:
        outcomes = publish(publisher, *events)
    assert len(calls["interrupt"]) > 3
    assert isinstance(outcomes[77], Refused)
    assert "PRECONDITION_FAILED" in outcomes[77].reason
    behind = [n for n in range(78, 200) if events[n].key == events[77].key]
    assert [n for n, done in enumerate(delivered(outcomes)) if not done] == [77, *behind]
    _assert_in_order(rig, [event for n, event in enumerate(events) if n not in {77, *behind}])


def test_bad_headers_fail_one_event_not_the_connection(rig: RabbitRig, proxy: MakeProxy) -> None:
    through = proxy(rig.url)
    bad = [{"h": "x" * 200_000}, {"x" * 300: "1"}, {"h": "\ud800"}]
    events = [rig.event(f"order:{n}", headers=bad[n] if n < 3 else None) for n in range(20)]
    with open_publisher(rig, url=through.url(rig.url)) as publisher:
        outcomes = publish(publisher, *events)
        assert [type(outcome) for outcome in outcomes] == [Refused] * 3 + [Delivered] * 17
        assert delivered(publish(publisher, rig.event())) == [True]
    assert through.connections == 1


def test_headers_that_do_reach_the_broker_cost_their_event_an_attempt_and_nobody_else(
    rig: RabbitRig, proxy: MakeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The belt behind the check: what makes the broker hang up is found on new connections."""
    monkeypatch.setattr(Link, "_frame_max", property(lambda _: 1 << 30, lambda *_: None), raising=False)
    through = proxy(rig.url)
    events = [rig.event(f"order:{n}") for n in range(40)]
    events[13] = events[13]._replace(headers={"h": "x" * 200_000})
    with open_publisher(rig, url=through.url(rig.url)) as publisher:
        outcomes = publish(publisher, *events)
    assert through.connections > 3
    assert [n for n, done in enumerate(delivered(outcomes)) if not done] == [13]
    assert outcomes[13].scope == "event"
    assert "frame_too_large" in outcomes[13].reason


# Settings


def _elsewhere(node: RabbitNode, **parts: str) -> str:
    return urlsplit(node.url)._replace(**parts).geturl()


@pytest.mark.parametrize("what", ["password", "virtual host", "closed virtual host", "plain port for TLS"])
def test_a_wrong_setting_is_told_as_such_and_never_shows_the_password(
    rig: RabbitRig, node: RabbitNode, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    node.ctl("add_user", "hidden", "hush-hush")
    login = f"hidden:hush-hush@127.0.0.1:{node.port}"
    url = {
        "password": _elsewhere(node, netloc=f"guest:hush-hush@127.0.0.1:{node.port}"),
        "virtual host": _elsewhere(node, netloc=login, path="/nowhere"),
        "closed virtual host": _elsewhere(node, netloc=login),
        "plain port for TLS": _elsewhere(node, scheme="amqps", netloc=login),
    }[what]
    with open_publisher(rig, url=url) as publisher:
        outcomes = publish(publisher, rig.event("order:1"), rig.event("order:2"))
    node.ctl("delete_user", "hidden")
    assert {outcome.scope for outcome in outcomes} == {"settings"}
    assert "hush-hush" not in outcomes[0].reason + caplog.text
    assert f"127.0.0.1:{node.port}" in outcomes[0].reason


def test_a_certificate_that_nobody_vouches_for_is_the_settings_trouble(
    rig: RabbitRig, tmp_path: Path
) -> None:
    pem = tmp_path / "server.pem"
    pem.write_text(SELF_SIGNED)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    refusals: list[str] = []

    def serve(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        try:
            context.wrap_socket(accepted, server_side=True)
        except ssl.SSLError as error:
            refusals.append(error.reason)
        finally:
            accepted.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve, listener)
        with open_publisher(
            rig, url=f"amqps://guest:guest@localhost:{listener.getsockname()[1]}/"
        ) as publisher:
            (outcome,) = publish(publisher, rig.event())
        serving.result()
    assert refusals == ["TLSV1_ALERT_UNKNOWN_CA"]
    assert outcome.scope == "settings"
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.reason


def test_a_broker_that_is_not_there_is_the_brokers_trouble(rig: RabbitRig, proxy: MakeProxy) -> None:
    through = proxy(rig.url)
    through.cut()
    with open_publisher(rig, url=through.url(rig.url)) as publisher:
        (outcome,) = publish(publisher, rig.event())
        assert outcome.scope == "broker"
        assert "cannot be reached" in outcome.reason
        through.restore()
        assert delivered(publish(publisher, rig.event())) == [True]


# Stalls, alarms, restarts


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_silent_stall_is_noticed_within_20_s(rig: RabbitRig, proxy: MakeProxy, direction: Any) -> None:
    through = proxy(rig.url)
    events = [rig.event("order:1") for _ in range(3)]
    with open_publisher(rig, url=through.url(rig.url)) as publisher:
        publish(publisher, rig.event())
        through.stall(direction)
        begun = monotonic()
        outcomes = publish(publisher, *events, seconds=60)
        waited = monotonic() - begun
        assert publisher.stranded == 1
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
    with open_publisher(rig, url=through.url(rig.url)) as publisher:
        publish(publisher, rig.event())
        through.stall()
        begun = monotonic()
        (outcome,) = publish(publisher, rig.event(), seconds=1.0)
        assert publisher.stranded == 1
        assert 0.9 < monotonic() - begun < 3
        assert outcome.scope == "broker"


def test_a_stall_while_connecting_ends_with_confirm_seconds(rig: RabbitRig, proxy: MakeProxy) -> None:
    through = proxy(rig.url)
    through.stall()
    with open_publisher(rig, url=through.url(rig.url), confirm_seconds=1.0) as publisher:
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
    with open_publisher(rig, confirm_seconds=1.0) as publisher:
        outcomes = publish(publisher, *events)
        assert publisher.stranded == 1
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
    with open_publisher(rig, confirm_seconds=0.5) as publisher, ThreadPoolExecutor(1) as pool:
        publish(publisher, rig.event("order:warm"))
        with alarm(node) as end:
            publishing = pool.submit(publish, publisher, *events)
            wait_until(lambda: "takes no messages for now" in caplog.text, 10, "the connection to be blocked")
            # Longer than the wait for a confirm: a blocked connection is not given up for it.
            with pytest.raises(TimeoutError):
                publishing.result(1.5)
            end()
            assert delivered(publishing.result(30)) == [True] * 100
        assert publisher.stranded == 0
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
    with open_publisher(rig) as after:
        assert delivered(publish(after, *events)) == [True] * 3
    assert list(dict.fromkeys(rig.drain())) == [event.event_id for event in events]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_what_was_delivered_outlives_the_broker_and_the_rest_follows(
    rig: RabbitRig, node: RabbitNode, how: str
) -> None:
    events = [rig.event(f"order:{n % 5}") for n in range(50)]
    with open_publisher(rig) as publisher:
        assert delivered(publish(publisher, *events[:25])) == [True] * 25
        getattr(node, how)()
        (outcome,) = publish(publisher, events[25], seconds=2.0)
        assert outcome.scope == "broker"
        node.start()
        assert delivered(publish(publisher, *events[25:])) == [True] * 25
    _assert_in_order(rig, events)


def _assert_in_order(rig: RabbitRig, events: list[Event]) -> None:
    arrived = list(dict.fromkeys(rig.drain()))
    assert set(arrived) == {event.event_id for event in events}
    for key in {event.key for event in events}:
        lane = [event.event_id for event in events if event.key == key]
        assert [event_id for event_id in arrived if event_id in lane] == lane


# Processes, threads, closing


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
    with open_publisher(rig) as publisher:
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
    _assert_in_order(rig, [*mine, *theirs])


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


# All of it together


@pytest.mark.slow
def test_randomised_faults_lose_nothing_and_keep_the_order() -> None:
    run = list(trials(bites=20, seed=20))
    assert sum(trial.bit for trial in run) == 20, [str(trial) for trial in run]
    assert all(trial.verdict.kept_the_promise for trial in run), [str(trial) for trial in run]


# Of localhost, vouched for by itself; the key guards nothing.
SELF_SIGNED = """\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIBmmZBsZ66bnqjiQNVdVWHMJY//1eimKrnDwO7ebUK0OoAoGCCqGSM49
AwEHoUQDQgAEWsJ2VrwxofEtBa8n56O/8zDRzE/N6Vg8ZZHCtXulOppRcZ2wZqUT
9urzkbiVbYG180IUbfXZx1qxnQ/ZXHBsIw==
-----END EC PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUUF6TOmg5kVWJgCDc/vfN+Knp+MswCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNjA0MDQxMVoYDzIxMjYxMDIz
MDQwNDExWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARawnZWvDGh8S0Fryfno7/zMNHMT83pWDxlkcK1e6U6mlFxnbBmpRP2
6vORuJVtgbXzQhRt9dnHWrGdD9lccGwjo1MwUTAdBgNVHQ4EFgQUyQ5JvhAXvOQR
aGmUwHP53+RnLZIwHwYDVR0jBBgwFoAUyQ5JvhAXvOQRaGmUwHP53+RnLZIwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiAguH1rucIN7exBJejPuiDt
yxcYk9+cU5TzlTlSCHDTbwIhALCdEk2HD84moICNRXfJKFYiNIdUKCXItW3qzTYi
zRe0
-----END CERTIFICATE-----
"""
