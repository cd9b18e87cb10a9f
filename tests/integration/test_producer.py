"""Events written through psycopg: in the caller's transaction, or not at all."""

import json
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import ModuleType, SimpleNamespace
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.rows import dict_row

from relay import NewEvent, Outbox
from relay.errors import InvalidEvent, NotInTransaction, SettingsError
from relay.names import TableName
from relay.producer import CHUNK_BYTES, CHUNK_ROWS, new_event_id
from relay.store.migrate import migrate

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
outbox = Outbox()


@pytest.fixture
def conn(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database) as conn:
        yield conn


def committed(database: str, table: str = "outbox") -> list[dict[str, Any]]:
    """The rows that everybody sees, in the order of their positions."""
    query = sql.SQL("SELECT * FROM {} ORDER BY id").format(sql.Identifier(*TableName.parse(table).parts()))
    with psycopg.connect(database, row_factory=dict_row) as observer:
        return observer.execute(query).fetchall()


def test_every_argument_of_emit_reaches_its_column(database: str, conn: psycopg.Connection[Any]) -> None:
    later = datetime(2126, 7, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert outbox.emit(
        conn,
        "OrderPaid",
        key="order:9182",
        payload={"order_id": 9182},
        event_id="evt-1",
        headers={"tenant": "é"},
        destination="orders",
        available_at=later,
        max_attempts=9,
        traceparent=TRACEPARENT,
    )
    conn.commit()
    [row] = committed(database)
    assert row["event_type"] == "OrderPaid"
    assert row["partition_key"] == "order:9182"
    assert row["payload"] == {"order_id": 9182}
    assert row["idempotency_key"] == "evt-1"
    assert row["headers"] == {"tenant": "é", "traceparent": TRACEPARENT}
    assert row["destination"] == "orders"
    assert row["available_at"] == later
    assert row["max_attempts"] == 9
    assert row["status"] == "pending"


def test_what_is_left_out_is_the_tables_default(database: str, conn: psycopg.Connection[Any]) -> None:
    conn.execute("ALTER TABLE outbox ALTER max_attempts SET DEFAULT 17")
    outbox.emit(conn, "OrderPaid", key="order:1", payload=None)
    outbox.emit_many(conn, [NewEvent("OrderPaid", key="order:1", payload=None)])
    conn.commit()
    for row in committed(database):
        assert row["payload"] is None
        assert (row["headers"], row["destination"], row["max_attempts"]) == (None, None, 17)
        assert row["available_at"] == row["created_at"]
        assert uuid.UUID(row["idempotency_key"]).version == 7


def test_an_event_without_a_key_is_a_lane_of_its_own(database: str, conn: psycopg.Connection[Any]) -> None:
    outbox.emit(conn, "Seen", key=None, payload={})
    outbox.emit(conn, "Seen", key=None, payload={}, event_id="evt-2")
    conn.commit()
    first, second = committed(database)
    assert first["partition_key"] == first["idempotency_key"] != second["idempotency_key"]
    assert second["partition_key"] == second["idempotency_key"] == "evt-2"


def test_nobody_sees_the_event_before_the_commit_and_nobody_after_a_rollback(
    database: str, conn: psycopg.Connection[Any]
) -> None:
    outbox.emit(conn, "OrderPaid", key="order:1", payload={})
    assert committed(database) == []
    conn.rollback()
    assert committed(database) == []
    outbox.emit(conn, "OrderPaid", key="order:1", payload={})
    conn.commit()
    assert len(committed(database)) == 1


def test_a_savepoint_takes_its_event_with_it(database: str, conn: psycopg.Connection[Any]) -> None:
    with conn.transaction():
        outbox.emit(conn, "Kept", key="order:1", payload={})
        with conn.transaction(force_rollback=True):
            outbox.emit(conn, "Undone", key="order:1", payload={})
    assert [row["event_type"] for row in committed(database)] == ["Kept"]


def test_the_same_event_id_again_leaves_one_row(database: str, conn: psycopg.Connection[Any]) -> None:
    assert outbox.emit(conn, "OrderPaid", key="order:1", payload={"n": 1}, event_id="evt-1") is True
    assert outbox.emit(conn, "OrderPaid", key="order:1", payload={"n": 2}, event_id="evt-1") is False
    conn.commit()
    assert outbox.emit(conn, "OrderPaid", key="order:1", payload={"n": 3}, event_id="evt-1") is False
    conn.commit()
    assert [row["payload"] for row in committed(database)] == [{"n": 1}]


def test_emit_refuses_autocommit_outside_a_transaction(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        for where in (conn, conn.cursor()):
            with pytest.raises(NotInTransaction, match=r"write it inside 'with conn\.transaction\(\):'"):
                outbox.emit(where, "OrderPaid", key="order:1", payload={})
            with pytest.raises(NotInTransaction):
                outbox.emit_many(where, [NewEvent("OrderPaid", key="order:1", payload={})])
        assert committed(database) == []
        with conn.transaction():
            assert outbox.emit(conn, "OrderPaid", key="order:1", payload={})
        conn.execute("BEGIN")
        assert outbox.emit(conn, "OrderPaid", key="order:1", payload={})
        conn.execute("COMMIT")
    assert len(committed(database)) == 2


def test_in_a_failed_transaction_the_databases_own_error_comes_through(
    conn: psycopg.Connection[Any],
) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        outbox.emit(conn, "OrderPaid", key="order:1", payload={})


def test_a_refused_event_leaves_the_transaction_usable(database: str, conn: psycopg.Connection[Any]) -> None:
    with pytest.raises(InvalidEvent):
        outbox.emit(conn, "OrderPaid", key="order:1", payload={"note": "\0"})
    outbox.emit(conn, "OrderPaid", key="order:1", payload={})
    conn.commit()
    assert len(committed(database)) == 1


@pytest.mark.parametrize(
    "factory", [psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor], ids=lambda f: f.__name__
)
def test_a_cursor_of_any_kind_stands_for_its_connection_and_keeps_its_result(
    database: str, conn: psycopg.Connection[Any], factory: type[psycopg.Cursor[Any]]
) -> None:
    conn.cursor_factory = factory
    with conn.cursor(row_factory=dict_row) as cursor:
        cursor.execute("SELECT 1 AS one UNION ALL SELECT 2")
        assert outbox.emit(cursor, "OrderPaid", key="order:1", payload={})
        assert outbox.emit(conn, "OrderPaid", key="order:1", payload={})
        assert cursor.fetchall() == [{"one": 1}, {"one": 2}]
    conn.commit()
    assert len(committed(database)) == 2


def test_in_a_pipeline_emit_still_knows_whether_a_row_was_written(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn, conn.pipeline(), conn.transaction():
        answers = [outbox.emit(conn, "OrderPaid", key="k", payload={}, event_id="evt-1") for _ in range(3)]
        many = outbox.emit_many(
            conn, [NewEvent("OrderPaid", key="k", payload={}, event_id=f"evt-{i}") for i in range(3)]
        )
    assert answers == [True, False, False]
    assert many == 2
    assert len(committed(database)) == 3


def test_in_a_pipeline_emit_refuses_autocommit_whatever_was_sent_before(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        with conn.pipeline():
            conn.execute("SELECT 1")  # its answer has not been read: the driver does not know the state
            with pytest.raises(NotInTransaction, match=r"write it inside 'with conn\.transaction\(\):'"):
                outbox.emit(conn, "OrderPaid", key="k", payload={})
            conn.execute("SELECT 1")
            with pytest.raises(NotInTransaction):
                outbox.emit_many(conn.cursor(), [NewEvent("OrderPaid", key="k", payload={})])
        assert committed(database) == []
        with conn.pipeline():
            conn.execute("BEGIN")
            assert outbox.emit(conn, "OrderPaid", key="k", payload={})
            conn.execute("COMMIT")
    assert len(committed(database)) == 1


def test_emit_many_of_5000_keeps_their_order_in_few_statements(
    database: str, conn: psycopg.Connection[Any]
) -> None:
    events = (
        NewEvent("Counted", key=f"counter:{n % 7}", payload={"n": n}, event_id=f"evt-{9999 - n}")
        for n in range(5000)
    )
    assert outbox.emit_many(conn, events) == 5000
    # cmin: which command of its transaction wrote the row.
    assert conn.execute("SELECT count(DISTINCT cmin::text) FROM outbox").fetchone() == (5000 / CHUNK_ROWS,)
    conn.commit()
    assert [row["payload"]["n"] for row in committed(database)] == list(range(5000))


def test_emit_many_takes_events_of_different_shapes_in_their_order(
    database: str, conn: psycopg.Connection[Any]
) -> None:
    later = datetime(2126, 1, 1, tzinfo=UTC)
    assert (
        outbox.emit_many(
            conn,
            [
                NewEvent("A", key="k", payload=1, headers={"a": '"{,}\\'}, available_at=later),
                NewEvent("B", key=None, payload={"x": 'a"b\\c,{}'}, event_id="evt-b", max_attempts=2),
                NewEvent("C", key="NULL", payload="NULL", destination="orders", traceparent=TRACEPARENT),
                NewEvent("B", key="k", payload="a repeat", event_id="evt-b"),
            ],
        )
        == 3
    )
    conn.commit()
    a, b, c = committed(database)
    assert (a["event_type"], a["payload"], a["headers"], a["available_at"]) == (
        "A",
        1,
        {"a": '"{,}\\'},
        later,
    )
    assert (b["partition_key"], b["payload"], b["max_attempts"]) == ("evt-b", {"x": 'a"b\\c,{}'}, 2)
    assert (c["partition_key"], c["payload"], c["destination"]) == ("NULL", "NULL", "orders")
    assert c["headers"] == {"traceparent": TRACEPARENT}
    assert (a["max_attempts"], c["max_attempts"]) == (5, 5)


def test_emit_many_splits_large_payloads_over_several_statements(
    database: str, conn: psycopg.Connection[Any]
) -> None:
    size = CHUNK_BYTES // 4
    large = Outbox(max_payload_bytes=CHUNK_BYTES * 2)
    sizes = [size] * 9 + [CHUNK_BYTES + 1, 1]
    events = [NewEvent("Large", key="k", payload="x" * length) for length in sizes]
    assert large.emit_many(conn, events) == len(sizes)
    conn.commit()
    assert [len(row["payload"]) for row in committed(database)] == sizes


def test_emit_many_writes_nothing_if_one_event_is_refused_and_says_which(
    conn: psycopg.Connection[Any],
) -> None:
    events = [NewEvent("E", key="k", payload={}), NewEvent("E", key="", payload={})]
    with pytest.raises(InvalidEvent, match=r"^events\[1\]: key must be 1 to 255 bytes"):
        outbox.emit_many(conn, events)
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert outbox.emit_many(conn, []) == 0


@pytest.mark.parametrize("table", ["sales.outbox", '"a:b ""c"" :key"', "Übersicht"])
def test_the_outbox_may_have_any_name(empty_database: str, table: str) -> None:
    named = Outbox(table)
    with psycopg.connect(empty_database) as conn:
        conn.execute("CREATE SCHEMA sales")
        conn.commit()
        migrate(empty_database, TableName.parse(table))
        assert named.emit(conn, "E", key="k", payload={}, serialize=True)
        assert named.emit_many(conn, [NewEvent("E", key="k", payload={})], serialize=True) == 1
    assert len(committed(empty_database, table)) == 2


def test_a_name_without_a_schema_is_found_by_the_callers_search_path(empty_database: str) -> None:
    with psycopg.connect(empty_database) as conn:
        for schema in ("sales", "stock"):
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            conn.commit()
            migrate(empty_database, TableName(schema, "outbox"))
        for schema in ("sales", "stock", "sales"):
            conn.execute("SELECT set_config('search_path', %s, true)", [schema])
            outbox.emit(conn, "E", key="k", payload={}, serialize=True)
            conn.commit()
    assert len(committed(empty_database, "sales.outbox")) == 2
    assert len(committed(empty_database, "stock.outbox")) == 1


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingsError, match="is not a table name"):
        Outbox("a.b.c")
    with pytest.raises(SettingsError, match="max_payload_bytes = 0"):
        Outbox(max_payload_bytes=0)


def test_what_is_not_a_connection_is_refused_by_its_name(database: str) -> None:
    with pytest.raises(
        TypeError, match=r"^builtins\.str is not a connection whose transaction can be joined"
    ):
        outbox.emit(database, "E", key="k", payload={})


async def test_the_wrong_colour_of_connection_is_refused(database: str) -> None:
    with psycopg.connect(database) as conn, pytest.raises(TypeError, match="is synchronous: call the method"):
        await outbox.emit_async(conn, "E", key="k", payload={})
    async with await psycopg.AsyncConnection.connect(database) as aconn:
        with pytest.raises(TypeError, match="is asynchronous: await the method"):
            outbox.emit(aconn, "E", key="k", payload={})


async def test_the_async_face_writes_the_same_rows(database: str) -> None:
    event = {"key": "k", "payload": {"a": [1]}, "event_id": "evt-1", "headers": {"h": "1"}, "max_attempts": 2}
    async with await psycopg.AsyncConnection.connect(database) as conn:
        assert await outbox.emit_async(conn, "E", **event, serialize=True) is True  # type: ignore[arg-type]
        assert await outbox.emit_async(conn.cursor(), "E", **event) is False  # type: ignore[arg-type]
        events = [NewEvent("E", key="k", payload={"n": n}) for n in range(CHUNK_ROWS + 1)]
        assert await outbox.emit_many_async(conn, events, serialize=True) == CHUNK_ROWS + 1
        assert committed(database) == []
        await conn.rollback()
        assert await outbox.emit_async(conn, "E", **event) is True  # type: ignore[arg-type]
        assert await outbox.emit_many_async(conn, events) == CHUNK_ROWS + 1
        await conn.commit()
    first, *others = committed(database)
    assert (first["payload"], first["headers"], first["max_attempts"]) == ({"a": [1]}, {"h": "1"}, 2)
    assert [row["payload"]["n"] for row in others] == list(range(CHUNK_ROWS + 1))


async def test_the_async_face_refuses_autocommit_and_knows_pipelines(database: str) -> None:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
        with pytest.raises(NotInTransaction, match=r"async with conn\.transaction\(\):"):
            await outbox.emit_async(conn, "E", key="k", payload={})
        async with conn.pipeline():
            await conn.execute("SELECT 1")
            with pytest.raises(NotInTransaction):
                await outbox.emit_async(conn, "E", key="k", payload={})
            with pytest.raises(NotInTransaction):
                await outbox.emit_many_async(conn, [NewEvent("E", key="k", payload={})])
        async with conn.pipeline(), conn.transaction():
            assert await outbox.emit_async(conn, "E", key="k", payload={}, event_id="evt-1") is True
            assert await outbox.emit_async(conn, "E", key="k", payload={}, event_id="evt-1") is False
    assert len(committed(database)) == 1


def test_the_current_span_of_opentelemetry_becomes_the_traceparent(
    database: str, conn: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(is_valid=True, trace_id=0xAF, span_id=0xB7, trace_flags=1)
    trace: Any = ModuleType("opentelemetry.trace")
    trace.get_current_span = lambda: SimpleNamespace(get_span_context=lambda: context)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", trace)
    outbox.emit(conn, "E", key="k", payload={}, headers={"a": "b"})
    outbox.emit_many(conn, [NewEvent("E", key="k", payload={})])
    outbox.emit(conn, "E", key="k", payload={}, traceparent=TRACEPARENT)
    context.is_valid = False
    outbox.emit(conn, "E", key="k", payload={})
    conn.commit()
    of_the_span = "00-000000000000000000000000000000af-00000000000000b7-01"
    assert [row["headers"] for row in committed(database)] == [
        {"a": "b", "traceparent": of_the_span},
        {"traceparent": of_the_span},
        {"traceparent": TRACEPARENT},
        None,
    ]


def test_a_new_event_id_is_a_uuid_of_version_7_in_the_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_event_id())
    assert before <= made.int >> 80 <= time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    clock = iter(range(1_800_000_000_000_000_000, 1_800_000_000_003_000_000, 1000))
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    ids = [new_event_id() for _ in range(3000)]
    assert ids == sorted(set(ids))
    monkeypatch.setattr(time, "time_ns", lambda: 1_800_000_000_000_000_000)
    assert len({new_event_id() for _ in range(1000)}) == 1000


text = st.text(st.characters(), max_size=6)
name = text | st.integers(250, 260).map(lambda n: "x" * n) | st.integers(125, 130).map(lambda n: "é" * n)
scalar = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | text
    | st.integers(4290, 4310).map(lambda n: 10**n)
)
events = st.builds(
    NewEvent,
    name,
    key=st.none() | name,
    payload=st.recursive(
        scalar,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
        max_leaves=12,
    ),
    event_id=st.none() | name,
    headers=st.none() | st.dictionaries(name, text, max_size=3),
    destination=st.none() | name | st.integers(2046, 2050).map(lambda n: "x" * n),
    available_at=st.none()
    | st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-11, minutes=-7))])),
    max_attempts=st.none() | st.integers(-1, 3) | st.integers(2**31 - 2, 2**31 + 1),
)


def exactly(document: str) -> Any:
    return json.loads(document, parse_int=Decimal, parse_float=Decimal)


def test_whatever_emit_accepts_the_table_takes_and_gives_back(conn: psycopg.Connection[Any]) -> None:
    """jsonb, the constraints and the types: none of them may refuse what validation let through."""
    accepted = 0

    @settings(max_examples=400, deadline=None)
    @given(events)
    def emit_and_read_back(event: NewEvent) -> None:
        nonlocal accepted
        try:
            row = outbox._row(event, None)
        except InvalidEvent:
            return
        accepted += 1
        assert outbox.emit_many(conn, [event]) == 1
        stored = conn.execute(
            "SELECT event_type, payload::text, headers::text, destination, available_at FROM outbox"
        ).fetchone()
        conn.rollback()
        assert stored is not None
        assert exactly(stored[1]) == exactly(row["payload"])
        assert stored[2] is None if row["headers"] is None else json.loads(stored[2]) == event.headers
        assert (stored[0], stored[3]) == (event.event_type, event.destination)
        assert event.available_at in (None, stored[4])

    emit_and_read_back()
    assert accepted > 20
