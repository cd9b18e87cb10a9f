"""Keeps generations growing where a standby takes over that has not seen the last claims.

A standby knows a sequence up to 32 values ahead of what it has received. A primary that dies with more
claims than that unsent leaves generations behind that its successor would hand out again, and consumers
that fence by generation would refuse what comes under them. Every takeover, and every restore to a point in
time, starts a new timeline of the server: the first worker to register there moves the sequence far ahead.

Where replication is synchronous nothing is ever lost, and this costs nothing but numbers.
"""

import logging

from relay.store.connection import StoreConnection, Table, transaction
from relay.store.sqltext import fill, regclass, verbatim

log = logging.getLogger(__name__)

# More claims than any timeline will see, and few enough that a double holds the generations of a million.
AHEAD = 2**32

KNOWN = "SELECT timeline FROM {wake} FOR UPDATE"
NOTE = "UPDATE {wake} SET timeline = %(timeline)s"
MOVE = "SELECT setval({GENERATION}, nextval({GENERATION}) + %(ahead)s)"


def secure_generations(conn: StoreConnection, table: Table) -> None:
    """Before a worker's first claim: no generation that any earlier server handed out comes again."""
    if conn.timeline is None:
        return
    with transaction(conn):
        row = conn.execute(fill(KNOWN, table.name)).fetchone()
        known = row[0] if row else None
        if known == conn.timeline:
            return
        conn.execute(fill(NOTE, table.name), {"timeline": conn.timeline})
        if known is not None:
            # Timelines in between may have moved it, and that too was lost.
            ahead = max(conn.timeline - known, 1) * AHEAD
            move = fill(MOVE, table.name, GENERATION=verbatim(regclass(table.name, "generation")))
            conn.execute(move, {"ahead": ahead})
            log.warning("the database is on timeline %d, was on %d: generations jump", conn.timeline, known)
