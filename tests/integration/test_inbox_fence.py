"""Replays and the fence: what `accept` does beside dropping duplicates, through every kind of connection."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from relay import Inbox
from relay.consumers.applying import Applying
from relay.consumers.message import Message, Raw
from relay.errors import InvalidEvent
from relay.names import TableName
from tests.integration.sessions import PATIENCE, wait_until_blocked

Connection = psycopg.Connection[Any]
inbox = Inbox("billing")
# As far as generations jump when a standby takes over.
TIMELINE = 2**32


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with psycopg.connect(database) as conn:
        yield conn


def parked(conn: Connection) -> list[tuple[Any, ...]]:
    columns = "consumer, reason, event_id, key, generation, payload"
    return conn.execute(f"SELECT {columns} FROM inbox_dedupe_dead_letters ORDER BY id").fetchall()


def test_a_replay_is_accepted_once_per_replay_seen_before_or_not(conn: Connection) -> None:
    assert inbox.accept(conn, "evt-1") is True
    for replay, answer in (("r1", True), ("r1", False), ("r2", True), ("r1", False)):
        assert inbox.accept(conn, "evt-1", replay_id=replay) is answer
    assert Inbox("shipping").accept(conn, "evt-1", replay_id="r1") is True
    assert inbox.accept(conn, "evt-2", replay_id="r1") is True
    assert inbox.accept(conn, "evt-2") is True
    assert inbox.accept(conn, "evt-1") is False


def test_a_replay_that_rolls_back_leaves_the_event_unseen(conn: Connection) -> None:
    assert inbox.accept(conn, "evt-1", replay_id="r1") is True
    conn.rollback()
    assert inbox.accept(conn, "evt-1", replay_id="r1") is True


def test_without_a_fence_generations_do_not_matter(conn: Connection) -> None:
    assert inbox.accept(conn, "evt-2", key="order:1", fence=9) is True
    assert inbox.accept(conn, "evt-1", key="order:1") is True
    assert parked(conn) == []


def test_a_late_copy_is_parked_and_the_event_itself_is_still_accepted(conn: Connection) -> None:
    assert inbox.accept(conn, "evt-2", key="order:1", fence=9) is True
    assert inbox.judge(conn, "evt-1", key="order:1", fence=5) == "stale"
    assert inbox.judge(conn, "evt-1", key="order:1", fence=5) == "stale"  # it comes again
    assert parked(conn) == [("billing", "stale", "evt-1", "order:1", 5, None)]
    assert inbox.accept(conn, "evt-1", key="order:1", fence=9) is True
    assert inbox.judge(conn, "evt-1", key="order:1", fence=5) == "duplicate"


def test_a_late_duplicate_is_a_duplicate_not_a_late_copy(conn: Connection) -> None:
    assert inbox.accept(conn, "evt-1", key="order:1", fence=5) is True
    assert inbox.accept(conn, "evt-2", key="order:1", fence=9) is True
    assert inbox.judge(conn, "evt-1", key="order:1", fence=5) == "duplicate"
    assert parked(conn) == []


def test_a_fence_is_of_one_consumer_and_one_key(conn: Connection) -> None:
    assert inbox.accept(conn, "evt-1", key="order:1", fence=9) is True
    assert inbox.accept(conn, "evt-2", key="order:2", fence=5) is True
    assert Inbox("shipping").accept(conn, "evt-3", key="order:1", fence=5) is True


def test_generations_that_jump_after_a_failover_pass_and_those_from_before_do_not(conn: Connection) -> None:
    for event, generation in (("evt-1", 7), ("evt-2", TIMELINE + 8), ("evt-3", 5 * TIMELINE)):
        assert inbox.accept(conn, event, key="order:1", fence=generation) is True
    assert inbox.judge(conn, "evt-4", key="order:1", fence=9) == "stale"


def test_a_replay_passes_the_fence(conn: Connection) -> None:
    assert inbox.accept(conn, "evt-2", key="order:1", fence=9) is True
    assert inbox.accept(conn, "evt-1", key="order:1", fence=5, replay_id="r1") is True


def test_a_rollback_takes_the_fence_and_the_parked_copy_with_it(conn: Connection) -> None:
    assert inbox.accept(conn, "evt-2", key="order:1", fence=9) is True
    conn.rollback()
    assert inbox.accept(conn, "evt-1", key="order:1", fence=5) is True
    conn.commit()
    assert inbox.accept(conn, "evt-3", key="order:1", fence=9) is True
    assert inbox.judge(conn, "evt-4", key="order:1", fence=5) == "stale"
    conn.rollback()
    assert parked(conn) == []


@pytest.mark.parametrize("end, verdict", [("COMMIT", "stale"), ("ROLLBACK", "apply")])
def test_a_late_copy_waits_for_the_event_that_raises_the_fence(
    any_postgres: int, database: str, conn: Connection, end: str, verdict: str
) -> None:
    with psycopg.connect(database) as late, ThreadPoolExecutor(1) as pool:
        assert inbox.accept(conn, "evt-0", key="order:1", fence=1) is True
        conn.commit()
        assert inbox.accept(conn, "evt-2", key="order:1", fence=9) is True
        judged = pool.submit(inbox.judge, late, "evt-1", key="order:1", fence=5)
        wait_until_blocked(database, late, conn)
        conn.execute(end)
        assert judged.result(PATIENCE) == verdict


def test_many_workers_copies_at_once_never_go_back_in_generations(database: str, conn: Connection) -> None:
    conn.execute("CREATE TABLE credits (n bigint GENERATED ALWAYS AS IDENTITY, generation bigint)")
    conn.commit()
    start = threading.Barrier(4)

    def consume(worker: int) -> None:
        with psycopg.connect(database) as session:
            start.wait(PATIENCE)
            for n in range(40):
                generation = n * 4 + worker
                with session.transaction():
                    if inbox.accept(session, f"evt-{generation}", key="order:1", fence=generation):
                        session.execute("INSERT INTO credits (generation) VALUES (%s)", [generation])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(consume, range(4)))
    applied = [row[0] for row in conn.execute("SELECT generation FROM credits ORDER BY n")]
    late = [row[4] for row in parked(conn)]
    assert applied == sorted(applied)
    assert sorted(applied + late) == list(range(160))


def test_what_is_wrong_is_refused_before_the_database_sees_it(conn: Connection) -> None:
    with pytest.raises(InvalidEvent, match="needs the event's key"):
        inbox.accept(conn, "evt-1", fence=5)
    for fence in ("5", True, 2**63, 5.0):
        with pytest.raises(InvalidEvent, match="is no lease generation"):
            inbox.accept(conn, "evt-1", key="order:1", fence=fence)  # type: ignore[arg-type]
    with pytest.raises(InvalidEvent, match=r"^key "):
        inbox.accept(conn, "evt-1", key="", fence=5)
    with pytest.raises(InvalidEvent, match=r"^replay_id "):
        inbox.accept(conn, "evt-1", replay_id="")
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def test_the_async_face_knows_replays_and_fences(database: str) -> None:
    async with await psycopg.AsyncConnection.connect(database) as conn:
        assert await inbox.accept_async(conn, "evt-2", key="order:1", fence=9) is True
        assert await inbox.judge_async(conn, "evt-1", key="order:1", fence=5) == "stale"
        assert await inbox.accept_async(conn, "evt-1", replay_id="r1") is True
        assert await inbox.accept_async(conn, "evt-1", replay_id="r1") is False
        await conn.commit()
    with psycopg.connect(database) as conn2:
        assert [row[1:3] for row in parked(conn2)] == [("stale", "evt-1")]


def test_replays_and_fences_through_sqlalchemy(database: str) -> None:
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as conn:
        assert inbox.accept(conn, "evt-2", key="order:1", fence=9) is True
        kept = {"payload": b"{}", "headers": {"a:b": "100%"}, "source": "orders[0]@1"}
        assert inbox.judge(conn, "evt-1", key="order:1", fence=5, message=kept) == "stale"
        assert inbox.accept(conn, "evt-1", replay_id="r1") is True
    with psycopg.connect(database) as conn2:
        assert [row[-1] for row in parked(conn2)] == [b"{}"]
    engine.dispose()


async def test_replays_and_fences_through_async_sqlalchemy(database: str) -> None:
    engine = create_async_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    async with engine.begin() as conn:
        assert await inbox.accept_async(conn, "evt-2", key="order:1", fence=9) is True
        assert await inbox.judge_async(conn, "evt-1", key="order:1", fence=5) == "stale"
    await engine.dispose()
    with psycopg.connect(database) as conn2:
        assert [row[1:3] for row in parked(conn2)] == [("stale", "evt-1")]


def applying(seen: list[str]) -> Applying:
    return Applying(
        "billing",
        lambda _, message: seen.append(message.event_id),
        TableName(None, "inbox_dedupe"),
        fence=True,
    )


def message(event_id: str, generation: int) -> tuple[Message, Raw]:
    headers = {"event_id": event_id, "partition_key": "order:1", "lease_generation": str(generation)}
    place = "orders[0]@1"
    facts: Any = (event_id, "OrderPaid", "order:1", {}, {}, 1, generation, 1, None, None, place, b"{}")
    return Message(*facts), Raw(b"{}", headers, place)


@pytest.mark.parametrize("came", [True, False])
def test_a_late_copy_that_is_retried_is_applied_unless_the_event_came_meanwhile(
    database: str, came: bool
) -> None:
    seen: list[str] = []
    consumer = applying(seen)
    with psycopg.connect(database, autocommit=True) as conn:
        assert consumer.apply(conn, *message("evt-2", 9)) == "apply"
        assert consumer.apply(conn, *message("evt-1", 5)) == "stale"
        if came:
            assert consumer.apply(conn, *message("evt-1", 9)) == "apply"
        conn.execute("UPDATE inbox_dedupe_dead_letters SET retry_asked_at = now()")
        assert consumer.retry_one(conn)
        assert seen == ["evt-2", "evt-1"]
        assert parked(conn) == []
        assert consumer.apply(conn, *message("evt-1", 9)) == "duplicate"


def test_an_event_that_fails_takes_the_place_of_its_late_copy(database: str) -> None:
    consumer = applying([])
    with psycopg.connect(database, autocommit=True) as conn:
        assert consumer.apply(conn, *message("evt-2", 9)) == "apply"
        assert consumer.apply(conn, *message("evt-1", 5)) == "stale"
        assert consumer.park(conn, message("evt-1", 9)[1], "failed", "no", 5)
        assert [row[1:5] for row in parked(conn)] == [("failed", "evt-1", "order:1", 9)]
        assert consumer.park(conn, message("evt-1", 9)[1], "failed", "no", 5) is False
