"""Applies events once where the consumer has no PostgreSQL: in any DB-API database, Redis, or your own store.

A store is two methods. What it promises depends on where the effect is: in the store's own transaction
(`DbApiStore`), each event is applied once; elsewhere (`RedisStore`), an effect that a crash interrupts, or
that takes longer than its lease, is repeated. Nothing is ever taken for applied that was not.
"""

from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any, Protocol
from uuid import uuid4

from relay import validation
from relay.errors import RelayError, SettingsError


class ClaimedElsewhere(RelayError):
    """Somebody else applies the event at this moment: leave the message with the broker and try it later."""


class Store(Protocol):
    """Remembers which events a consumer has applied."""

    def claim(self, event_id: str) -> bool:
        """True: the event is yours to apply now. False: it has been applied.

        Where somebody else applies it at this moment, waits for them or raises ClaimedElsewhere.
        """

    def settle(self, event_id: str, *, applied: bool) -> None:
        """The event was applied: remember it. Or it was not: whoever gets it next may apply it."""


def apply_once(store: Store, event_id: str, effect: Callable[[], object]) -> bool:
    """Call `effect` unless the event has been applied; whether it was called.

    Acknowledge the message when this returns, never when it raises.
    """
    if not store.claim(event_id):
        return False
    try:
        effect()
    except BaseException:
        store.settle(event_id, applied=False)
        raise
    store.settle(event_id, applied=True)
    return True


_MARKS = {
    "qmark": ("?", "?"),
    "numeric": (":1", ":2"),
    "named": (":consumer", ":event_id"),
    "format": ("%s", "%s"),
    "pyformat": ("%(consumer)s", "%(event_id)s"),
}


class DbApiStore:
    """Marks in a table of the database that the effect changes too, in one transaction of this connection.

    `claim` begins the transaction, `settle` commits or rolls it back: do nothing else on the connection, and
    have it in no autocommit mode. A concurrent duplicate waits in the database, or fails there.
    """

    TABLE = """
    CREATE TABLE inbox_dedupe (
      consumer varchar(255) NOT NULL,
      event_id varchar(255) NOT NULL,
      seen_at  timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
      PRIMARY KEY (consumer, event_id)
    )
    """

    def __init__(self, conn: Any, module: ModuleType, consumer: str, table: str = "inbox_dedupe") -> None:
        """module: the driver, for its IntegrityError and how it writes parameters: sqlite3, pymysql, …"""
        style = module.paramstyle
        if style not in _MARKS:
            raise SettingsError(
                f"{module.__name__}.paramstyle = {style!r} is not known: use {', '.join(_MARKS)}"
            )
        self._conn = conn
        self._taken: type[Exception] = module.IntegrityError
        self._consumer = validation.text("consumer", consumer)
        self._named = style in ("named", "pyformat")
        first, second = _MARKS[style]
        self._insert = f"INSERT INTO {table} (consumer, event_id) VALUES ({first}, {second})"
        self._find = f"SELECT 1 FROM {table} WHERE consumer = {first} AND event_id = {second}"

    def claim(self, event_id: str) -> bool:
        mark = self._mark(validation.text("event_id", event_id))
        cursor = self._conn.cursor()
        try:
            cursor.execute(self._insert, mark)
        except self._taken:
            self._conn.rollback()
            cursor.execute(self._find, mark)
            known = cursor.fetchone() is not None
            self._conn.rollback()
            if not known:  # refused for another reason than being there already
                raise
            return False
        except BaseException:
            self._conn.rollback()
            raise
        finally:
            cursor.close()
        return True

    def settle(self, event_id: str, *, applied: bool) -> None:
        if not applied:
            self._conn.rollback()
            return
        try:
            self._conn.commit()
        except BaseException:
            self._conn.rollback()
            raise

    def _mark(self, event_id: str) -> Any:
        if self._named:
            return {"consumer": self._consumer, "event_id": event_id}
        return (self._consumer, event_id)


APPLIED = "applied"
# Ours may have expired, and then be somebody else's.
LET_GO = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end"


class RedisStore:
    """Marks in Redis: a claim is SET NX with a lease, an applied event is remembered for the retention.

    client: of redis-py, or anything with its set, get and eval. An effect that is still running when its
    lease ends may be begun a second time by somebody else.
    """

    def __init__(
        self,
        client: Any,
        consumer: str,
        *,
        lease_seconds: float = 60.0,
        retention: timedelta = timedelta(days=7),
    ) -> None:
        self._client = client
        self._consumer = validation.text("consumer", consumer)
        self._lease = max(1, int(lease_seconds * 1000))
        self._retention = max(1, int(retention.total_seconds() * 1000))
        self._tokens: dict[str, str] = {}

    def claim(self, event_id: str) -> bool:
        name = self._name(event_id)
        token = uuid4().hex
        if self._client.set(name, token, nx=True, px=self._lease):
            self._tokens[event_id] = token
            return True
        held = self._client.get(name)
        if held in (APPLIED, APPLIED.encode()):
            return False
        raise ClaimedElsewhere(
            f"event {event_id} is being applied by another consumer: leave the message with the broker and "
            "try it again later"
        )

    def settle(self, event_id: str, *, applied: bool) -> None:
        token = self._tokens.pop(event_id)
        if applied:
            self._client.set(self._name(event_id), APPLIED, px=self._retention)
        else:
            self._client.eval(LET_GO, 1, self._name(event_id), token)

    def _name(self, event_id: str) -> str:
        return f"inbox:{self._consumer}:{validation.text('event_id', event_id)}"
