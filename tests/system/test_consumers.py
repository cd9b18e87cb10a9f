"""Consumers on both brokers: each event is applied once, in the order of its key, whatever fails."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pika
import psycopg
import pytest
from prometheus_client import CollectorRegistry

from relay.consumers import Message
from relay.testing import make_event
from tests.system.consumer_kit import KafkaPlace, Ledger, Place, RabbitPlace, events, running
from tests.system.relays import wait_until

Connection = psycopg.Connection[Any]


@pytest.fixture(params=["kafka", "rabbitmq"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "kafka":
        yield KafkaPlace(request.getfixturevalue("kafka").address)
    else:
        yield RabbitPlace(request.getfixturevalue("rabbitmq"))


@pytest.fixture
def ledger(database: str) -> Ledger:
    return Ledger(database)


@pytest.mark.parametrize("format", ["plain", "cloudevents"])
def test_a_handler_sees_the_event_as_it_was_written(place: Place, ledger: Ledger, format: str) -> None:  # noqa: A002
    seen: list[Message] = []
    event = make_event(
        "order:9182",
        payload=b'{"order_id": 9182, "amount": 10.50}',
        headers={"tenant": "acme", "X-Trace": "é", "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"},
        generation=2**33 + 7,
        attempt=3,
        created_at=datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=UTC),
    )
    place.publish([event], format)
    with running(place.consumer(lambda _, message: seen.append(message), ledger.database)):
        wait_until(lambda: seen)
    (message,) = seen
    assert (message.event_id, message.event_type, message.key) == (event.event_id, "OrderPaid", "order:9182")
    assert message.payload == {"order_id": 9182, "amount": 10.5}
    assert message.value == event.payload
    assert message.headers == event.headers
    assert (message.position, message.lease_generation, message.attempt) == (event.position, 2**33 + 7, 3)
    assert message.created_at == event.created_at
    assert message.replay_id is None


def test_each_event_is_applied_once_however_often_it_arrives(place: Place, ledger: Ledger) -> None:
    registry = CollectorRegistry()
    batch = events(20, keys=3)
    place.publish([*batch, *batch[5:15], *batch])
    with running(place.consumer(ledger.credit, ledger.database, registry=registry)):
        wait_until(lambda: registry.get_sample_value("relay_consumer_duplicates_total", BILLING) == 30)
    ledger.assert_once_in_order(batch)
    assert registry.get_sample_value("relay_consumer_applied_total", BILLING) == 20
    assert registry.get_sample_value("relay_consumer_handler_seconds_count", BILLING) == 20
    assert place.left() == 0


BILLING = {"consumer": "billing"}


@pytest.mark.parametrize("format", ["plain", "cloudevents"])
def test_a_replayed_event_is_applied_once_more_per_replay(place: Place, ledger: Ledger, format: str) -> None:  # noqa: A002
    event = make_event()
    copies = [event._replace(marks={"replay_id": replay}) for replay in ("r1", "r1", "r2")]
    place.publish([event, event, *copies, event], format)
    registry = CollectorRegistry()
    with running(place.consumer(ledger.credit, ledger.database, fence=True, registry=registry)):
        wait_until(lambda: registry.get_sample_value("relay_consumer_duplicates_total", BILLING) == 3)
    assert ledger.ids() == [event.event_id] * 3


def test_what_the_broker_was_told_is_done_never_runs_ahead_of_the_database(
    place: Place, ledger: Ledger
) -> None:
    """The third event never succeeds: a consumer that tells the broker first would lose it."""
    batch = events(5)
    tried = threading.Event()

    def fail_at_the_third(conn: Connection, message: Message) -> None:
        ledger.credit(conn, message)
        if message.event_id == batch[2].event_id:
            tried.set()
            raise RuntimeError("no")

    place.publish(batch)
    with running(place.consumer(fail_at_the_third, ledger.database, on_exhausted="block")):
        assert tried.wait(60)
    ledger.assert_once_in_order(batch[:2])
    assert place.left() == 3
    with running(place.consumer(ledger.credit, ledger.database)):
        ledger.wait_for(5)
    ledger.assert_once_in_order(batch)
    assert place.left() == 0


def test_a_failed_event_holds_its_key_and_no_other_until_its_retry(place: Place, ledger: Ledger) -> None:
    registry = CollectorRegistry()
    mended = threading.Event()
    batch = events(30, keys=3)

    def fail_for_a_while(conn: Connection, message: Message) -> None:
        ledger.credit(conn, message)
        if message.event_id == batch[0].event_id and not mended.is_set():
            raise RuntimeError("not yet")

    place.publish(batch)
    with running(place.consumer(fail_for_a_while, ledger.database, max_attempts=10**6, registry=registry)):
        ledger.wait_for(20)
        wait_until(lambda: (registry.get_sample_value("relay_consumer_retries_total", BILLING) or 0) > 2)
        assert ledger.ask("SELECT count(*) FROM ledger WHERE key = 'order:0'") == [(0,)]
        mended.set()
        ledger.wait_for(30)
    ledger.assert_once_in_order(batch)
    assert place.left() == 0


def test_an_event_past_its_attempts_is_parked_with_its_error_and_its_key_goes_on(
    place: Place, ledger: Ledger
) -> None:
    registry = CollectorRegistry()
    batch = events(4)
    calls: list[str] = []

    def fail_at_the_second(conn: Connection, message: Message) -> None:
        ledger.credit(conn, message)
        calls.append(message.event_id)
        if message.event_id == batch[1].event_id:
            raise ValueError("no such account\0")

    place.publish(batch)
    with running(place.consumer(fail_at_the_second, ledger.database, max_attempts=3, registry=registry)):
        ledger.wait_for(3)
    ledger.assert_once_in_order([batch[0], *batch[2:]])
    assert calls.count(batch[1].event_id) == 3
    assert ledger.dead_letters() == [("failed", batch[1].event_id, "ValueError: no such account�")]
    assert place.left() == 0
    parked = BILLING | {"reason": "failed"}
    assert registry.get_sample_value("relay_consumer_parked_total", parked) == 1

    place.publish(batch)  # a duplicate of a parked event is not applied behind the operator's back
    registry = CollectorRegistry()
    with running(place.consumer(ledger.credit, ledger.database, registry=registry)):
        wait_until(lambda: registry.get_sample_value("relay_consumer_duplicates_total", BILLING) == 4)
    ledger.assert_once_in_order([batch[0], *batch[2:]])


def test_a_message_that_cannot_be_read_is_parked_and_not_looped_on(place: Place, ledger: Ledger) -> None:
    place.send(b"{}", {})
    place.send(b"{", {"event_id": "evt-torn", "partition_key": "order:1"})
    place.send(b"[]", {"event_id": "x" * 256})
    place.send(b"\xff\x00", {"event_id": "evt-binary", "odd": "a\0b"})
    last = make_event()
    place.publish([last])
    with running(place.consumer(ledger.credit, ledger.database)):
        ledger.wait_for(1)
        wait_until(lambda: len(ledger.dead_letters()) == 4)
    assert ledger.ids() == [last.event_id]
    assert sorted((row[0], row[1] or "") for row in ledger.dead_letters()) == [
        ("malformed", ""),
        ("malformed", ""),
        ("malformed", "evt-binary"),
        ("malformed", "evt-torn"),
    ]
    assert place.left() == 0


@pytest.mark.parametrize("format", ["plain", "cloudevents"])
def test_headers_that_pose_as_attributes_change_neither_an_event_nor_its_retry(
    place: Place,
    ledger: Ledger,
    format: str,  # noqa: A002
) -> None:
    posing = {
        prefix + name: value
        for prefix in ("ce_", "ce-", "cloudEvents:", "cloudEvents_")
        for name, value in {"specversion": "1.0", "id": "upstream-7", "partitionkey": "other"}.items()
    }
    mended = threading.Event()

    def credit(conn: Connection, message: Message) -> None:
        if not mended.is_set():
            raise ValueError("no")
        ledger.credit(conn, message)

    batch = events(2, headers=posing)
    place.publish(batch, format)
    with running(place.consumer(credit, ledger.database, max_attempts=1)):
        wait_until(lambda: len(ledger.dead_letters()) == 2)
        assert [row[1] for row in ledger.dead_letters()] == [event.event_id for event in batch]
        mended.set()
        asked = "UPDATE inbox_dedupe_dead_letters SET retry_asked_at = now() RETURNING id"
        assert len(ledger.ask(asked)) == 2
        ledger.wait_for(2)
    ledger.assert_once_in_order(batch)
    assert ledger.ask("SELECT DISTINCT key FROM ledger") == [("order:0",)]


def test_names_and_ids_that_are_no_utf8_end_no_consumer(rabbitmq: str, ledger: Ledger) -> None:
    place = RabbitPlace(rabbitmq)
    named: Any = {"headers": {b"\xff": "odd", "event_id": "evt-1"}}
    given: Any = {"message_id": b"evt-\xff", "type": b"\xfe"}
    with place.rig.channel() as channel:
        for properties in (named, given):
            channel.basic_publish("", place.rig.queue, b"{}", pika.BasicProperties(**properties))
    with running(place.consumer(ledger.credit, ledger.database)):
        ledger.wait_for(2)
    assert sorted(ledger.ids()) == ["evt-1", "evt-\ufffd"]
    assert place.left() == 0


def test_a_late_copy_is_parked_where_the_consumer_fences(place: Place, ledger: Ledger) -> None:
    registry = CollectorRegistry()
    first, second, third = events(3, generation=9)
    late = first._replace(generation=5)
    place.publish([second, late, third])
    with running(place.consumer(ledger.credit, ledger.database, fence=True, registry=registry)):
        ledger.wait_for(2)
    assert ledger.ids() == [second.event_id, third.event_id]
    assert [row[:2] for row in ledger.dead_letters()] == [("stale", first.event_id)]
    assert registry.get_sample_value("relay_consumer_regressions_total", BILLING) == 1
    assert place.left() == 0


def test_a_handler_that_swallows_a_failed_statement_loses_nothing(place: Place, ledger: Ledger) -> None:
    """The COMMIT of a failed transaction is a ROLLBACK, of the effect and of the mark."""
    event = make_event()
    swallowed = threading.Event()

    def careless(conn: Connection, message: Message) -> None:
        ledger.credit(conn, message)
        if not swallowed.is_set():
            swallowed.set()
            try:
                conn.execute("SELECT 1 / 0")
            except psycopg.Error:
                return

    place.publish([event])
    with running(place.consumer(careless, ledger.database)):
        ledger.wait_for(1)
    ledger.assert_once_in_order([event])
    assert place.left() == 0
