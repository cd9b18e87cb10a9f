"""A throwaway outbox in a schema of its own: never one that exists.

It is dropped when the bench ends, also after Ctrl-C; only SIGKILL leaves it behind, under the name that the
bench has printed.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import Connection, sql
from psycopg.errors import InsufficientPrivilege

from relay.bench.plan import EVENT_TYPE, KEY_TYPE, POISON_KEY, POISON_TYPE, Plan, cumulated
from relay.errors import RelayError
from relay.names import TableName
from relay.store.connection import connect
from relay.store.migrate import migrate
from relay.store.sqltext import fill, regclass, verbatim

_PAYLOAD = """
jsonb_build_object('order_id', i, 'paid_at', now(), 'note', repeat('x', greatest(0, %(bytes)s - 70)))"""
FILL = """
INSERT INTO {outbox} (partition_key, event_type, payload)
SELECT {KEY}, '{TYPE}', {PAYLOAD} FROM generate_series(1, %(events)s) i
"""
_KEYS = {
    "uniform": f"'{KEY_TYPE}:' || (i %% %(keys)s)",
    "hot": f"'{KEY_TYPE}:' || CASE WHEN i %% 2 = 0 THEN 0 ELSE (i / 2) %% %(keys)s END",
    "zipf": f"'{KEY_TYPE}:' || width_bucket(random(), %(bounds)s::float8[])",
}


@contextmanager
def bench_outbox(url: str) -> Iterator[TableName]:
    """An outbox that is gone again afterwards."""
    schema = f"relay_bench_{secrets.token_hex(4)}"
    name = TableName(schema, "outbox")
    with connect(url, "bench") as conn:
        # Not IF NOT EXISTS: what is there already is somebody's.
        try:
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        except InsufficientPrivilege as error:
            grant = sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(
                sql.Identifier(conn.info.dbname), sql.Identifier(conn.info.user)
            )
            raise RelayError(
                f"the bench may not make a schema of its own: {grant.as_string(None)}; or use another"
            ) from error
        try:
            migrate(conn, name)
            yield name
        finally:
            drop_schema(url, schema)


def drop_schema(url: str, schema: str) -> None:
    """By a connection of its own: the bench's may be in the middle of something."""
    try:
        with connect(url, "bench", lock_timeout="10s") as conn:
            conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))
    except Exception as error:
        raise RelayError(f"the schema {schema} of the bench is still there: drop it by hand") from error


def fill_outbox(conn: Connection[Any], name: TableName, plan: Plan) -> range:
    """Commit a backlog and leave the table as autovacuum would; the positions of its events."""
    conn.execute(fill("TRUNCATE {outbox}, {archive}", name))
    if plan.poison_backlog:
        _insert(conn, name, plan, 1, f"'{POISON_KEY}'", POISON_TYPE)
        _insert(conn, name, plan, plan.poison_backlog, f"'{POISON_KEY}'", EVENT_TYPE)
    conn.execute("SELECT setseed(0.5)")
    _insert(conn, name, plan, plan.depth, _KEYS[plan.distribution], EVENT_TYPE)
    conn.execute(fill("VACUUM (ANALYZE) {outbox}", name))
    if _may_checkpoint(conn):
        conn.execute("CHECKPOINT")
    return positions(conn, name)


def add_backlog(conn: Connection[Any], name: TableName, plan: Plan) -> range:
    """Commit as many events as a drain has, at once and beside what is there; their positions."""
    last = fill(
        "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence({OUTBOX}::text, 'id')), 0)",
        name,
        OUTBOX=verbatim(regclass(name, "outbox")),
    )
    before = conn.execute(last).fetchone()
    _insert(conn, name, plan, plan.events, _KEYS[plan.distribution], EVENT_TYPE)
    after = conn.execute(last).fetchone()
    assert before is not None
    assert after is not None
    return range(before[0] + 1, after[0] + 1)


def positions(conn: Connection[Any], name: TableName) -> range:
    row = conn.execute(fill("SELECT min(id), max(id), count(*) FROM {outbox}", name)).fetchone()
    assert row is not None
    first, last, number = row
    if last - first + 1 != number:
        raise RelayError("somebody else writes to the bench's outbox")
    return range(first, last + 1)


def live_positions(conn: Connection[Any], name: TableName) -> list[int]:
    """Events that the table still holds unpublished."""
    rows = conn.execute(fill("SELECT id FROM {outbox} WHERE completed_at IS NULL", name)).fetchall()
    return [row[0] for row in rows]


def _insert(
    conn: Connection[Any], name: TableName, plan: Plan, events: int, key: str, event_type: str
) -> None:
    bounds = cumulated(plan) if plan.distribution == "zipf" else []
    conn.execute(
        fill(FILL, name, KEY=key, TYPE=event_type, PAYLOAD=_PAYLOAD),
        {"keys": plan.keys, "events": events, "bytes": plan.payload_bytes, "bounds": bounds},
    )


def _may_checkpoint(conn: Connection[Any]) -> bool:
    row = conn.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    return bool(row and row[0])
