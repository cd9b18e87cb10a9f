"""The messages that consumers have parked: kept with their error until an operator decides.

An event that is parked as `failed` or `malformed` is marked as seen in the same transaction, so that a
duplicate of it is not applied behind anybody's back; `relay inbox retry` asks its consumer to try it again,
which deletes the row in the transaction that applies it. One that is parked as `stale` is not marked: it is
a late copy, and the event itself may still come.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from relay.names import TableName
from relay.store.sqltext import fill_inbox, storable

Reason: TypeAlias = Literal["failed", "stale", "malformed"]

# A copy that comes again changes nothing.
PARK_STALE = """
INSERT INTO {dead_letters} (consumer, reason, event_id, key, generation, event_type, source, headers, payload,
  error, attempts)
VALUES (%(consumer)s, 'stale', %(event_id)s, %(key)s, %(generation)s, %(event_type)s, %(source)s,
  CAST(%(headers)s AS jsonb), %(payload)s,
  'the key has seen a higher lease generation: a worker that had lost its lease published this late', 0)
ON CONFLICT (consumer, event_id, replay_id) DO NOTHING
"""


@dataclass(frozen=True)
class DeadLetter:
    id: int
    consumer: str
    reason: Reason
    event_id: str | None
    replay_id: str
    key: str | None
    event_type: str | None
    generation: int | None
    source: str
    headers: dict[str, str]
    payload: bytes | None
    error: str
    attempts: int
    parked_at: datetime
    retry_asked_at: datetime | None


_COLUMNS = """id, consumer, reason, event_id, replay_id, key, event_type, generation, source, headers,
  payload, error, attempts, parked_at, retry_asked_at"""


# The event itself replaces a late copy of it.
PARK = """
INSERT INTO {dead_letters} AS d (consumer, reason, event_id, replay_id, key, event_type, generation, source,
  headers, payload, error, attempts)
VALUES (%(consumer)s, %(reason)s, %(event_id)s, %(replay_id)s, %(key)s, %(event_type)s, %(generation)s,
  %(source)s, %(headers)s, %(payload)s, %(error)s, %(attempts)s)
ON CONFLICT (consumer, event_id, replay_id) DO UPDATE SET
  reason = excluded.reason, generation = excluded.generation, source = excluded.source,
  headers = excluded.headers, payload = excluded.payload, error = excluded.error,
  attempts = excluded.attempts, parked_at = now(), retry_asked_at = NULL
"""
KNOWN = """
SELECT FROM {dead_letters} WHERE consumer = %(consumer)s AND event_id IS NULL AND source = %(source)s
"""
# Of one key, one after the other, whoever takes them.
TAKE = """
SELECT {COLUMNS} FROM {dead_letters} d WHERE consumer = %(consumer)s AND retry_asked_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM {dead_letters} e WHERE e.consumer = d.consumer AND e.key = d.key
    AND e.retry_asked_at IS NOT NULL AND e.id < d.id)
ORDER BY id LIMIT 1 FOR UPDATE OF d SKIP LOCKED
"""
REMOVE = "DELETE FROM {dead_letters} WHERE id = %(id)s"
KEEP = """
UPDATE {dead_letters} SET retry_asked_at = NULL, attempts = attempts + 1, error = %(error)s WHERE id = %(id)s
"""


class DeadLetters:
    """Those of one consumer, as the consumer itself sees them."""

    def __init__(self, consumer: str, table: TableName) -> None:
        self._consumer = consumer
        self._park = fill_inbox(PARK, table)
        self._known = fill_inbox(KNOWN, table)
        self._take = fill_inbox(TAKE.replace("{COLUMNS}", _COLUMNS), table)
        self._remove = fill_inbox(REMOVE, table)
        self._keep = fill_inbox(KEEP, table)

    def park(
        self, conn: Connection[Any], reason: Reason, error: str, attempts: int, facts: Mapping[str, Any]
    ) -> None:
        """In the caller's transaction, which also marks the event as seen if it has an id."""
        headers = {storable(name): storable(value) for name, value in facts["headers"].items()}
        row = {
            "consumer": self._consumer,
            "reason": reason,
            "event_id": facts["event_id"],
            "replay_id": facts["replay_id"] or "",
            "key": storable(facts["key"]),
            "event_type": storable(facts["event_type"]),
            "generation": facts["generation"],
            "source": storable(facts["source"]),
            "headers": Jsonb(headers),
            "payload": facts["payload"],
            "error": storable(error),
            "attempts": attempts,
        }
        conn.execute(self._park, row)

    def has(self, conn: Connection[Any], source: str) -> bool:
        """Whether a message without an id that came from there is parked."""
        row = {"consumer": self._consumer, "source": storable(source)}
        return conn.execute(self._known, row).fetchone() is not None

    def take(self, conn: Connection[Any]) -> DeadLetter | None:
        """In the caller's transaction: the first that is to be tried again and that nobody else tries now."""
        with conn.cursor(row_factory=class_row(DeadLetter)) as cursor:
            return cursor.execute(self._take, {"consumer": self._consumer}).fetchone()

    def remove(self, conn: Connection[Any], letter: DeadLetter) -> None:
        conn.execute(self._remove, {"id": letter.id})

    def keep(self, conn: Connection[Any], letter: DeadLetter, error: str) -> None:
        """It failed again: until somebody asks once more."""
        conn.execute(self._keep, {"id": letter.id, "error": storable(error)})
