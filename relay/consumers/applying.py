"""The database side of a consumer: what happens to one message, in one transaction.

Guarantees: the handler's work, the mark that says so and nothing else are committed together. When a method
here returns, its transaction has been committed; when it raises, it was rolled back, or the connection broke
and it is not known: then the message is given here again and found to be a duplicate if it had been.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from psycopg import Connection
from psycopg.pq import TransactionStatus

from relay.consumers.message import Malformed, Message, Raw, decode
from relay.errors import RelayError
from relay.inbox import Inbox, Verdict
from relay.names import TableName
from relay.store.connection import transaction
from relay.store.dead_letters import DeadLetter, DeadLetters, Reason

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Connection[Any], Message], object]


class HandlerBroke(RelayError):
    """The handler ended the transaction, or left it in a state that cannot be committed."""


class Applying:
    def __init__(
        self, consumer: str, handler: Handler, table: TableName, *, fence: bool, transport: str | None = None
    ) -> None:
        self._handler = handler
        self._fence = fence
        self._transport = transport
        self._inbox = Inbox(consumer, _text(table))
        self._letters = DeadLetters(consumer, table)

    def apply(self, conn: Connection[Any], message: Message, raw: Raw) -> Verdict:
        """Accept the message and call the handler, or find that neither is to be done."""
        fence = message.lease_generation if self._fence else None
        with transaction(conn):
            verdict = self._inbox.judge(
                conn,
                message.event_id,
                key=message.key,
                fence=fence,
                replay_id=message.replay_id,
                message={
                    "event_type": message.event_type,
                    "source": raw.source,
                    "headers": raw.headers,
                    "payload": raw.value,
                },
            )
            if verdict == "apply":
                self._handle(conn, message)
        return verdict

    def park(self, conn: Connection[Any], raw: Raw, reason: Reason, error: str, attempts: int) -> bool:
        """Put the message aside, and mark its event as seen; False: it was applied or parked meanwhile."""
        facts = _facts(raw)
        event_id, replay_id = facts["event_id"], facts["replay_id"]
        with transaction(conn):
            if event_id is None and raw.known_by_source and self._letters.has(conn, raw.source):
                return False
            if event_id and not self._inbox.accept(conn, event_id, replay_id=replay_id):
                return False
            self._letters.park(
                conn,
                reason,
                error,
                attempts,
                facts | {"source": raw.source, "headers": raw.headers, "payload": raw.value},
            )
        return True

    def retry_one(self, conn: Connection[Any]) -> bool:
        """Try a dead letter again whose retry an operator has asked for; False: there is none."""
        letter: DeadLetter | None = None
        try:
            with transaction(conn):
                letter = self._letters.take(conn)
                if letter is None:
                    return False
                self._retry(conn, letter)
        except Exception as error:
            if letter is None or conn.closed:
                raise
            log.warning("dead letter %d failed again: %s", letter.id, told(error))
            self._letters.keep(conn, letter, told(error))
        return True

    def _retry(self, conn: Connection[Any], letter: DeadLetter) -> None:
        raw = Raw(
            letter.payload,
            letter.headers,
            letter.source,
            letter.event_id,
            letter.event_type,
            transport=self._transport,
        )
        message = decode(raw)
        fresh = self._inbox.accept(conn, message.event_id, replay_id=message.replay_id)
        # What was parked as failed or malformed bears its own mark; a late copy does not.
        if fresh or letter.reason != "stale":
            self._handle(conn, message)
            log.info("dead letter %d, event %s, is applied", letter.id, message.event_id)
        else:
            log.info("dead letter %d, event %s, had been applied meanwhile", letter.id, message.event_id)
        self._letters.remove(conn, letter)

    def _handle(self, conn: Connection[Any], message: Message) -> None:
        self._handler(conn, message)
        status = conn.info.transaction_status
        if status == TransactionStatus.INERROR:
            # A COMMIT would be a ROLLBACK, and nobody would notice.
            raise HandlerBroke(
                "the handler returned although a statement of its transaction had failed: "
                "let the error through, or use a savepoint (with conn.transaction():)"
            )
        if status == TransactionStatus.IDLE:
            raise HandlerBroke("the handler ended its transaction: leave COMMIT and ROLLBACK to the consumer")


def _facts(raw: Raw) -> dict[str, Any]:
    """What a dead letter says of the event, as far as the message does."""
    try:
        message = decode(raw)
    except Malformed as malformed:
        unknown = dict.fromkeys(("replay_id", "key", "event_type", "generation"))
        return {**unknown, "event_id": malformed.event_id}
    return {
        "event_id": message.event_id,
        "replay_id": message.replay_id,
        "key": message.key,
        "event_type": message.event_type,
        "generation": message.lease_generation,
    }


def told(error: BaseException) -> str:
    """An error as it is kept with a message."""
    return f"{type(error).__name__}: {error}"[:10_000]


def _text(table: TableName) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.parts())
