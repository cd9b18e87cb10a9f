"""Writes events into the outbox, inside the caller's own transaction.

Guarantees: an event is in the table if and only if the caller's transaction commits; nothing here commits,
and an INSERT that would be committed by itself is refused (NotInTransaction). An event that the table
could not hold is refused before the database sees it (InvalidEvent). The role needs no right but INSERT.
The same event_id again leaves one row.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, TypeAlias

from relay import validation
from relay.adapters import Parameters, Statement, async_executor, executor
from relay.errors import InvalidEvent, SettingsError
from relay.names import TableName
from relay.store.sqltext import fill, regclass

CHUNK_ROWS = 1000
CHUNK_BYTES = 4 * 1024 * 1024
Row: TypeAlias = dict[str, Any]  # the parameters of one INSERT


@dataclass(slots=True)
class NewEvent:
    """An event to be written; the arguments of `Outbox.emit`."""

    event_type: str
    _: KW_ONLY
    key: str | None
    payload: Any
    event_id: str | None = None
    headers: Mapping[str, str] | None = None
    destination: str | None = None
    available_at: datetime | None = None
    max_attempts: int | None = None
    traceparent: str | None = None


# No conflict target and no RETURNING: either would take a right to SELECT.
INSERT_ONE = """
INSERT INTO {outbox}
  (partition_key, event_type, payload, idempotency_key, headers, destination, available_at{column})
VALUES
  (%(key)s, %(event_type)s, CAST(%(payload)s AS jsonb), %(event_id)s, CAST(%(headers)s AS jsonb),
   %(destination)s, COALESCE(CAST(CAST(%(available_at)s AS text) AS timestamptz), now()){value})
ON CONFLICT DO NOTHING
"""

# Rows get their ids in the order of the arrays: the default of a column is computed above the sort.
INSERT_MANY = """
INSERT INTO {outbox}
  (partition_key, event_type, payload, idempotency_key, headers, destination, available_at{column})
SELECT e.key, e.event_type, CAST(e.payload AS jsonb), e.event_id, CAST(e.headers AS jsonb),
       e.destination, COALESCE(CAST(e.available_at AS timestamptz), now()){column}
FROM unnest(
  CAST(%(key)s AS text[]), CAST(%(event_type)s AS text[]), CAST(%(payload)s AS text[]),
  CAST(%(event_id)s AS text[]), CAST(%(headers)s AS text[]), CAST(%(destination)s AS text[]),
  CAST(%(available_at)s AS text[]){array}
) WITH ORDINALITY AS e(key, event_type, payload, event_id, headers, destination, available_at{column}, place)
ORDER BY e.place
ON CONFLICT DO NOTHING
"""

# In the order of the locks' own numbers, so that two callers with the same keys cannot deadlock.
LOCK_KEYS = """
SELECT pg_advisory_xact_lock(l.number) FROM (
  SELECT DISTINCT hashtextextended('relay key ' || CAST({table} AS oid) || ' ' || k.key, 0) AS number
  FROM unnest(CAST(%(keys)s AS text[])) AS k(key)
  ORDER BY number) l
"""


class Outbox:
    """The producer's side of one outbox table. Holds no connection and may be shared by threads.

    A table without a schema is found by the search_path of each connection.
    """

    def __init__(self, table: str = "outbox", max_payload_bytes: int = 1_048_576) -> None:
        if max_payload_bytes < 1:
            raise SettingsError(f"max_payload_bytes = {max_payload_bytes} must be at least 1")
        self._max_payload_bytes = max_payload_bytes
        name = TableName.parse(table)
        self._lock_keys = Statement(fill(LOCK_KEYS, name, table=regclass(name, "outbox")))
        # Where max_attempts is left out the column's default decides, which the operator may have changed.
        self._insert_one = {
            False: Statement(fill(INSERT_ONE, name, column="", value="")),
            True: Statement(fill(INSERT_ONE, name, column=", max_attempts", value=", %(max_attempts)s")),
        }
        self._insert_many = {
            False: Statement(fill(INSERT_MANY, name, column="", array="")),
            True: Statement(
                fill(INSERT_MANY, name, column=", max_attempts", array=", CAST(%(max_attempts)s AS int[])")
            ),
        }

    def emit(
        self,
        conn: Any,
        event_type: str,
        *,
        key: str | None,
        payload: Any,
        event_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        destination: str | None = None,
        available_at: datetime | None = None,
        max_attempts: int | None = None,
        serialize: bool = False,
        traceparent: str | None = None,
    ) -> bool:
        """Write one event; whether a row was written, which is not so if the event_id is there already.

        conn: a connection or cursor of psycopg, a Connection or Session of SQLAlchemy, Django's connection.
        key: events of one key are published in order; None: no order, the event_id serves as key.
        serialize: first take a lock on the key until the transaction ends, so that events of the key get
        their positions in the order of commits. Not needed where the caller holds a lock on the aggregate.
        """
        row = self._row(
            NewEvent(
                event_type,
                key=key,
                payload=payload,
                event_id=event_id,
                headers=headers,
                destination=destination,
                available_at=available_at,
                max_attempts=max_attempts,
                traceparent=traceparent,
            ),
            _current_traceparent(),
        )
        execute = executor(conn)
        if serialize:
            execute(self._lock_keys, {"keys": [row["key"]]})
        return execute(self._insert_one["max_attempts" in row], row) == 1

    async def emit_async(
        self,
        conn: Any,
        event_type: str,
        *,
        key: str | None,
        payload: Any,
        event_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        destination: str | None = None,
        available_at: datetime | None = None,
        max_attempts: int | None = None,
        serialize: bool = False,
        traceparent: str | None = None,
    ) -> bool:
        """`emit` for an asynchronous connection, cursor or session of psycopg or SQLAlchemy."""
        row = self._row(
            NewEvent(
                event_type,
                key=key,
                payload=payload,
                event_id=event_id,
                headers=headers,
                destination=destination,
                available_at=available_at,
                max_attempts=max_attempts,
                traceparent=traceparent,
            ),
            _current_traceparent(),
        )
        execute = async_executor(conn)
        if serialize:
            await execute(self._lock_keys, {"keys": [row["key"]]})
        return await execute(self._insert_one["max_attempts" in row], row) == 1

    def emit_many(self, conn: Any, events: Iterable[NewEvent], *, serialize: bool = False) -> int:
        """Write events in the order given, in few statements; how many rows were written.

        serialize takes one lock per distinct key, all of them before the first event is written.
        """
        rows = self._rows(events)
        execute = executor(conn)
        if serialize and rows:
            execute(self._lock_keys, {"keys": sorted({row["key"] for row in rows})})
        return sum(execute(statement, parameters) for statement, parameters in self._inserts(rows))

    async def emit_many_async(self, conn: Any, events: Iterable[NewEvent], *, serialize: bool = False) -> int:
        """`emit_many` for the connections that `emit_async` takes."""
        rows = self._rows(events)
        execute = async_executor(conn)
        if serialize and rows:
            await execute(self._lock_keys, {"keys": sorted({row["key"] for row in rows})})
        return sum([await execute(statement, parameters) for statement, parameters in self._inserts(rows)])

    def _rows(self, events: Iterable[NewEvent]) -> list[Row]:
        """All of them, checked before the first is written."""
        traceparent = _current_traceparent()
        rows = []
        for index, event in enumerate(events):
            try:
                rows.append(self._row(event, traceparent))
            except InvalidEvent as error:
                raise InvalidEvent(f"events[{index}]: {error}") from None
        return rows

    def _row(self, event: NewEvent, traceparent: str | None) -> Row:
        event_id = new_event_id() if event.event_id is None else validation.text("event_id", event.event_id)
        destination, available_at, max_attempts = event.destination, event.available_at, event.max_attempts
        row: Row = {
            "key": event_id if event.key is None else validation.text("key", event.key),
            "event_type": validation.text("event_type", event.event_type),
            "payload": validation.payload_json(event.payload, self._max_payload_bytes),
            "event_id": event_id,
            "headers": validation.headers_json(
                event.headers, traceparent if event.traceparent is None else event.traceparent
            ),
            "destination": None if destination is None else validation.destination(destination),
            "available_at": None if available_at is None else validation.due(available_at),
        }
        if max_attempts is not None:
            row["max_attempts"] = validation.attempts(max_attempts)
        return row

    def _inserts(self, rows: Sequence[Row]) -> Iterator[tuple[Statement, Parameters]]:
        for has_max_attempts, alike in groupby(rows, key=lambda row: "max_attempts" in row):
            statement = self._insert_many[has_max_attempts]
            for chunk in _chunks(alike):
                yield statement, {column: [row[column] for row in chunk] for column in chunk[0]}


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    size = 0
    for row in rows:
        length = len(row["payload"])
        if chunk and (len(chunk) == CHUNK_ROWS or size + length > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += length
    if chunk:
        yield chunk


def new_event_id() -> str:
    """A UUIDv7 (RFC 9562): milliseconds, then the fraction of the millisecond, then 62 random bits."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    number = milliseconds << 80 | 0x7 << 76 | (rest * 4096 // 1_000_000) << 64
    number |= 0b10 << 62 | int.from_bytes(os.urandom(8)) >> 2
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _current_traceparent() -> str | None:
    """Of the current span, where the caller's program uses OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
