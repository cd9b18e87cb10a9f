"""Moves the generations ahead where a database came back from a backup that the server knows nothing of.

A standby that takes over, and a restore to a point in time, start a new timeline, and the first worker there
does this by itself (timeline.py). A dump that is loaded, a snapshot of a disk and a copied directory do not.
"""

from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.types.json import Jsonb

from relay.store.connection import Table, transaction
from relay.store.sqltext import fill, regclass, storable, verbatim
from relay.store.timeline import AHEAD


@dataclass(frozen=True)
class Moved:
    """Generations handed out next, before and after."""

    before: int
    after: int


# The lock keeps two of these, or one and a worker's own jump, from starting at the same number.
LOCK = "SELECT timeline FROM {wake} FOR UPDATE"
NEXT = """
SELECT greatest(coalesce(pg_sequence_last_value({GENERATION}), 0) + 1,
                (SELECT max(generation) FROM {leases}) + 1,
                (SELECT max(lease_generation) FROM {outbox}) + 1)
"""
MOVE = "SELECT setval({GENERATION}, %(after)s - 1)"
AUDIT = "INSERT INTO {audit} (actor, action, details) VALUES (%s, 'after_restore', %s)"


def move_generations(conn: Connection[Any], table: Table, *, actor: str, dry_run: bool) -> Moved:
    """Go so far ahead that no generation from before the restore can come again, and write down who did.

    Reads the whole table once: a lease from the backup may carry a larger number than the sequence.
    """
    words = {"GENERATION": verbatim(regclass(table.name, "generation"))}
    with transaction(conn):
        conn.execute(fill(LOCK, table.name))
        row = conn.execute(fill(NEXT, table.name, **words)).fetchone()
        assert row is not None
        moved = Moved(row[0], row[0] + AHEAD)
        if not dry_run:
            conn.execute(fill(MOVE, table.name, **words), {"after": moved.after})
            details = {"before": moved.before, "after": moved.after}
            conn.execute(fill(AUDIT, table.name), [storable(actor), Jsonb(details)])
    return moved
