"""A throwaway outbox in a schema of its own."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import Connection, sql

from relay.names import TableName
from relay.store.connection import connect
from relay.store.migrate import migrate

FILL = """
INSERT INTO {outbox} (partition_key, event_type, payload)
SELECT 'order:' || (i %% %(keys)s), 'OrderPaid',
       jsonb_build_object('order_id', i, 'paid_at', now(), 'note', repeat('x', greatest(0, %(bytes)s - 70)))
FROM generate_series(1, %(events)s) i
"""


@contextmanager
def bench_outbox(url: str) -> Iterator[TableName]:
    """An outbox that is gone again afterwards, also after Ctrl-C."""
    schema = f"relay_bench_{secrets.token_hex(4)}"
    name = TableName(schema, "outbox")
    with connect(url, "bench") as conn:
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        try:
            migrate(conn, name)
            yield name
        finally:
            conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def fill_outbox(conn: Connection[Any], name: TableName, events: int, keys: int, payload_bytes: int) -> None:
    """Commit a backlog, spread evenly over `keys`, and leave the table as autovacuum would."""
    outbox = sql.Identifier(*name.parts())
    conn.execute(sql.SQL("TRUNCATE {}").format(outbox))
    conn.execute(
        sql.SQL(FILL).format(outbox=outbox), {"keys": keys, "events": events, "bytes": payload_bytes}
    )
    conn.execute(sql.SQL("VACUUM (ANALYZE) {}").format(outbox))
    conn.execute("CHECKPOINT") if _may_checkpoint(conn) else None


def _may_checkpoint(conn: Connection[Any]) -> bool:
    row = conn.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    return bool(row and row[0])
