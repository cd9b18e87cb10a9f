"""RabbitMQ that refuses: events, exchanges, access, settings. Each test shows that its fault happened."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from publishers.amqp_flight import Flight
from publishers.amqp_frames import Frames
from publishers.rabbitmq import RabbitPublisher
from relay.demo.postgres import ServerError
from relay.outcome import Delivered, Refused, Unconfirmed
from tests.conftest import missing
from tests.servers.proxy import TcpProxy
from tests.servers.rabbit_rig import RabbitRig, delivered, publish
from tests.servers.rabbitmq import RabbitNode

pytestmark = [pytest.mark.server]

MakeProxy = Callable[[str], TcpProxy]


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitNode]:
    """A node of these tests alone: they add users."""
    try:
        node = RabbitNode()
    except ServerError as error:
        missing(str(error))
    with node:
        yield node


@pytest.fixture
def rig(node: RabbitNode) -> RabbitRig:
    return RabbitRig(node.url)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What the broker said to the publisher: arguments of confirm, refuse, give_back and interrupt.

    `stranded` is how many messages were unconfirmed at each interrupt.
    """
    seen: dict[str, list[Any]] = {"stranded": []}

    def listen(name: str) -> None:
        said = seen[name] = []
        original = getattr(Flight, name)

        def spy(flight: Flight, *args: Any) -> None:
            said.append(args)
            if name == "interrupt":
                seen["stranded"].append(len(flight.unconfirmed))
            original(flight, *args)

        monkeypatch.setattr(Flight, name, spy)

    for name in ("confirm", "refuse", "give_back", "interrupt"):
        listen(name)
    return seen


def test_return_and_ack_is_not_delivered(rig: RabbitRig, calls: dict[str, list[Any]]) -> None:
    with rig.channel() as channel:
        channel.queue_unbind(rig.queue, rig.destination, "#")
        channel.queue_bind(rig.queue, rig.destination, "Known")
    events = [rig.event("order:1"), rig.event("order:1"), rig.event("order:2", event_type="Known")]
    with rig.publisher() as publisher:
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
    with rig.publisher() as publisher:
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
    with rig.publisher() as publisher:
        out_of_order = _publish_while_the_queue_overflows(rig, publisher)
        assert publisher.incidents["overtaken"] == 0
    assert len(calls["refuse"]) > 10
    assert out_of_order == 0


def test_without_a_bound_successors_do_get_past_a_nack_and_are_counted(
    node: RabbitNode, calls: dict[str, list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """What the bound is for; and that the test before this one can fail."""
    rig = _small_queue(node, 5, "classic")
    with rig.publisher(max_unconfirmed_per_key=0) as publisher:
        out_of_order = _publish_while_the_queue_overflows(rig, publisher)
        assert publisher.incidents["overtaken"] > 0
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
    vanishing = RabbitRig(rig.url)
    innocents = [rig.event(f"order:{n}") for n in range(300)]
    astray, behind = vanishing.event("order:astray"), rig.event("order:astray")
    with rig.publisher() as publisher:
        assert delivered(publish(publisher, vanishing.event("order:0"), rig.event("order:0"))) == [True] * 2
        with rig.channel() as channel:
            channel.exchange_delete(vanishing.destination)
        begun = monotonic()
        outcomes = publish(publisher, *innocents[:20], astray, behind, *innocents[20:])
        assert monotonic() - begun < 5
    assert len(calls["interrupt"]) == 1
    assert calls["stranded"][0] > 1
    assert delivered(outcomes) == [True] * 20 + [False, False] + [True] * 280
    assert (outcomes[20].scope, outcomes[20].holds) == ("destination", "destination")
    assert vanishing.destination in outcomes[20].reason
    arrived = rig.drain()
    assert {event.event_id for event in innocents} <= set(arrived)
    assert not {astray.event_id, behind.event_id} & set(arrived)


def test_an_exchange_that_was_never_there_disturbs_nobody(
    rig: RabbitRig, calls: dict[str, list[Any]]
) -> None:
    missing_exchange = f"missing-{uuid4().hex}"
    innocents = [rig.event(f"order:{n}") for n in range(100)]
    astray = [rig.event("order:astray", destination=missing_exchange), rig.event("order:astray")]
    with rig.publisher() as publisher:
        for _ in range(2):
            begun = monotonic()
            outcomes = publish(publisher, *innocents[:50], *astray, *innocents[50:])
            assert monotonic() - begun < 5
            assert delivered(outcomes) == [True] * 50 + [False, False] + [True] * 50
    assert calls["stranded"] == [1, 1]
    assert len(rig.drain()) == 200


def test_a_missing_exchange_that_appears_later_gets_its_events(rig: RabbitRig) -> None:
    name = f"later-{uuid4().hex}"
    events = [rig.event("order:1", destination=name) for _ in range(5)]
    with rig.publisher() as publisher:
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
    with rig.publisher() as publisher:
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
    with rig.publisher(url=url) as publisher:
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
    with rig.publisher() as publisher:
        outcomes = publish(publisher, *events)
    assert len(calls["interrupt"]) > 3
    assert isinstance(outcomes[77], Refused)
    assert "PRECONDITION_FAILED" in outcomes[77].reason
    behind = [n for n in range(78, 200) if events[n].key == events[77].key]
    assert [n for n, done in enumerate(delivered(outcomes)) if not done] == [77, *behind]
    rig.assert_in_order([event for n, event in enumerate(events) if n not in {77, *behind}])


def test_bad_headers_fail_one_event_not_the_connection(rig: RabbitRig, proxy: MakeProxy) -> None:
    through = proxy(rig.url)
    bad = [{"h": "x" * 200_000}, {"x" * 300: "1"}, {"h": "\ud800"}]
    events = [rig.event(f"order:{n}", headers=bad[n] if n < 3 else None) for n in range(20)]
    with rig.publisher(url=through.url(rig.url)) as publisher:
        outcomes = publish(publisher, *events)
        assert [type(outcome) for outcome in outcomes] == [Refused] * 3 + [Delivered] * 17
        assert delivered(publish(publisher, rig.event())) == [True]
    assert through.connections == 1


def test_headers_that_do_reach_the_broker_cost_their_event_an_attempt_and_nobody_else(
    rig: RabbitRig, proxy: MakeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The belt behind the check: what makes the broker hang up is found on new connections."""
    monkeypatch.setattr(Frames, "_frame_max", property(lambda _: 1 << 30, lambda *_: None), raising=False)
    through = proxy(rig.url)
    events = [rig.event(f"order:{n}") for n in range(40)]
    events[13] = events[13]._replace(headers={"h": "x" * 200_000})
    with rig.publisher(url=through.url(rig.url)) as publisher:
        outcomes = publish(publisher, *events)
    assert through.connections > 3
    assert [n for n, done in enumerate(delivered(outcomes)) if not done] == [13]
    assert outcomes[13].scope == "event"
    assert "frame_too_large" in outcomes[13].reason


def test_a_virtual_host_that_is_closed_to_the_user_is_the_settings_trouble(
    rig: RabbitRig, node: RabbitNode
) -> None:
    node.ctl("add_user", "stranger", "hush-hush")
    url = urlsplit(node.url)._replace(netloc=f"stranger:hush-hush@127.0.0.1:{node.port}").geturl()
    with rig.publisher(url=url) as publisher:
        (outcome,) = publish(publisher, rig.event())
    node.ctl("delete_user", "stranger")
    assert outcome.scope == "settings"
    assert "refused virtual host '/' to user 'stranger'" in outcome.reason
    assert "hush-hush" not in outcome.reason


def test_a_broker_that_is_not_there_is_the_brokers_trouble(rig: RabbitRig, proxy: MakeProxy) -> None:
    through = proxy(rig.url)
    through.cut()
    with rig.publisher(url=through.url(rig.url)) as publisher:
        (outcome,) = publish(publisher, rig.event())
        assert outcome.scope == "broker"
        assert "cannot be reached" in outcome.reason
        through.restore()
        assert delivered(publish(publisher, rig.event())) == [True]
