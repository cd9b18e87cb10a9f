"""Operators' pauses, and breakers that an operator closes: each change and its audit in one transaction.

A relay reads the pauses with every claim: what is paused is not claimed from then on, what was claimed
before still goes out. A pause that has an end ends by the database's clock, without anybody's help. The
count of what a subject holds is a look of its own, bounded in rows and time: a slow one delays no pause.
"""

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import psycopg
from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from relay.destination import shown
from relay.pause import PauseScope, Subject
from relay.store.claim_sql import FRESH, LATER, RUN_IN_FLIGHT, RUNS_OF_LEASE, SUBJECT_OF_ONLY
from relay.store.connection import Table, transaction
from relay.store.sqltext import destination_expression, fill, storable

Origin: TypeAlias = Literal["operator", "breaker"]

NO_REASON = "no reason given"
ROWS_FOR_HELD = 100_000
HELD_SECONDS = 5.0


@dataclass(frozen=True)
class Pause:
    """One row of the pauses. `ended`: it is over, nobody has lifted it."""

    scope: PauseScope
    value: str
    origin: Origin
    reason: str
    paused_by: str
    paused_at: datetime
    until: datetime | None
    failures: int
    ended: bool

    @property
    def subject(self) -> Subject:
        return Subject(self.scope, self.value)


# A breaker whose time has come holds on until a probe has got through.
_COLUMNS = """scope, value, origin, reason, paused_by, paused_at, until, failures,
  origin = 'operator' AND coalesce(until <= now(), false) AS ended"""
FIND = "SELECT {COLUMNS} FROM {pauses} WHERE origin = %(origin)s AND scope = %(scope)s ORDER BY value"
HOLDING = "SELECT {COLUMNS} FROM {pauses} ORDER BY paused_at"


def find(conn: Connection[Any], table: Table, origin: Origin, subject: Subject) -> list[Pause]:
    """The pause of the subject; else those that people are shown by that name: URLs without their paths."""
    named = {"origin": origin, "scope": subject.scope}
    with transaction(conn):
        rows = _pauses(conn, fill(FIND, table.name, COLUMNS=_COLUMNS), named)
    exact = [row for row in rows if row.value == subject.value]
    return exact or [row for row in rows if row.subject.label == subject.value]


def holding(conn: Connection[Any], table: Table) -> list[Pause]:
    """Every pause and breaker that holds something back now."""
    with transaction(conn):
        rows = _pauses(conn, fill(HOLDING, table.name, COLUMNS=_COLUMNS), {})
    return [row for row in rows if not row.ended]


# Pausing again replaces the end; it keeps the reason where no new one is given, and when the pause began.
PAUSE = """
INSERT INTO {pauses} AS p (scope, value, origin, reason, paused_by, until)
VALUES (%(scope)s, %(value)s, 'operator', coalesce(%(reason)s, %(no_reason)s), %(actor)s,
        now() + %(seconds)s::float8 * interval '1 second')
ON CONFLICT (scope, value, origin) DO UPDATE SET
  reason = CASE WHEN p.until <= now() THEN excluded.reason ELSE coalesce(%(reason)s, p.reason) END,
  paused_at = CASE WHEN p.until <= now() THEN now() ELSE p.paused_at END,
  paused_by = excluded.paused_by, until = excluded.until
RETURNING {COLUMNS}
"""
# Those that ended are kept for a day: somebody may come to lift them.
FORGET = "DELETE FROM {pauses} WHERE origin = 'operator' AND until < now() - interval '1 day'"


def pause(
    conn: Connection[Any],
    table: Table,
    subject: Subject,
    *,
    actor: str,
    reason: str | None = None,
    seconds: float | None = None,
) -> Pause:
    """Hold the subject until it is resumed, or for so many seconds."""
    parameters = {
        "scope": subject.scope,
        "value": subject.value,
        "actor": storable(actor),
        "reason": storable(reason),
        "no_reason": NO_REASON,
        "seconds": seconds,
    }
    with transaction(conn):
        conn.execute(fill(FORGET, table.name))
        (made,) = _pauses(conn, fill(PAUSE, table.name, COLUMNS=_COLUMNS), parameters)
        details = {"reason": made.reason, "until": made.until and made.until.isoformat()}
        _record(conn, table, actor, "pause", subject, details)
    return made


LIFT = """
DELETE FROM {pauses} WHERE scope = %(scope)s AND value = %(value)s AND origin = %(origin)s RETURNING {COLUMNS}
"""


def lift(
    conn: Connection[Any], table: Table, subject: Subject, *, origin: Origin, actor: str
) -> Pause | None:
    """Let the subject go; None: nothing of that origin held it."""
    parameters = {"scope": subject.scope, "value": subject.value, "origin": origin}
    with transaction(conn):
        rows = _pauses(conn, fill(LIFT, table.name, COLUMNS=_COLUMNS), parameters)
        if not rows:
            return None
        (gone,) = rows
        details: dict[str, Any] = {
            "reason": gone.reason,
            "paused_by": gone.paused_by,
            "paused_at": gone.paused_at.isoformat(),
        }
        details |= {"ended": gone.ended} if origin == "operator" else {"failures": gone.failures}
        _record(conn, table, actor, "resume" if origin == "operator" else "close_breaker", subject, details)
    return gone


AUDIT = "INSERT INTO {audit} (actor, action, details) VALUES (%s, %s, %s)"


def _record(
    conn: Connection[Any], table: Table, actor: str, action: str, subject: Subject, details: dict[str, Any]
) -> None:
    """Who did what to which subject; of a URL the host, and a digest that tells it from others there."""
    named = {"scope": subject.scope, "value": subject.label}
    if named["value"] != subject.value:
        named["sha256"] = sha256(subject.value.encode()).hexdigest()
    conn.execute(fill(AUDIT, table.name), [storable(actor), action, Jsonb(named | details)])


@dataclass(frozen=True)
class Held:
    """What a subject holds. Not exact: there is more than was looked at."""

    events: int  # pending, that it names
    keys: int  # of so many keys
    behind: int  # events of these keys that it does not name and that wait behind those
    in_flight: int  # claimed before: these still go out
    exact: bool


TEMPLATE = """
SELECT metadata ->> 'destination' FROM {workers}
WHERE status <> 'dead' AND metadata ->> 'destination' IS NOT NULL ORDER BY last_seen_at DESC LIMIT 1
"""
HELD = """
WITH fresh AS MATERIALIZED (
  SELECT o.id, o.partition_key AS k, o.status, %(only_value)s::text = {SUBJECT_OF_ONLY} AS named
  FROM {outbox} o WHERE {FRESH} AND {LANE} LIMIT %(rows)s),
later AS MATERIALIZED (
  SELECT o.id, o.partition_key AS k, o.status, %(only_value)s::text = {SUBJECT_OF_ONLY} AS named
  FROM {outbox} o WHERE {LATER} AND {LANE} LIMIT %(rows)s),
flying AS MATERIALIZED (SELECT {RUN_IN_FLIGHT} FROM {leases} l CROSS JOIN LATERAL {RUNS_OF_LEASE}),
live AS (
  SELECT *, min(id) FILTER (WHERE named AND status = 'pending') OVER (PARTITION BY k) AS first
  FROM (SELECT l.id, l.k, l.named, CASE WHEN f.k IS NULL THEN l.status::text ELSE 'processing' END AS status
        FROM (SELECT * FROM fresh UNION ALL SELECT * FROM later) l
        LEFT JOIN flying f ON f.k = l.k AND l.id BETWEEN f.first AND f.last) o)
SELECT count(*) FILTER (WHERE named AND status = 'pending') AS events,
       count(DISTINCT k) FILTER (WHERE named AND status = 'pending') AS keys,
       count(*) FILTER (WHERE NOT named AND status = 'pending' AND id > first) AS behind,
       count(*) FILTER (WHERE named AND status = 'processing') AS in_flight,
       greatest((SELECT count(*) FROM fresh), (SELECT count(*) FROM later)) < %(rows)s AS exact
FROM live
"""
_LANE = (
    "o.partition_key = %(only_value)s"
    " AND o.partition_bucket = (hashtextextended(%(only_value)s::text, 0) & 1023)::int"
)


def held(
    conn: Connection[Any], table: Table, subject: Subject, destination: str, rows: int = ROWS_FOR_HELD
) -> Held | str:
    """What the subject holds now; or why that cannot be told.

    Where an event goes is the relays' setting: that of a living one counts, else `destination`.
    """
    try:
        with transaction(conn):
            conn.execute("SELECT set_config('statement_timeout', %s, true)", [f"{HELD_SECONDS * 1000:.0f}ms"])
            theirs = conn.execute(fill(TEMPLATE, table.name)).fetchone()
            template = theirs[0] if theirs else destination
            if theirs and "://" in template and subject.scope in ("destination", "host", "route"):
                # Workers tell only the host of a URL.
                if shown(destination) != template:
                    return f"the relays' destination is a URL at {template}: set the same destination here"
                template = destination
            statement = fill(
                HELD,
                table.name,
                SUBJECT_OF_ONLY=SUBJECT_OF_ONLY,
                DESTINATION=destination_expression(template),
                FRESH=FRESH,
                LATER=LATER,
                RUN_IN_FLIGHT=RUN_IN_FLIGHT,
                RUNS_OF_LEASE=RUNS_OF_LEASE,
                LANE=_LANE if subject.scope == "key" else "true",
            )
            parameters = {"only_scope": subject.scope, "only_value": subject.value, "rows": rows + 1}
            (found,) = conn.cursor(row_factory=class_row(Held)).execute(statement, parameters)
            return found
    except psycopg.errors.QueryCanceled:
        return f"counting took longer than {HELD_SECONDS:g} s and was given up"


def _pauses(conn: Connection[Any], statement: str, parameters: dict[str, Any]) -> list[Pause]:
    return conn.cursor(row_factory=class_row(Pause)).execute(statement, parameters).fetchall()
