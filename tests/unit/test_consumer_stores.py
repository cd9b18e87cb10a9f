"""Stores for consumers without PostgreSQL: what each promises when something fails in between."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.consumers.stores import LET_GO, ClaimedElsewhere, DbApiStore, RedisStore, apply_once
from relay.errors import InvalidEvent, SettingsError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as conn:
        conn.execute(DbApiStore.TABLE)
        conn.execute("CREATE TABLE ledger (event_id text)")
    conn.close()
    return path


@pytest.fixture
def conn(path: Path) -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(path, timeout=0)
    yield conn
    conn.close()


def entries(path: Path) -> list[str]:
    conn = sqlite3.connect(path)
    found = [row[0] for row in conn.execute("SELECT event_id FROM ledger")]
    conn.close()
    return found


def credit(conn: sqlite3.Connection, event_id: str) -> None:
    conn.execute("INSERT INTO ledger VALUES (?)", [event_id])


def test_an_event_is_applied_once_in_the_transaction_of_its_mark(
    path: Path, conn: sqlite3.Connection
) -> None:
    store = DbApiStore(conn, sqlite3, "billing")
    assert apply_once(store, "evt-1", lambda: credit(conn, "evt-1")) is True
    assert apply_once(store, "evt-1", lambda: credit(conn, "evt-1")) is False
    assert apply_once(DbApiStore(conn, sqlite3, "shipping"), "evt-1", lambda: None) is True
    assert entries(path) == ["evt-1"]


def test_an_effect_that_fails_leaves_neither_itself_nor_its_mark(
    path: Path, conn: sqlite3.Connection
) -> None:
    store = DbApiStore(conn, sqlite3, "billing")

    def fail() -> None:
        credit(conn, "evt-1")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        apply_once(store, "evt-1", fail)
    assert entries(path) == []
    assert apply_once(store, "evt-1", lambda: credit(conn, "evt-1")) is True
    assert entries(path) == ["evt-1"]


def test_a_commit_that_fails_leaves_nothing_and_is_told(path: Path, conn: sqlite3.Connection) -> None:
    store = DbApiStore(conn, sqlite3, "billing")
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM ledger").fetchone() == (
            0,
        )  # a reader holds off the commit
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            apply_once(store, "evt-1", lambda: credit(conn, "evt-1"))
        other.execute("COMMIT")
    other.close()
    assert entries(path) == []
    assert apply_once(store, "evt-1", lambda: credit(conn, "evt-1")) is True


def test_a_concurrent_duplicate_is_never_taken_for_applied(path: Path, conn: sqlite3.Connection) -> None:
    second = sqlite3.connect(path, timeout=0)
    store = DbApiStore(conn, sqlite3, "billing")
    assert store.claim("evt-1")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        DbApiStore(second, sqlite3, "billing").claim("evt-1")
    store.settle("evt-1", applied=False)
    assert DbApiStore(second, sqlite3, "billing").claim("evt-1")
    second.rollback()
    second.close()


def test_a_row_that_is_refused_for_another_reason_is_no_duplicate(
    path: Path, conn: sqlite3.Connection
) -> None:
    conn.execute("CREATE TABLE strict (consumer text, event_id text CHECK (length(event_id) < 3))")
    with pytest.raises(sqlite3.IntegrityError):
        DbApiStore(conn, sqlite3, "billing", table="strict").claim("evt-1")


def test_parameters_are_written_as_the_driver_wants_them() -> None:
    for style, end in (
        ("format", "(%s, %s)"),
        ("pyformat", "(%(consumer)s, %(event_id)s)"),
        ("numeric", "(:1, :2)"),
    ):
        module: Any = SimpleNamespace(paramstyle=style, IntegrityError=ValueError, __name__="driver")
        assert DbApiStore(None, module, "billing")._insert.endswith(end)
    with pytest.raises(SettingsError, match="paramstyle"):
        DbApiStore(None, SimpleNamespace(paramstyle="odd", IntegrityError=ValueError, __name__="d"), "b")  # type: ignore[arg-type]


class FakeRedis:
    """As much of Redis as the store uses, with a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0
        self.values: dict[str, tuple[str, int]] = {}

    def get(self, name: str) -> bytes | None:
        value, ends = self.values.get(name, ("", 0))
        return value.encode() if ends > self.now else None

    def set(self, name: str, value: str, *, px: int, nx: bool = False) -> bool | None:
        if nx and self.get(name) is not None:
            return None
        self.values[name] = (value, self.now + px)
        return True

    def eval(self, script: str, keys: int, name: str, token: str) -> int:
        assert (script, keys) == (LET_GO, 1)
        return int(self.get(name) == token.encode() and self.values.pop(name) is not None)


def test_redis_an_event_is_applied_once_and_remembered_for_the_retention() -> None:
    redis = FakeRedis()
    effects: list[str] = []
    for _ in range(3):
        apply_once(RedisStore(redis, "billing"), "evt-1", lambda: effects.append("evt-1"))
    assert effects == ["evt-1"]
    redis.now += 8 * 86_400_000
    assert apply_once(RedisStore(redis, "billing"), "evt-1", lambda: effects.append("evt-1")) is True


def test_redis_a_failed_effect_lets_go_at_once_and_a_crash_when_its_lease_ends() -> None:
    redis = FakeRedis()
    first, second = RedisStore(redis, "billing", lease_seconds=60), RedisStore(redis, "billing")
    with pytest.raises(ZeroDivisionError):
        apply_once(first, "evt-1", lambda: 1 / 0)
    assert first.claim("evt-1")  # and the process dies
    with pytest.raises(ClaimedElsewhere, match="leave the message with the broker"):
        apply_once(second, "evt-1", lambda: None)
    redis.now += 60_001
    assert apply_once(second, "evt-1", lambda: None) is True


def test_redis_who_was_too_slow_does_not_let_go_of_anothers_claim() -> None:
    redis = FakeRedis()
    slow, fast = RedisStore(redis, "billing", lease_seconds=60), RedisStore(redis, "billing")
    assert slow.claim("evt-1")
    redis.now += 60_001
    assert fast.claim("evt-1")
    slow.settle("evt-1", applied=False)
    with pytest.raises(ClaimedElsewhere):
        slow.claim("evt-1")


def test_names_that_no_relay_sends_are_refused(conn: sqlite3.Connection) -> None:
    for store in (DbApiStore(conn, sqlite3, "billing"), RedisStore(FakeRedis(), "billing")):
        with pytest.raises(InvalidEvent):
            store.claim("")
