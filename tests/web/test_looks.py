"""Behind the pages: listings, waiting keys and groups stay fast and right whatever lies in the outbox."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from time import monotonic

import psycopg
import pytest
from psycopg import Connection

from relay.reading import Count
from relay.store import listing, overview, waiting
from relay.store.connection import StoreConnection, Table, connect, resolve
from relay.store.listing import Query
from relay.store.sqltext import fill
from relay.web.shape import in_common
from tests.integration.store_kit import OUTBOX, Actor, Raw, insert
from tests.web import shop

MANY = 1_000_000
Look = tuple[StoreConnection, Table]


@pytest.fixture
def look(database: str) -> Iterator[Look]:
    with connect(database, "pages") as conn:
        yield conn, resolve(conn, OUTBOX)


def fill_up(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload, status, attempts, completed_at, receipt)"
            " SELECT 'order:' || i %% 5000, CASE WHEN i = 17 THEN 'Rare' ELSE 'Usual' END, '{}',"
            " 'completed', 1, now(), 'x' FROM generate_series(1, %s) i",
            [MANY],
        )
        shop.park(database, 3000, "evt-dead", "MailDue", "mailer-# timed out")
        shop.behind(database, "order:1", 2000)
        conn.execute("VACUUM ANALYZE outbox")


def pages(look: Look, query: Query) -> Iterator[listing.Page]:
    while True:
        page = listing.page(*look, query)
        yield page
        if page.next is None:
            return
        query = replace(query, before=page.next)


def test_any_page_of_many_events_takes_no_longer_than_of_few(database: str, look: Look) -> None:
    fill_up(database)
    newest = MANY + 5000
    queries = [
        (Query(), newest),
        (Query(before=str(MANY // 2)), MANY // 2 - 1),
        (Query(status="completed"), MANY),
        (Query(status="pending"), newest),
        (Query(status="pending", key="order:1"), newest),
        (Query(status="dead_letter"), MANY + 1),
        (Query(status="dead_letter", event_type="MailDue", error="MAILER-"), MANY + 1),
        (Query(event_type="Rare"), 17),
    ]
    for query, first in queries:
        began = monotonic()
        page = listing.page(*look, query)
        took = monotonic() - began
        assert page.complete, query
        assert page.events[0]["position"] == first, query
        assert took < 2.0, f"{query} took {took:.2f} s"
    windows = fill(listing.WINDOW, look[1].name, COLUMNS="o.id", WHERE="true")
    look[0].execute("SET enable_bitmapscan = on")
    plan = (
        look[0]
        .execute(f"EXPLAIN {windows}", {"low": MANY // 2 - 1000, "high": MANY // 2, "limit": 51})
        .fetchall()
    )
    assert "outbox_position" in str(plan), "the BRIN index leads to the window"
    counted = listing.count(*look, Query(status="completed"))
    assert counted == Count(listing.COUNT_ROWS, exact=False)
    assert listing.count(*look, Query(status="dead_letter")) == Count(3000, exact=True)


def test_pages_follow_each_other_without_gap_or_repetition(database: str, look: Look) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        for number in range(1, 8):
            insert(conn, f"order:{number}", 20)
            conn.execute("SELECT setval('outbox_id_seq', currval('outbox_id_seq') + 5000)")
        insert(conn, "order:1", 5, available_at=Raw("now() + interval '1 hour'"))
    for query, expected in ((Query(limit=9), 145), (Query(key="order:1", status="pending", limit=9), 25)):
        found = [row["position"] for page in pages(look, query) for row in page.events]
        assert len(found) == expected
        assert found == sorted(set(found), reverse=True)
    shop.park(database, 25, "evt-dead", "MailDue", "x")
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "UPDATE outbox SET parked_at = date_trunc('hour', parked_at) WHERE parked_at IS NOT NULL"
        )
    ids = [
        row["event_id"] for page in pages(look, Query(status="dead_letter", limit=4)) for row in page.events
    ]
    assert len(ids) == len(set(ids)) == 25


def test_a_look_that_takes_too_long_says_how_far_it_got(database: str, look: Look) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        insert(conn, "order:1", 3)
    page = listing.page(*look, Query(), seconds=0.5)
    assert page.complete
    slow = Query(event_type="Rare", before="1000")
    conn_, table = look
    with psycopg.connect(database) as holder:
        holder.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        page = listing.page(conn_, table, slow, seconds=0.2)
        assert (page.events, page.next, page.complete) == ([], "1000", False)
        assert listing.page(conn_, table, Query(status="failed"), seconds=0.2).complete is False
        assert listing.count(conn_, table, slow, seconds=0.2) is None
    assert listing.page(conn_, table, replace(slow, event_type="Tested")).complete


def test_a_role_that_only_reads_sees_the_newest_too(database: str, look: Look) -> None:
    conn, table = look
    insert(conn, "order:1", 3)
    conn.execute("DROP ROLE IF EXISTS pages_reader")
    conn.execute("CREATE ROLE pages_reader")
    conn.execute("GRANT SELECT ON outbox, outbox_leases TO pages_reader")
    conn.execute("SET ROLE pages_reader")
    try:
        assert [row["position"] for row in listing.page(conn, table, Query()).events] == [3, 2, 1]
    finally:
        conn.execute("RESET ROLE")
        conn.execute("REVOKE ALL ON outbox, outbox_leases FROM pages_reader")
        conn.execute("DROP ROLE pages_reader")


def why(look: Look) -> dict[str, str]:
    keys, following = waiting.waiting(*look, "outbox.events")
    assert following is None
    return {row["key"]: row["why"] for row in keys}


def test_every_reason_to_wait_is_told_and_only_heads_decide(database: str, look: Look) -> None:
    conn: Connection[object] = look[0]
    worker = Actor(database)
    insert(conn, "flying")
    worker.settle(worker.must_claim(), "retry")
    conn.execute("UPDATE outbox SET available_at = clock_timestamp()")
    worker.must_claim()
    for key in ("retry", "due", "paused", "held"):
        insert(conn, key, 2, event_type=key)
    conn.execute(
        "UPDATE outbox SET attempts = 1, available_at = clock_timestamp() + CASE partition_key WHEN 'retry'"
        " THEN interval '1 hour' ELSE interval '1 microsecond' END"
        " WHERE id IN (SELECT min(id) FROM outbox WHERE partition_key <> 'flying' GROUP BY partition_key)"
    )
    insert(conn, "delayed", available_at=Raw("now() + interval '1 hour'"))
    insert(conn, "fresh")
    insert(conn, "fresh", available_at=Raw("now() + interval '1 hour'"))
    shop.park(database, 1, "evt-failed", "RefundMade", "x", "failed")
    conn.execute(
        "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by, until) VALUES"
        " ('event_type', 'paused', 'operator', 'r', 'a', NULL),"
        " ('event_type', 'over', 'operator', 'r', 'a', now() - interval '1 hour'),"
        " ('event_type', 'held', 'breaker', 'r', 'w', now() + interval '1 hour')"
    )
    assert why(look) == {
        "flying": "in_flight",
        "retry": "retry",
        "due": "due",
        "paused": "paused",
        "held": "breaker",
        "delayed": "delayed",
        "order:7001": "blocked",
    }
    worker.close()


def test_waiting_keys_come_by_pages_the_soonest_first_and_the_failed_last(database: str, look: Look) -> None:
    conn = look[0]
    for number in range(20):
        insert(conn, f"order:{number}", available_at=Raw(f"now() + interval '{60 - number} minutes'"))
    shop.park(database, 7, "evt-failed", "RefundMade", "x", "failed")
    found: list[str] = []
    after: str | None = None
    while True:
        keys, after = waiting.waiting(*look, "outbox.events", after, limit=5)
        found += [row["key"] for row in keys]
        if after is None:
            break
    assert found[:20] == [f"order:{number}" for number in reversed(range(20))]
    assert len(found) == len(set(found)) == 27


def test_what_is_behind_a_head_is_counted_up_to_a_bound(database: str, look: Look) -> None:
    conn = look[0]
    insert(conn, "order:1", available_at=Raw("now() + interval '1 hour'"))
    insert(conn, "order:1", 1500)
    ((row,), _) = waiting.waiting(*look, "outbox.events")
    assert (row["behind"], row["behind_exact"]) == (1000, False)
    lane = waiting.lane_of(*look, "order:1", 5)
    assert lane is not None
    assert (lane["ahead"], lane["ahead_exact"]) == (4, True)


def test_groups_are_of_the_newest_and_say_when_there_are_more(database: str, look: Look) -> None:
    shop.park(database, 30, "evt-dead", "MailDue", "error # of 9")
    shop.park(database, 10, "evt-ref", "RefundMade", "other error", "failed")
    groups, complete = overview.parked_groups(*look)
    assert [(group["event_type"], group["status"], group["events"], group["keys"]) for group in groups] == [
        ("MailDue", "dead_letter", 30, 30),
        ("RefundMade", "failed", 10, 10),
    ]
    assert complete
    assert (groups[0]["variants"], len(groups[0]["errors"]), groups[1]["errors"]) == (30, 20, ["other error"])
    groups, complete = overview.parked_groups(*look, rows=15)
    assert sum(group["events"] for group in groups) == 16
    assert not complete


PIECES = ("4f2a9c", "f1ac22", "0x1f", "4fa", "f4a", "a1b2c3d4", "12345678-abcd", "7", "x", " ", "-", "\x01")


def test_what_a_group_is_found_by_is_in_every_error_of_it(
    look: Look, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(7)
    errors = {"".join(chance.choices(PIECES, k=chance.randrange(1, 5))) for _ in range(1000)}
    errors |= {"req 4f2a9c timed out", "req f1ac22 timed out", "0x1f", "0xf", "4fa is gone", "f4a is gone"}
    with psycopg.connect(database) as conn, conn.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO outbox (partition_key, event_type, payload, status, attempts, completed_at,"
            " parked_at, last_error)"
            " VALUES ('order:1', 'OrderPaid', '{}', 'dead_letter', 5, now(), now(), %s)",
            [[error] for error in errors],
        )
    monkeypatch.setattr(overview, "GROUPS", len(errors))
    monkeypatch.setattr(overview, "SAMPLES", len(errors))
    groups, _ = overview.parked_groups(*look)
    assert {error for group in groups for error in group["errors"]} == errors
    for group in groups:
        for seen in (group["errors"], group["errors"][:2]):
            _, contains = in_common(seen, group["variants"])
            assert all(contains in error for error in group["errors"]), contains


def test_the_audit_trail_comes_by_pages_and_by_event(look: Look) -> None:
    conn = look[0]
    conn.execute(
        "INSERT INTO outbox_audit (actor, action, event_id)"
        " SELECT 'ana', CASE WHEN i % 2 = 0 THEN 'retry' ELSE 'pause' END, 'evt-' || i"
        " FROM generate_series(1, 60) i"
    )
    first, following = overview.audit(*look)
    assert (first[0]["id"], len(first), following) == (60, 50, 11)
    second, following = overview.audit(*look, before=following)
    assert (len(second), following) == (10, None)
    assert len(overview.audit(*look, action="retry")[0]) == 30
    assert [row["id"] for row in overview.audit(*look, event_id="evt-7")[0]] == [7]
