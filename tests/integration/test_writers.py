"""Several writers at once, and writers that may do little."""

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import sql

from relay import NewEvent, Outbox
from tests.integration.sessions import PATIENCE, wait_until_blocked

Connection = psycopg.Connection[Any]
outbox = Outbox()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def a(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, application_name="a") as conn:
        yield conn


@pytest.fixture
def b(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, application_name="b") as conn:
        yield conn


@pytest.fixture
def c(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, application_name="c") as conn:
        yield conn


@pytest.fixture
def insert_only(database: str) -> Iterator[Connection]:
    """A connection whose role has been granted INSERT on the outbox and nothing else."""
    role = sql.Identifier(f"writer_{uuid.uuid4().hex}")
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {}").format(role))
        admin.execute(sql.SQL("GRANT INSERT ON outbox TO {}").format(role))
        with psycopg.connect(database) as conn:
            conn.execute(sql.SQL("SET ROLE {}").format(role))
            conn.commit()
            yield conn
        admin.execute(sql.SQL("DROP OWNED BY {}").format(role))
        admin.execute(sql.SQL("DROP ROLE {}").format(role))


def visible(conn: Connection) -> list[str]:
    """The event_ids that this session sees now, in the order of their positions."""
    with conn.transaction():
        return [row[0] for row in conn.execute("SELECT idempotency_key FROM outbox ORDER BY id")]


def test_a_role_that_may_only_insert_can_emit_in_every_way(
    any_postgres: int, database: str, insert_only: Connection, a: Connection
) -> None:
    assert outbox.emit(insert_only, "E", key="k", payload={}, event_id="evt-1") is True
    assert outbox.emit(insert_only, "E", key="k", payload={}, event_id="evt-1", serialize=True) is False
    repeat_and_new = [NewEvent("E", key="k", payload={}, event_id=f"evt-{n}") for n in (1, 2)]
    assert outbox.emit_many(insert_only, repeat_and_new, serialize=True) == 1
    insert_only.commit()
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        insert_only.execute("SELECT FROM outbox")
    assert visible(a) == ["evt-1", "evt-2"]


def test_the_documented_statement_and_emit_write_the_same_row(
    any_postgres: int, database: str, a: Connection
) -> None:
    a.execute(
        """INSERT INTO outbox (partition_key, event_type, payload, idempotency_key)
           VALUES ('order:9182', 'OrderPaid', '{"order_id":9182}'::jsonb, 'evt-1')"""
    )
    outbox.emit(a, "OrderPaid", key="order:9182", payload={"order_id": 9182}, event_id="evt-2")
    outbox.emit_many(
        a, [NewEvent("OrderPaid", key="order:9182", payload={"order_id": 9182}, event_id="evt-3")]
    )
    different = a.execute(
        "SELECT DISTINCT to_jsonb(o) - '{id,idempotency_key}'::text[] FROM outbox o"
    ).fetchall()
    assert len(different) == 1


def test_without_serialize_a_later_commit_can_have_an_earlier_position(a: Connection, b: Connection) -> None:
    """Why serialize exists: b's event is published before a's, though a's position comes first."""
    outbox.emit(a, "E", key="k", payload={}, event_id="a")
    outbox.emit(b, "E", key="k", payload={}, event_id="b")
    b.commit()
    assert visible(b) == ["b"]
    a.commit()
    assert visible(b) == ["a", "b"]


def test_with_serialize_positions_follow_the_commits(
    any_postgres: int, database: str, a: Connection, b: Connection, pool: ThreadPoolExecutor
) -> None:
    def write_b() -> list[str]:
        outbox.emit(b, "E", key="k", payload={}, event_id="b", serialize=True)
        b.commit()
        return visible(b)

    outbox.emit(a, "E", key="k", payload={}, event_id="a", serialize=True)
    second = pool.submit(write_b)
    wait_until_blocked(database, b, a)
    assert not second.done()
    a.commit()
    assert second.result(PATIENCE) == ["a", "b"]


def test_serialize_lets_other_keys_and_other_outboxes_pass(
    database: str, a: Connection, b: Connection
) -> None:
    b.execute("CREATE SCHEMA other")
    b.execute("CREATE TABLE other.outbox (LIKE outbox INCLUDING ALL)")
    b.commit()
    outbox.emit(a, "E", key="k", payload={}, serialize=True)
    b.execute("SET LOCAL lock_timeout = '10s'")
    assert outbox.emit(b, "E", key="another", payload={}, serialize=True)
    assert Outbox("other.outbox").emit(b, "E", key="k", payload={}, serialize=True)


def test_emit_and_emit_many_serialize_on_the_same_lock(
    database: str, a: Connection, b: Connection, pool: ThreadPoolExecutor
) -> None:
    outbox.emit_many(a, [NewEvent("E", key=key, payload={}) for key in ("k", "l")], serialize=True)
    waiting = pool.submit(outbox.emit, b, "E", key="l", payload={}, serialize=True)
    wait_until_blocked(database, b, a)
    a.commit()
    assert waiting.result(PATIENCE) is True


def test_emit_many_holds_all_its_locks_before_it_takes_the_first_position(
    database: str, a: Connection, b: Connection, pool: ThreadPoolExecutor
) -> None:
    outbox.emit(a, "E", key="last", payload={}, event_id="a", serialize=True)
    keys = ["first", "last"]
    events = [NewEvent("E", key=key, payload={}, event_id=key) for key in keys]
    waiting = pool.submit(outbox.emit_many, b, events, serialize=True)
    wait_until_blocked(database, b, a)
    outbox.emit(a, "E", key="last", payload={}, event_id="a2")
    a.commit()
    assert waiting.result(PATIENCE) == 2
    assert visible(b) == ["a", "a2", "first", "last"]


@pytest.mark.parametrize("keys", [("x", "y"), ("y", "x")], ids=" then ".join)
def test_two_callers_with_the_same_keys_in_opposite_orders_do_not_deadlock(
    database: str,
    a: Connection,
    b: Connection,
    c: Connection,
    pool: ThreadPoolExecutor,
    keys: tuple[str, str],
) -> None:
    """Taken as given, a would wait for one key with nothing in hand and b with the other key in hand."""

    def write(conn: Connection, order: tuple[str, ...]) -> int:
        count = outbox.emit_many(conn, [NewEvent("E", key=key, payload={}) for key in order], serialize=True)
        conn.commit()
        return count

    outbox.emit(c, "E", key=keys[0], payload={}, serialize=True)
    first = pool.submit(write, a, keys)
    wait_until_blocked(database, a, c)
    second = pool.submit(write, b, keys[::-1])
    wait_until_blocked(database, b, a, c)
    c.commit()
    assert first.result(PATIENCE) == second.result(PATIENCE) == 2


def test_a_repeat_waits_for_the_first_and_is_left_out_if_that_commits(
    database: str, a: Connection, b: Connection, pool: ThreadPoolExecutor
) -> None:
    assert outbox.emit(a, "E", key="k", payload={}, event_id="evt-1")
    repeat = pool.submit(outbox.emit, b, "E", key="k", payload={}, event_id="evt-1")
    wait_until_blocked(database, b, a)
    a.commit()
    assert repeat.result(PATIENCE) is False


def test_a_repeat_waits_for_the_first_and_is_written_if_that_rolls_back(
    database: str, a: Connection, b: Connection, pool: ThreadPoolExecutor
) -> None:
    assert outbox.emit(a, "E", key="k", payload={}, event_id="evt-1")
    repeat = pool.submit(outbox.emit, b, "E", key="k", payload={}, event_id="evt-1")
    wait_until_blocked(database, b, a)
    a.rollback()
    assert repeat.result(PATIENCE) is True
    b.commit()
    assert visible(b) == ["evt-1"]


def test_threads_may_share_an_outbox(database: str, a: Connection, pool: ThreadPoolExecutor) -> None:
    start = threading.Barrier(8)

    def write(writer: int) -> None:
        with psycopg.connect(database) as conn:
            start.wait(PATIENCE)
            for n in range(50):
                outbox.emit(conn, "E", key=f"k{writer}", payload={"n": n}, event_id=f"{writer}-{n}")

    list(pool.map(write, range(8)))
    for writer in range(8):
        own = [event_id for event_id in visible(a) if event_id.startswith(f"{writer}-")]
        assert own == [f"{writer}-{n}" for n in range(50)]
