"""A consumer that cannot work says so when it starts; one whose message or database is at fault goes on."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import relay.consumers.consumer
import relay.consumers.kafka
import relay.store.connection
from relay.backoff import Rising
from relay.consumers import KafkaConsumer, Message, RabbitConsumer
from relay.demo.postgres import free_port
from relay.errors import InvalidEvent, RelayError, SchemaError, SettingsError
from relay.store.connection import StoreConnection, connect_for_handlers, transaction
from relay.testing import make_event
from tests.conftest import Kafka
from tests.system.consumer_kit import KafkaPlace, Ledger, RabbitPlace, events, running
from tests.system.relays import wait_until

NOWHERE = "postgresql://127.0.0.1:1/nowhere?connect_timeout=2"


def nothing(conn: psycopg.Connection[Any], message: Message) -> None:
    pass


def kafka_consumer(**options: Any) -> KafkaConsumer:
    given: dict[str, Any] = {"database_url": NOWHERE, "bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}
    return KafkaConsumer("billing", nothing, **given | options)


@pytest.mark.parametrize(
    "options, said",
    [
        (
            {"config": {"enable.auto.commit": True}},
            r"enable\.auto\.commit cannot be set: the consumer commits",
        ),
        ({"config": {"group.id": "g"}}, r"group\.id cannot be set: pass group="),
        ({"config": {"no.such.thing": 1}}, "not accepted by librdkafka"),
        ({"topics": []}, "at least one topic"),
        ({"topics": "orders"}, "a list"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_held": 0}, "max_held must be 1 or more"),
        ({"max_held": -1}, "max_held must be 1 or more"),
        ({"on_exhausted": "explode"}, "on_exhausted"),
    ],
)
def test_settings_that_would_be_unsafe_or_unknown_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        kafka_consumer(**options)


def test_a_broker_may_assign_the_partitions_itself() -> None:
    assert (
        "partition.assignment.strategy" not in kafka_consumer(config={"group.protocol": "consumer"})._config
    )


@pytest.mark.parametrize("url", ["", "http://localhost", "amqp://user:secret@host:port/"])
def test_a_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(SettingsError, match="is not understood") as refused:
        RabbitConsumer("billing", nothing, database_url=NOWHERE, url=url, queue="q")
    assert "secret" not in str(refused.value)


def test_a_name_that_the_table_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidEvent, match=r"^consumer "):
        RabbitConsumer("", nothing, database_url=NOWHERE, url="amqp://localhost", queue="q")


def test_a_database_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(RelayError, match="cannot connect to the database"):
        kafka_consumer().run()


def test_tables_that_are_not_there_are_told(kafka: Kafka, empty_database: str) -> None:
    place = KafkaPlace(kafka.address)
    with pytest.raises(SchemaError, match="run 'relay migrate'"):
        place.consumer(nothing, empty_database).run()


def test_a_broker_topic_or_queue_that_is_not_there_is_told(
    kafka: Kafka, rabbitmq: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RelayError, match=r"topic no-such cannot be read: .*: create it first"):
        kafka_consumer(database_url=database, bootstrap_servers=kafka.address, topics=["no-such"]).run()
    monkeypatch.setattr(relay.consumers.kafka, "START_SECONDS", 1.0)
    with pytest.raises(RelayError, match=r"cannot read from Kafka at 127\.0\.0\.1:1: "):
        kafka_consumer(database_url=database).run()
    with pytest.raises(RelayError, match="no queue 'no-such'"):
        RabbitConsumer("billing", nothing, database_url=database, url=rabbitmq, queue="no-such").run()
    unheard = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
    with pytest.raises(RelayError, match="cannot be reached"):
        RabbitConsumer("billing", nothing, database_url=database, url=unheard, queue="q").run()


def test_an_event_that_breaks_its_connection_each_time_is_parked_and_its_key_goes_on(
    rabbitmq: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay.consumers.consumer, "MAX_LOSSES", 3)
    place, ledger = RabbitPlace(rabbitmq), Ledger(database)
    batch = events(3)

    def credit(conn: psycopg.Connection[Any], message: Message) -> None:
        if message.event_id == batch[1].event_id:
            conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        ledger.credit(conn, message)

    place.publish(batch)
    with running(place.consumer(credit, database)):
        ledger.wait_for(2)
    ledger.assert_once_in_order([batch[0], batch[2]])
    ((reason, event_id, error),) = ledger.dead_letters()
    assert (reason, event_id) == ("failed", batch[1].event_id)
    assert "terminating connection" in error
    assert place.left() == 0


def test_a_database_that_is_full_or_read_only_costs_no_attempt(rabbitmq: str, database: str) -> None:
    place, ledger = RabbitPlace(rabbitmq), Ledger(database)
    batch = events(3)
    troubles = ["53100", "25006", "53300"]

    def credit(conn: psycopg.Connection[Any], message: Message) -> None:
        if troubles:
            conn.execute(f"DO $$ BEGIN RAISE EXCEPTION 'trouble' USING ERRCODE = '{troubles.pop()}'; END $$")
        ledger.credit(conn, message)

    place.publish(batch)
    with running(place.consumer(credit, database, max_attempts=1)):
        ledger.wait_for(3)
    ledger.assert_once_in_order(batch)
    assert ledger.dead_letters() == []


def test_a_new_connection_whose_first_statement_is_refused_is_closed_and_tried_again(
    rabbitmq: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, ledger = RabbitPlace(rabbitmq), Ledger(database)
    batch = events(3)
    identify = relay.store.connection._identify
    refused: list[StoreConnection] = []

    def refuse_twice(conn: StoreConnection) -> tuple[int, int | None]:
        if len(refused) < 2:
            refused.append(conn)
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return identify(conn)

    def credit(conn: psycopg.Connection[Any], message: Message) -> None:
        if message.event_id == batch[1].event_id and not refused:
            monkeypatch.setattr(relay.store.connection, "_identify", refuse_twice)
            conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        ledger.credit(conn, message)

    place.publish(batch)
    with running(place.consumer(credit, database)):
        ledger.wait_for(3)
    ledger.assert_once_in_order(batch)
    assert [conn.closed for conn in refused] == [True, True]


def lock_dead_letters(conn: psycopg.Connection[Any]) -> None:
    """Until its rollback, whoever connects from now on and writes to the table is soon refused."""
    conn.execute(f'ALTER DATABASE "{conn.info.dbname}" SET lock_timeout = 50')
    conn.commit()
    conn.execute("LOCK TABLE inbox_dedupe_dead_letters IN EXCLUSIVE MODE")


def test_housekeeping_that_fails_is_tried_again_and_ends_no_consumer(
    rabbitmq: str, database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, ledger = RabbitPlace(rabbitmq), Ledger(database)
    batch = events(2)
    consumer = place.consumer(ledger.credit, database)
    monkeypatch.setattr(consumer, "_keep_house_again", Rising(0.01, 0.1))
    kept: list[Any] = []
    tick = consumer._housekeeping.tick
    monkeypatch.setattr(consumer._housekeeping, "tick", lambda conn: kept.append(tick(conn)))
    place.publish(batch[:1])
    with psycopg.connect(database) as locking:
        lock_dead_letters(locking)
        with running(consumer):
            wait_until(lambda: caplog.text.count("housekeeping of billing is tried again") > 1)
            place.publish(batch[1:])
            ledger.wait_for(2)
            assert kept == []
            locking.rollback()
            wait_until(lambda: kept)
    ledger.assert_once_in_order(batch)


def test_a_retry_that_breaks_its_connection_ends_no_consumer(rabbitmq: str, database: str) -> None:
    place, ledger = RabbitPlace(rabbitmq), Ledger(database)
    (event,) = events(1)
    calls: list[str] = []

    def credit(conn: psycopg.Connection[Any], message: Message) -> None:
        calls.append(message.event_id)
        if len(calls) == 1:
            raise ValueError("no")
        if len(calls) == 2:
            with suppress(psycopg.Error):
                conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            raise RuntimeError("an error of the handler's own library")
        ledger.credit(conn, message)

    place.publish([event])
    with running(place.consumer(credit, database, max_attempts=1)):
        wait_until(ledger.dead_letters)
        with psycopg.connect(database) as conn:
            conn.execute("UPDATE inbox_dedupe_dead_letters SET retry_asked_at = now()")
        ledger.wait_for(1)
        wait_until(lambda: not ledger.dead_letters())
    ledger.assert_once_in_order([event])


def test_a_message_that_cannot_be_parked_now_is_kept_and_parked_later(
    rabbitmq: str, database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, ledger = RabbitPlace(rabbitmq), Ledger(database)
    failing, after, other = make_event("order:1"), make_event("order:1"), make_event("order:2")
    calls: list[str] = []

    def credit(conn: psycopg.Connection[Any], message: Message) -> None:
        calls.append(message.event_id)
        if message.event_id == failing.event_id:
            raise ValueError("no")
        ledger.credit(conn, message)

    consumer = place.consumer(credit, database, max_attempts=2)
    monkeypatch.setattr(consumer, "_park_again", Rising(0.01, 0.1))
    monkeypatch.setattr(consumer._housekeeping, "tick", lambda _: None)
    place.send(b"{", {"event_id": "evt-torn"})
    place.publish([failing, after, other])
    with psycopg.connect(database) as locking:
        lock_dead_letters(locking)
        with running(consumer):
            wait_until(lambda: caplog.text.count("cannot be parked: LockNotAvailable") > 4)
            ledger.wait_for(1)
            assert ledger.ids() == [other.event_id]
            locking.rollback()
            ledger.wait_for(2)
            wait_until(lambda: len(ledger.dead_letters()) == 2)
    assert ledger.ids() == [other.event_id, after.event_id]
    assert calls.count(failing.event_id) == 2
    assert sorted(row[:2] for row in ledger.dead_letters()) == [
        ("failed", failing.event_id),
        ("malformed", "evt-torn"),
    ]
    assert place.left() == 0


def test_a_consumer_prunes_its_own_old_marks_and_retries_what_operators_ask_for(
    rabbitmq: str, database: str
) -> None:
    place, ledger = RabbitPlace(rabbitmq), Ledger(database)
    (event,) = events(1)
    mended: list[bool] = []

    def credit(conn: psycopg.Connection[Any], message: Message) -> None:
        if not mended:
            raise ValueError("no")
        ledger.credit(conn, message)

    with psycopg.connect(database) as conn:
        conn.execute("INSERT INTO inbox_dedupe VALUES ('billing', 'old', now() - interval '2 days')")
        conn.execute("INSERT INTO inbox_dedupe VALUES ('shipping', 'old', now() - interval '2 days')")
    place.publish([event])
    with running(place.consumer(credit, database, max_attempts=2, retention=timedelta(days=1))):
        wait_until(ledger.dead_letters)
        mended.append(True)
        with psycopg.connect(database) as conn:
            conn.execute("UPDATE inbox_dedupe_dead_letters SET retry_asked_at = now()")
        ledger.wait_for(1)
        wait_until(lambda: not ledger.dead_letters())
        marks = "SELECT consumer, event_id FROM inbox_dedupe ORDER BY 1"
        wait_until(lambda: ledger.ask(marks) == [("billing", event.event_id), ("shipping", "old")])


@pytest.mark.parametrize("pooled", [False, True])
def test_what_is_told_to_a_broker_is_committed_for_good_also_behind_a_pooler(
    database: str, pooler: Callable[[str], str], rabbitmq: str, pooled: bool
) -> None:
    place, ledger = RabbitPlace(rabbitmq), Ledger(database)
    name = database.rpartition("/")[2]
    ledger.database = database
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    through = pooler(database) if pooled else database
    settings: list[Any] = []

    def credit(conn: psycopg.Connection[Any], message: Message) -> None:
        row = conn.execute("SELECT current_setting('synchronous_commit'), current_setting('enable_seqscan')")
        settings.append(row.fetchone())
        ledger.credit(conn, message)

    batch = events(10)
    place.publish(batch)
    with running(place.consumer(credit, through)):
        ledger.wait_for(10)
    ledger.assert_once_in_order(batch)
    assert set(settings) == {("on", "on")}
    with connect_for_handlers(through, "test") as conn, transaction(conn):
        assert conn.execute("SHOW synchronous_commit").fetchone() == ("on",)
