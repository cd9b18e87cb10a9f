"""Consumers' dead letters as an operator sees them: list, ask for a retry, discard.

A retry is only asked for here: the consumer itself, wherever it runs, looks every two seconds and calls its
handler. A batch is one transaction with one audit row per message. A message that is being retried at that
moment is waited for, and is gone if its retry succeeded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from psycopg import Connection, sql
from psycopg.rows import dict_row

from relay.names import TableName, inbox_names
from relay.store.connection import Table, transaction
from relay.store.dead_letters import Reason
from relay.store.sqltext import fill, storable, verbatim

Action: TypeAlias = Literal["retry", "discard"]

ROWS_PER_BATCH = 500


@dataclass(frozen=True)
class Which:
    """The dead letters that an operator means: all that match."""

    ids: tuple[int, ...] = ()
    consumer: str | None = None
    reason: Reason | None = None
    key: str | None = None
    error: str | None = None  # a part of it, in any case
    since: datetime | None = None  # parked at or after

    @property
    def is_empty(self) -> bool:
        named = (self.consumer, self.reason, self.key, self.error, self.since)
        return not self.ids and all(value is None for value in named)

    def matching(self) -> str:
        conditions = {
            "ids": "d.id = ANY(%(ids)s)",
            "consumer": "d.consumer = %(consumer)s",
            "reason": "d.reason = %(reason)s",
            "key": "d.key = %(key)s",
            "error": "strpos(lower(d.error), lower(%(error)s)) > 0",
            "since": "d.parked_at >= %(since)s",
        }
        given = [condition for name, condition in conditions.items() if getattr(self, name) not in (None, ())]
        return " AND ".join(given) or "true"

    def parameters(self) -> dict[str, Any]:
        return {**vars(self), "ids": list(self.ids)}


# `applied`: a late copy whose event was applied from another one. The first page of a payload will do.
LIST = """
SELECT d.id, d.consumer, d.reason, d.event_id, nullif(d.replay_id, '') AS replay_id, d.key, d.event_type,
  d.generation, d.source, d.error, d.attempts, d.parked_at, d.retry_asked_at,
  d.reason = 'stale' AND EXISTS (
    SELECT FROM {INBOX} i WHERE i.consumer = d.consumer AND i.event_id = d.event_id) AS applied
FROM {DEAD_LETTERS} d WHERE {MATCHING} AND (%(before)s::bigint IS NULL OR d.id < %(before)s)
ORDER BY d.id DESC LIMIT %(rows)s
"""


def parked(
    conn: Connection[Any], table: Table, which: Which, *, rows: int, before: int | None = None
) -> list[dict[str, Any]]:
    """The newest first, without their payloads."""
    bound = which.parameters() | {"rows": rows, "before": before}
    with transaction(conn), conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_fill(LIST, table, which), bound).fetchall()


SHOW = """
SELECT d.*, i.seen_at FROM {DEAD_LETTERS} d LEFT JOIN {INBOX} i USING (consumer, event_id) WHERE d.id = %(id)s
"""


def letter(conn: Connection[Any], table: Table, number: int) -> dict[str, Any] | None:
    """One in full, and when its event was marked as seen."""
    with transaction(conn), conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_fill(SHOW, table, Which()), {"id": number}).fetchone()


COUNT = "SELECT count(*) FROM {DEAD_LETTERS} d WHERE {MATCHING} AND {FOR}"
_FOR: dict[Action, str] = {"retry": "d.retry_asked_at IS NULL", "discard": "true"}


def count(conn: Connection[Any], table: Table, action: Action, which: Which) -> int:
    with transaction(conn):
        row = conn.execute(_fill(COUNT, table, which, action), which.parameters()).fetchone()
    assert row is not None
    number: int = row[0]
    return number


_CHANGES: dict[Action, str] = {
    "retry": "UPDATE {DEAD_LETTERS} d SET retry_asked_at = now()",
    "discard": "DELETE FROM {DEAD_LETTERS} d",
}
ACT = """
WITH changed AS ({CHANGE} WHERE d.id = ANY(ARRAY(
    SELECT d.id FROM {DEAD_LETTERS} d WHERE {MATCHING} AND {FOR} AND d.id > %(after)s ORDER BY d.id
    LIMIT %(rows)s)) AND {FOR}
  RETURNING d.id, d.event_id, d.consumer, d.reason, d.key, d.source, d.error),
recorded AS (INSERT INTO {audit} (actor, action, event_id, details)
  SELECT %(actor)s, %(action)s, c.event_id, jsonb_build_object('consumer', c.consumer, 'dead_letter', c.id,
    'parked_as', c.reason, 'key', c.key, 'source', c.source, 'error', c.error, 'reason', %(why)s::text)
  FROM changed c)
SELECT count(*), max(id) FROM changed
"""


def act(
    conn: Connection[Any], table: Table, action: Action, which: Which, *, actor: str, why: str | None
) -> Iterator[int]:
    """Change all that match; after each batch, how many by now."""
    statement = _fill(ACT.replace("{CHANGE}", _CHANGES[action]), table, which, action)
    bound = which.parameters() | {
        "rows": ROWS_PER_BATCH,
        "actor": storable(actor),
        "action": f"inbox_{action}",
        "why": storable(why),
    }
    done, after = 0, 0
    while True:
        with transaction(conn):
            row = conn.execute(statement, bound | {"after": after}).fetchone()
        assert row is not None
        if not row[0]:
            return
        done, after = done + row[0], row[1]
        yield done


def _fill(text: str, table: Table, which: Which, action: Action = "discard") -> str:
    names = inbox_names(TableName(table.name.schema, "inbox_dedupe"))
    identifiers = {
        word: verbatim(sql.Identifier(*names[name]).as_string(None))
        for word, name in (("DEAD_LETTERS", "dead_letters"), ("INBOX", "inbox"))
    }
    return fill(text, table.name, MATCHING=which.matching(), FOR=_FOR[action], **identifiers)
