"""Events written through Django's connections, inside atomic()."""

from collections.abc import Iterator
from typing import Any

import django
import psycopg
import pytest
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connection, connections, transaction
from psycopg.conninfo import conninfo_to_dict

from relay import Inbox, NewEvent, Outbox
from relay.errors import NotInTransaction

EVENT: dict[str, Any] = {
    "key": "order:9182",
    "payload": {"order_id": 9182, "note": "100 % :c"},
    "event_id": "evt-1",
    "headers": {"tenant": "é"},
    "max_attempts": 9,
}
MANY = [NewEvent("Counted", key="k", payload={"n": n}, event_id=f"evt-{n}") for n in range(1500)]
SECOND_ALIAS = "second"
outbox = Outbox()

if not settings.configured:
    nowhere = {"ENGINE": "django.db.backends.postgresql"}
    settings.configure(DATABASES={DEFAULT_DB_ALIAS: dict(nowhere), SECOND_ALIAS: dict(nowhere)}, USE_TZ=True)
    django.setup()


@pytest.fixture(params=[False, True], ids=["client_side_binding", "server_side_binding"], autouse=True)
def django_database(database: str, request: pytest.FixtureRequest) -> Iterator[None]:
    parts = conninfo_to_dict(database)
    for alias in (DEFAULT_DB_ALIAS, SECOND_ALIAS):
        connections.databases[alias] |= {
            "NAME": parts["dbname"],
            "USER": parts.get("user", ""),
            "PASSWORD": parts.get("password") or "",
            "HOST": parts.get("host", ""),
            "PORT": parts.get("port", ""),
            "OPTIONS": {"server_side_binding": request.param},
        }
    yield
    for alias in (DEFAULT_DB_ALIAS, SECOND_ALIAS):
        connections[alias].close()
        del connections[alias]


def committed(database: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as observer:
        return observer.execute(
            """SELECT event_type, partition_key, payload, idempotency_key, headers, max_attempts
               FROM outbox ORDER BY id"""
        ).fetchall()


@pytest.mark.parametrize("alias", [None, DEFAULT_DB_ALIAS, SECOND_ALIAS])
def test_every_argument_of_emit_passes_through_django(database: str, alias: str | None) -> None:
    conn = connection if alias is None else connections[alias]
    with transaction.atomic(using=alias):
        assert outbox.emit(conn, "OrderPaid", **EVENT, serialize=True) is True
        assert outbox.emit(conn, "OrderPaid", **EVENT) is False
        assert committed(database) == []
    assert committed(database) == [("OrderPaid", *EVENT.values())]


def test_an_exception_in_atomic_takes_the_event_with_it(database: str) -> None:
    def fail() -> None:
        with transaction.atomic():
            outbox.emit(connection, "OrderPaid", **EVENT)
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert committed(database) == []


def test_emit_many_passes_through_django(database: str) -> None:
    with transaction.atomic():
        assert outbox.emit_many(connection, MANY, serialize=True) == 1500
        assert outbox.emit_many(connection, MANY[:3]) == 0
    assert [row[2]["n"] for row in committed(database)] == list(range(1500))


def test_emit_refuses_a_connection_outside_atomic(database: str) -> None:
    for conn in (connection, connections[SECOND_ALIAS]):
        with pytest.raises(NotInTransaction, match=r"write it inside 'with transaction\.atomic\(\):'"):
            outbox.emit(conn, "OrderPaid", **EVENT)
        with pytest.raises(NotInTransaction):
            outbox.emit_many(conn, MANY)
    with transaction.atomic(using=SECOND_ALIAS), pytest.raises(NotInTransaction):
        outbox.emit(connection, "OrderPaid", **EVENT)
    assert committed(database) == []


def test_a_transaction_that_the_caller_manages_by_hand_is_a_transaction(database: str) -> None:
    transaction.set_autocommit(False)
    assert outbox.emit(connection, "OrderPaid", **EVENT)
    transaction.rollback()
    assert committed(database) == []
    assert outbox.emit(connection, "OrderPaid", **EVENT)
    transaction.commit()
    transaction.set_autocommit(True)
    assert len(committed(database)) == 1


def test_the_databases_own_error_comes_through() -> None:
    with pytest.raises(DatabaseError, match="no_such_table"), transaction.atomic():
        Outbox("no_such_table").emit(connection, "OrderPaid", **EVENT)


async def test_emit_async_says_that_djangos_connection_is_synchronous() -> None:
    with pytest.raises(TypeError, match="is synchronous: call the method without _async"):
        await outbox.emit_async(connection, "OrderPaid", **EVENT)


def test_an_inbox_accepts_once_through_django() -> None:
    inbox = Inbox("billing")
    with pytest.raises(NotInTransaction):
        inbox.accept(connection, "evt-1")
    for answer in (True, False):
        with transaction.atomic():
            assert inbox.accept(connection, "evt-1") is answer


def test_an_inbox_knows_replays_and_fences_through_django() -> None:
    inbox = Inbox("billing")
    with transaction.atomic():
        assert inbox.accept(connection, "evt-2", key="order:1", fence=9) is True
        assert inbox.judge(connection, "evt-1", key="order:1", fence=5) == "stale"
        assert inbox.accept(connection, "evt-2", replay_id="r1") is True
        assert inbox.accept(connection, "evt-2", replay_id="r1") is False
