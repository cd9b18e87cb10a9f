"""Lets a consumer apply each event once, however often it arrives.

Guarantees: of all transactions that accept the same event for the same consumer, exactly one that commits
gets True. A second one waits until the first has ended, then gets False if it committed, True if it rolled
back. With a replay_id that holds per replay: an event that a replay publishes again is accepted again, once.

With `fence`, an event whose lease generation is lower than that of the last one accepted of its key is
parked in the consumer's dead letters instead: a worker that had lost its lease published it late. It is not
marked as applied, so that the copy of a worker that still had its lease is accepted whenever it comes.

All of it lives and dies with the caller's transaction; nothing here commits, and where a mark would be
committed by itself it is refused (NotInTransaction).
"""

import json
from collections.abc import Generator, Mapping
from typing import Any, Literal, TypeAlias

from relay import validation
from relay.adapters import Parameters, Statement, async_executor, executor
from relay.errors import InvalidEvent
from relay.names import TableName
from relay.store.dead_letters import PARK_STALE
from relay.store.sqltext import fill_inbox, storable

Verdict: TypeAlias = Literal["apply", "duplicate", "stale"]
Steps: TypeAlias = Generator[tuple[Statement, Parameters], int, Verdict]

ACCEPT = """
INSERT INTO {inbox} (consumer, event_id) VALUES (%(consumer)s, %(event_id)s) ON CONFLICT DO NOTHING
"""
ACCEPT_REPLAY = """
INSERT INTO {replays} (consumer, event_id, replay_id) VALUES (%(consumer)s, %(event_id)s, %(replay_id)s)
ON CONFLICT DO NOTHING
"""
PASS_FENCE = """
INSERT INTO {fences} AS f (consumer, key, generation) VALUES (%(consumer)s, %(key)s, %(generation)s)
ON CONFLICT (consumer, key) DO UPDATE SET generation = excluded.generation, seen_at = now()
WHERE f.generation <= excluded.generation
"""
FORGET = "DELETE FROM {inbox} WHERE consumer = %(consumer)s AND event_id = %(event_id)s"

MAX_GENERATION = 2**63 - 1


class Inbox:
    """What one consumer has applied. Holds no connection and may be shared by threads."""

    def __init__(self, consumer: str, table: str = "inbox_dedupe") -> None:
        self._consumer = validation.text("consumer", consumer)
        name = TableName.parse(table)
        self._accept = Statement(fill_inbox(ACCEPT, name))
        self._accept_replay = Statement(fill_inbox(ACCEPT_REPLAY, name))
        self._pass_fence = Statement(fill_inbox(PASS_FENCE, name))
        self._forget = Statement(fill_inbox(FORGET, name))
        self._park = Statement(fill_inbox(PARK_STALE, name))

    def accept(
        self,
        conn: Any,
        event_id: str,
        *,
        key: str | None = None,
        fence: int | None = None,
        replay_id: str | None = None,
    ) -> bool:
        """Whether to apply the event now, in this transaction; False: this consumer has done so already.

        conn: a connection or cursor of psycopg, a Connection or Session of SQLAlchemy, Django's connection.
        fence: the message's lease_generation, with its key; a late copy is parked, and the answer is False.
        Whatever the answer, commit, and only then acknowledge the message.
        """
        return self.judge(conn, event_id, key=key, fence=fence, replay_id=replay_id) == "apply"

    async def accept_async(
        self,
        conn: Any,
        event_id: str,
        *,
        key: str | None = None,
        fence: int | None = None,
        replay_id: str | None = None,
    ) -> bool:
        """`accept` for an asynchronous connection, cursor or session of psycopg or SQLAlchemy."""
        return await self.judge_async(conn, event_id, key=key, fence=fence, replay_id=replay_id) == "apply"

    def judge(
        self,
        conn: Any,
        event_id: str,
        *,
        key: str | None = None,
        fence: int | None = None,
        replay_id: str | None = None,
        message: Mapping[str, Any] | None = None,
    ) -> Verdict:
        """`accept` that also tells why not.

        message: what to keep of a message that is parked: event_type, source, headers, payload (bytes).
        """
        execute = executor(conn)
        steps = self._steps(event_id, key, fence, replay_id, message)
        try:
            step = next(steps)
            while True:
                step = steps.send(execute(*step))
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict

    async def judge_async(
        self,
        conn: Any,
        event_id: str,
        *,
        key: str | None = None,
        fence: int | None = None,
        replay_id: str | None = None,
        message: Mapping[str, Any] | None = None,
    ) -> Verdict:
        """`judge` for an asynchronous connection, cursor or session of psycopg or SQLAlchemy."""
        execute = async_executor(conn)
        steps = self._steps(event_id, key, fence, replay_id, message)
        try:
            step = next(steps)
            while True:
                step = steps.send(await execute(*step))
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict

    def _steps(
        self,
        event_id: str,
        key: str | None,
        fence: int | None,
        replay_id: str | None,
        message: Mapping[str, Any] | None,
    ) -> Steps:
        """The statements one after the other; each is answered with how many rows it wrote."""
        mark = {"consumer": self._consumer, "event_id": validation.text("event_id", event_id)}
        if replay_id is not None:
            # A replay carries generations of long ago.
            mark["replay_id"] = validation.text("replay_id", replay_id)
            return "apply" if (yield self._accept_replay, mark) else "duplicate"
        fenced: dict[str, Any] | None = None if fence is None else mark | _fence(fence, key)
        if not (yield self._accept, mark):
            return "duplicate"
        if fenced is None or (yield self._pass_fence, fenced):
            return "apply"
        yield self._forget, mark
        yield self._park, fenced | _kept(message)
        return "stale"


def _fence(fence: object, key: str | None) -> dict[str, Any]:
    if (
        not isinstance(fence, int)
        or isinstance(fence, bool)
        or not -MAX_GENERATION <= fence <= MAX_GENERATION
    ):
        raise InvalidEvent(f"fence = {fence!r} is no lease generation: pass int(headers['lease_generation'])")
    if key is None:
        raise InvalidEvent("fence needs the event's key: pass key=headers['partition_key'] with it")
    return {"key": validation.text("key", key), "generation": int(fence)}


def _kept(message: Mapping[str, Any] | None) -> dict[str, Any]:
    given = message or {}
    return {
        "event_type": storable(given.get("event_type")),
        "source": storable(given.get("source") or "accept"),
        "headers": json.dumps({str(storable(n)): storable(v) for n, v in given.get("headers", {}).items()}),
        "payload": given.get("payload"),
    }
