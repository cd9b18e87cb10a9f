"""Looking at an outbox: right where it can be, bounded everywhere, and in nobody's way."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, cast

import psycopg
import pytest

from relay.errors import RelayError
from relay.names import TableName
from relay.reading import Breaker, Count, Reading
from relay.store import gauges, inspect
from relay.store.conditions import Status
from relay.store.connection import Table, connect, resolve
from relay.store.counting import Counting
from relay.store.gauges import Gauges
from relay.store.inspect import Filters, events, show, status

Conn = psycopg.Connection[Any]


@pytest.fixture
def conn(database: str) -> Iterator[Conn]:
    with connect(database, "test") as connection:
        yield connection


@pytest.fixture
def table(conn: Conn) -> Table:
    return resolve(conn, TableName.parse("outbox"))


SHAPES = {
    "pending": "",
    "processing": "claimed_by = 'w1', claimed_at = now(), lease_expires_at = now(), lease_generation = 1,"
    " attempts = 1",
    "completed": "completed_at = now(), receipt = 'orders[0]@7'",
    "dead_letter": "completed_at = now(), parked_at = now(), last_error = 'Refused: too LARGE', attempts = 5",
    "failed": "parked_at = now(), available_at = 'infinity', last_error = '100% wrong', attempts = 5",
}


def add(conn: Conn, event_id: str, status: str = "pending", key: str | None = None, more: str = "") -> None:
    """A row in the given status; `more` are further SET clauses."""
    conn.execute(
        "INSERT INTO outbox (partition_key, event_type, payload, idempotency_key) VALUES (%s, %s, %s, %s)",
        [key or f"key:{event_id}", f"Type{event_id[0].upper()}", '{"n": 1.00}', event_id],
    )
    clauses = ", ".join(filter(None, [f"status = '{status}'", SHAPES[status], more])).replace("%", "%%")
    conn.execute(f"UPDATE outbox SET {clauses} WHERE idempotency_key = %s", [event_id])


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["event_id"] for row in rows]


def test_every_status_is_counted(any_postgres: int, conn: Conn, table: Table) -> None:
    for number, name in enumerate(SHAPES, start=1):
        for index in range(number):
            add(conn, f"{name}-{index}", name)
    conn.execute(
        "INSERT INTO outbox_leases"
        " VALUES (1, 'w1', now(), now(), 2, '{1,2}', '{a,b}', '{1,2}', '{1,2}', '{1,2}')"
    )
    conn.execute("ANALYZE outbox")
    counts = Counting(table, 100).count(conn)
    assert counts.pending == Count(1)
    assert counts.processing == Count(2)
    assert counts.completed == Count(3, exact=False)
    assert counts.dead_letter == Count(4)
    assert counts.failed == Count(5)
    assert counts.archived == Count(0)


def test_what_is_in_flight_and_does_not_say_so_is_not_counted_as_pending(conn: Conn, table: Table) -> None:
    for index in range(5):
        add(conn, f"event-{index}", "pending")
    conn.execute(
        "INSERT INTO outbox_leases VALUES (1, 'w1', now(), now(), 2, '{1}', '{a}', '{1}', '{2}', '{1,2}')"
    )
    counts = Counting(table, 100).count(conn)
    assert (counts.pending, counts.processing) == (Count(3), Count(2))


def test_an_empty_outbox_has_nothing_and_nothing_is_old(conn: Conn, table: Table) -> None:
    counts = Counting(table, 100).count(conn)
    assert (counts.pending, counts.oldest_pending_seconds, counts.workers) == (Count(0), None, 0)
    found = reading(conn, table)
    assert {found.pending, found.retrying, found.failed, found.dead_letter} == {Count(0)}
    assert (found.blocked_keys, found.oldest_pending_seconds, found.workers) == (Count(0), 0.0, 0)
    assert found.open_breakers == {"destination": 0, "host": 0, "route": 0}
    assert set(found.upkeep) == {"outbox", "outbox_leases"}


def test_counts_beyond_the_bound_are_marked_and_estimated(conn: Conn, table: Table) -> None:
    conn.execute(
        "INSERT INTO outbox (partition_key, event_type, payload)"
        " SELECT 'k' || i, 'E', '{}' FROM generate_series(1, 300) i"
    )
    assert Counting(table, 300).count(conn).pending == Count(300)
    before = Counting(table, 100).count(conn).pending
    assert before == Count(101, exact=False)
    conn.execute("ANALYZE outbox")
    assert Counting(table, 100).count(conn).pending == Count(300, exact=False)


def test_the_oldest_is_the_oldest_that_could_be_published(conn: Conn, table: Table) -> None:
    def oldest() -> float | None:
        return Counting(table, 100).count(conn).oldest_pending_seconds

    def between(low: float, high: float) -> bool:
        value = oldest()
        return value is not None and low <= value < high

    past = "created_at = now() - interval '{}', available_at = now() - interval '{}'"
    add(conn, "done", "completed", more=past.format("9 hours", "9 hours"))
    add(conn, "blocking", "failed", more="created_at = now() - interval '8 hours'")
    assert oldest() is None
    add(
        conn,
        "tomorrow",
        more="available_at = now() + interval '1 day', created_at = now() - interval '7 hours'",
    )
    assert oldest() is None
    add(conn, "scheduled", more=past.format("6 hours", "1 minute"))
    assert between(60, 120)
    add(conn, "fresh", more=past.format("1 hour", "1 hour"))
    assert between(3600, 3660)
    retrying = (
        "attempts = 2, created_at = now() - interval '2 hours', available_at = now() + interval '1 minute'"
    )
    add(conn, "retrying", more=retrying)
    assert between(7200, 7260)


def reading(conn: Conn, table: Table) -> Reading:
    found = Gauges(table).read(conn)
    assert found is not None
    return found


def test_gauges_come_back_empty_rather_than_late(
    conn: Conn, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "GAUGES_SECONDS", 0.05)
    with psycopg.connect(conn.info.dsn) as other:
        other.execute("LOCK TABLE outbox")
        assert Gauges(table).read(conn) is None
    monkeypatch.undo()
    assert Gauges(table).read(conn) is not None
    assert conn.execute("SHOW statement_timeout").fetchone() == ("0",)


def test_where_counting_takes_too_long_the_statistics_answer_and_it_is_not_tried_again_at_once(
    conn: Conn, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pending", "dead_letter"):
        add(conn, name, name)
    conn.execute("ANALYZE outbox")
    tried: list[None] = []

    def endless(*_: object) -> None:
        tried.append(None)
        conn.execute("SELECT pg_sleep(60)")

    monkeypatch.setattr(gauges, "GAUGES_SECONDS", 0.2)
    monkeypatch.setattr(Counting, "count", endless)
    slow = Gauges(table)
    for _ in range(2):
        found = slow.read(conn)
        assert found is not None
        assert (found.pending, found.dead_letter) == (Count(1, exact=False), Count(1, exact=False))
    assert len(tried) == 1


def test_events_that_were_tried_before_are_retrying(conn: Conn, table: Table) -> None:
    add(conn, "new")
    add(conn, "delayed", more="available_at = now() + interval '1 hour'")
    add(conn, "waits", more="attempts = 1, available_at = now() + interval '1 minute'")
    add(conn, "lost", more="attempts = 1")
    counts = Counting(table, 100).count(conn)
    assert (counts.pending, counts.retrying) == (Count(4), Count(2))


def test_failed_events_are_found_among_any_number_of_dead_letters(conn: Conn, table: Table) -> None:
    conn.execute(
        "INSERT INTO outbox (partition_key, event_type, payload, status, completed_at, parked_at)"
        " SELECT 'k' || i, 'E', '{}', 'dead_letter', now(), now() FROM generate_series(1, 300) i"
    )
    for number in range(3):
        add(conn, f"f{number}", "failed", key=f"order:{number % 2}")
    conn.execute("ANALYZE outbox")
    counts = Counting(table, 100).count(conn)
    assert (counts.failed, counts.blocked_keys) == (Count(3), Count(2))
    assert counts.dead_letter == Count(300, exact=False)
    assert Counting(table, 1000).count(conn).dead_letter == Count(300)


def test_more_failed_events_than_are_counted_are_an_estimate(conn: Conn, table: Table) -> None:
    conn.execute(
        "INSERT INTO outbox (partition_key, event_type, payload, status, parked_at, available_at)"
        " SELECT 'k' || i, 'E', '{}', 'failed', now(), 'infinity' FROM generate_series(1, 300) i"
    )
    conn.execute("ANALYZE outbox")
    counts = Counting(table, 100).count(conn)
    assert (counts.failed, counts.blocked_keys) == (Count(300, exact=False), Count(300, exact=False))
    assert counts.pending == Count(0, exact=False)
    assert counts.dead_letter == Count(0, exact=False)


def test_the_oldest_of_more_events_than_are_counted_is_found_in_whichever_bucket(
    conn: Conn, table: Table
) -> None:
    conn.execute(
        "INSERT INTO outbox (partition_key, event_type, payload)"
        " SELECT 'k' || i, 'E', '{}' FROM generate_series(1, 300) i"
    )
    conn.execute(
        "UPDATE outbox SET created_at = now() - interval '1 hour', available_at = now() - interval '1 hour'"
        " WHERE id = (SELECT id FROM outbox ORDER BY partition_bucket DESC, partition_key LIMIT 1)"
    )
    oldest = Counting(table, 100).count(conn).oldest_pending_seconds
    assert oldest is not None
    assert 3600 <= oldest < 3700


def test_a_reading_has_breakers_and_pauses_by_scope_without_secrets(conn: Conn, table: Table) -> None:
    conn.execute(
        "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by, until) VALUES"
        " ('destination', 'https://u:hunter2@x.example/in', 'breaker', 'down', 'w1', now() + interval '1 h'),"
        " ('host', 'y.example', 'breaker', 'down', 'w1', now() - interval '1 s'),"
        " ('host', 'z.example', 'breaker', 'down', 'probe by w1', now() + interval '1 h'),"
        " ('key', 'order:9', 'operator', 'audit', 'ann', NULL),"
        " ('all', '', 'operator', 'over', 'ann', now() - interval '1 minute')"
    )
    found = reading(conn, table)
    assert set(found.breakers) == {
        Breaker("destination", "https://x.example"),
        Breaker("host", "y.example", probing=True),
        Breaker("host", "z.example", probing=True),
    }
    assert found.open_breakers == {"destination": 1, "host": 2, "route": 0}
    assert found.operator_pauses == {"all": 0, "destination": 0, "event_type": 0, "key": 1}


def test_only_so_many_breakers_are_shown_and_all_are_counted(conn: Conn, table: Table) -> None:
    conn.execute(
        "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by, until)"
        " SELECT 'destination', 'topic-' || i, 'breaker', 'down', 'w1', now() + interval '1 h'"
        " FROM generate_series(1, 70) i"
    )
    found = reading(conn, table)
    assert len(found.breakers) == gauges.BREAKERS_SHOWN
    assert found.open_breakers["destination"] == 70


def test_a_transaction_that_keeps_the_server_from_cleaning_up_is_seen(
    any_postgres: int, conn: Conn, table: Table
) -> None:
    before = reading(conn, table).held_back_transactions
    with psycopg.connect(conn.info.dsn) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        for number in range(20):
            add(conn, f"e{number}")
        found = reading(conn, table)
        assert found.oldest_transaction_seconds > 0
        assert found.held_back_transactions >= before + 40
        assert found.sees_all_sessions
    assert reading(conn, table).held_back_transactions < 40


def test_an_open_transaction_that_holds_nothing_back_does_not_count(conn: Conn, table: Table) -> None:
    with psycopg.connect(conn.info.dsn) as other:
        other.execute("SELECT 1")
        assert reading(conn, table).oldest_transaction_seconds == 0


def test_dead_rows_and_the_last_autovacuum_are_read_from_the_servers_own_account(
    conn: Conn, table: Table
) -> None:
    for number in range(10):
        add(conn, f"e{number}")
    conn.execute("SELECT pg_stat_force_next_flush()")
    found = reading(conn, table).upkeep
    assert found["outbox"].dead_tuples == 10
    assert found["outbox"].autovacuum_seconds is None


def test_gauges_leave_the_session_as_it_was(conn: Conn, table: Table) -> None:
    Gauges(table).read(conn)
    assert conn.execute("SHOW enable_seqscan").fetchone() == ("off",)
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_completed_events_are_counted_in_a_small_table_only(
    conn: Conn, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        add(conn, f"c{number}", "completed")
    assert status(conn, table)["counts"]["completed"] == {"value": 3, "exact": True}
    monkeypatch.setattr(inspect, "SMALL_TABLE_BYTES", 0)
    assert status(conn, table)["counts"]["completed"]["exact"] is False


def test_counting_reads_no_completed_row_of_a_table_that_is_not_small(
    conn: Conn, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "SMALL_TABLE_BYTES", 0)
    conn.execute(
        "INSERT INTO outbox (partition_key, event_type, payload, status, completed_at)"
        " SELECT 'k' || i, 'E', '{}', 'completed', now() FROM generate_series(1, 5000) i"
    )
    conn.execute("ANALYZE outbox")
    conn.execute("SELECT pg_stat_force_next_flush()")
    before = conn.execute("SELECT pg_stat_get_tuples_returned('outbox'::regclass)").fetchone()
    status(conn, table)
    Gauges(table).read(conn)
    conn.execute("SELECT pg_stat_force_next_flush()")
    after = conn.execute("SELECT pg_stat_get_tuples_returned('outbox'::regclass)").fetchone()
    assert before == after


def test_status_names_workers_blocked_keys_pauses_and_breakers(conn: Conn, table: Table) -> None:
    add(conn, "b-first", "failed", key="order:1")
    add(conn, "b-second", "failed", key="order:1")
    add(conn, "b-other", "failed", key="order:2")
    add(conn, "waiting", key="order:1")
    conn.execute(
        "INSERT INTO outbox_workers (id, status, metadata) VALUES ('w1', 'alive', '{\"host\": \"here\"}')"
    )
    conn.execute("INSERT INTO outbox_workers (id, status) VALUES ('w0', 'dead')")
    conn.execute(
        "INSERT INTO outbox_leases VALUES (1, 'w1', now(), now(), 7, '{1}', '{a}', '{1}', '{1}', '{1}'),"
        " (2, 'w1', now(), now(), 3, '{1}', '{a}', '{1}', '{1}', '{1}')"
    )
    conn.execute(
        "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by, until) VALUES"
        " ('key', 'order:9', 'operator', 'audit', 'ann', NULL),"
        " ('destination', 'orders', 'breaker', 'no leader', 'w1', now() + interval '1 minute'),"
        " ('all', '', 'operator', 'over', 'ann', now() - interval '1 minute')"
    )
    found = status(conn, table)
    assert [(row["key"], row["event_id"]) for row in found["blocked_keys"]] == [
        ("order:1", "b-first"),
        ("order:2", "b-other"),
    ]
    workers = {worker["id"]: worker for worker in found["workers"]}
    assert workers["w1"]["processing"] == 10
    assert workers["w1"]["metadata"] == {"host": "here"}
    assert workers["w0"]["status"] == "dead"
    assert [(pause["scope"], pause["value"]) for pause in found["pauses"]] == [("key", "order:9")]
    assert [(pause["scope"], pause["value"]) for pause in found["breakers"]] == [("destination", "orders")]
    assert found["counts"]["failed"] == {"value": 3, "exact": True}


def test_events_are_listed_newest_first_and_page_by_position(conn: Conn, table: Table) -> None:
    for number in range(5):
        add(conn, f"e{number}")
    first = events(conn, table, Filters(limit=3))
    assert ids(first) == ["e4", "e3", "e2"]
    assert ids(events(conn, table, Filters(limit=3, before=first[-1]["position"]))) == ["e1", "e0"]


@pytest.mark.parametrize(
    "filters, expected",
    [
        (Filters(status="pending"), ["pending"]),
        (Filters(status="processing"), ["processing"]),
        (Filters(status="completed"), ["completed"]),
        (Filters(status="completed", since=datetime(2020, 1, 1, tzinfo=UTC)), ["completed"]),
        (Filters(status="completed", since=datetime.now(UTC) + timedelta(days=1)), []),
        (Filters(status="dead_letter"), ["dead_letter"]),
        (Filters(status="failed"), ["failed"]),
        (Filters(key="key:failed"), ["failed"]),
        (Filters(key="key:failed", status="pending"), []),
        (Filters(event_type="TypeP"), ["processing", "pending"]),
        (Filters(error="TOO large"), ["dead_letter"]),
        (Filters(error="100%"), ["failed"]),
        (Filters(error="_"), []),
        (
            Filters(since=datetime(2020, 1, 1, tzinfo=UTC)),
            ["failed", "dead_letter", "completed", "processing", "pending"],
        ),
        (Filters(since=datetime.now(UTC) + timedelta(days=1)), []),
    ],
)
def test_filters_choose_events(conn: Conn, table: Table, filters: Filters, expected: list[str]) -> None:
    for name in SHAPES:
        add(conn, name, name)
    assert ids(events(conn, table, filters)) == expected


def combinations(before: int) -> Iterator[Filters]:
    for chosen in product(
        cast("tuple[Status | None, ...]", (None, *SHAPES)),
        (None, "order:1"),
        (None, "TypeB"),
        (None, "large"),
        (None, datetime.now(UTC) - timedelta(hours=1)),
        (None, before),
    ):
        yield Filters(*chosen)


@pytest.mark.parametrize("first, live", [(1, 0), (2, 1), (1000, 3)])
def test_any_filters_together_find_what_a_look_at_every_row_finds(
    conn: Conn, table: Table, monkeypatch: pytest.MonkeyPatch, first: int, live: int
) -> None:
    monkeypatch.setattr(inspect, "FIRST_WINDOW", first)
    monkeypatch.setattr(inspect, "LIVE_WINDOWS", live)
    for number, (name, key, kind) in enumerate(product(SHAPES, ("order:1", "order:2"), "AB")):
        old = "created_at = now() - interval '2 h'" if number % 3 else ""
        due = ("available_at = now() + interval '1 h'", "")[number % 2] if name == "pending" else ""
        add(conn, f"{kind}{number}", name, key, ", ".join(filter(None, [old, due])))
    rows = events(conn, table, Filters())
    assert len(rows) == 20
    for filters in combinations(before=15):
        expected = [row["event_id"] for row in rows if matches(row, filters)]
        assert ids(events(conn, table, filters)) == expected, filters
        paged: list[str] = []
        before = filters.before
        while page := events(conn, table, replace(filters, limit=2, before=before)):
            paged += ids(page)
            before = page[-1]["position"]
        assert paged == expected, filters


def matches(row: dict[str, Any], filters: Filters) -> bool:
    return (
        filters.status in (None, row["status"])
        and filters.key in (None, row["key"])
        and filters.event_type in (None, row["event_type"])
        and (filters.error is None or filters.error in (row["last_error"] or "").lower())
        and (filters.since is None or row["created_at"] >= filters.since)
        and (filters.before is None or row["position"] < filters.before)
    )


@pytest.mark.parametrize("sees_the_sequence", [True, False])
def test_no_list_of_events_scans_a_large_table(
    any_postgres: int, conn: Conn, table: Table, sees_the_sequence: bool
) -> None:
    conn.execute(
        "INSERT INTO outbox (partition_key, event_type, payload, status, completed_at)"
        " SELECT 'order:' || i % 900, 'TypeB', '{}', 'completed', now() FROM generate_series(1, 60000) i"
    )
    for number in range(3):
        for name in SHAPES:
            add(conn, f"b-{name}-{number}", name, "order:1")
    conn.execute("VACUUM ANALYZE outbox")  # which tells the BRIN indexes of the new pages
    if not sees_the_sequence:
        conn.execute("CREATE ROLE looker")
        conn.execute("GRANT SELECT ON outbox, outbox_leases TO looker; SET ROLE looker")
    try:
        read = Reads(conn)
        for filters in combinations(before=30_000):
            events(conn, table, filters)
        assert read.sequential_scans() == 0
        for filters in (
            Filters(),
            Filters(before=30_000),
            Filters(event_type="TypeB"),
            Filters(status="completed"),
            Filters(status="pending", key="order:1"),
            Filters(status="dead_letter"),
        ):
            read = Reads(conn)
            events(conn, table, filters)
            assert read.rows() < 10_000, filters
    finally:
        conn.execute("RESET ROLE")
        if not sees_the_sequence:
            conn.execute("DROP OWNED BY looker; DROP ROLE looker")


class Reads:
    """What this session has read of the outbox since this was made."""

    def __init__(self, conn: Conn) -> None:
        self._conn = conn
        self._before = self._counters()

    def _counters(self) -> tuple[int, int]:
        self._conn.execute("SELECT pg_stat_force_next_flush()")
        row = self._conn.execute(
            "SELECT pg_stat_get_numscans(t), pg_stat_get_tuples_returned(t) + pg_stat_get_tuples_fetched(t)"
            " FROM (SELECT 'outbox'::regclass AS t) o"
        ).fetchone()
        assert row is not None
        return row[0], row[1]

    def sequential_scans(self) -> int:
        return self._counters()[0] - self._before[0]

    def rows(self) -> int:
        return self._counters()[1] - self._before[1]


def test_an_event_that_holds_its_key_has_no_time_at_which_it_is_due(conn: Conn, table: Table) -> None:
    add(conn, "stuck", "failed")
    assert events(conn, table, Filters())[0]["available_at"] is None
    row = show(conn, table, "stuck")
    assert row is not None
    assert row["available_at"] is None


def test_show_has_every_column_and_the_payload_as_stored(conn: Conn, table: Table) -> None:
    add(conn, "e1", "completed")
    row = show(conn, table, "e1")
    assert row is not None
    assert row["payload"] == '{"n": 1.00}'
    assert (row["status"], row["receipt"], row["archived"]) == ("completed", "orders[0]@7", False)
    columns = conn.execute(
        "SELECT count(*) FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attnum > 0"
    ).fetchone()
    assert columns == (len(row) - 1,)


def test_show_finds_archived_events_and_prefers_the_outbox(conn: Conn, table: Table) -> None:
    add(conn, "e1", "completed")
    conn.execute("INSERT INTO outbox_archive SELECT * FROM outbox")
    conn.execute("DELETE FROM outbox")
    row = show(conn, table, "e1")
    assert row is not None
    assert row["archived"] is True
    add(conn, "e1")
    row = show(conn, table, "e1")
    assert row is not None
    assert (row["archived"], row["status"]) == (False, "pending")
    assert show(conn, table, "unknown") is None


def test_a_look_that_takes_too_long_is_one_sentence_with_a_remedy(
    conn: Conn, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "LIST_SECONDS", 0.05)
    monkeypatch.setattr(inspect, "STATUS_SECONDS", 0.05)
    with psycopg.connect(conn.info.dsn) as other:
        other.execute("LOCK TABLE outbox")
        with pytest.raises(
            RelayError, match=r"listing events took longer than 0\.05 s .* narrow it by --status"
        ):
            events(conn, table, Filters())
        with pytest.raises(RelayError, match=r"looking at the outbox took longer than 0\.05 s"):
            status(conn, table)
        with pytest.raises(RelayError, match="looking for the event took longer"):
            show(conn, table, "e1")
