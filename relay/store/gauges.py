"""What the housekeeper reads for the metrics of an outbox, on a connection that has other things to do.

Reads only. Each statement has a second: where counting takes longer (dead rows that VACUUM may not remove),
the server's statistics have to do for a while, and the reading says that it is an estimate.
"""

from time import monotonic
from typing import Any

from psycopg import Connection

from relay.pause import Subject
from relay.reading import Breaker, Reading, Upkeep
from relay.store.connection import Table
from relay.store.counting import Counting, Counts, every, one
from relay.store.limits import TooSlow, limited
from relay.store.sqltext import fill, regclass

ROWS_FOR_GAUGES = 10_000
GAUGES_SECONDS = 1.0
RECOUNT_SECONDS = 60.0
BREAKERS_SHOWN = 50
BREAKER_SCOPES = ("destination", "host", "route")
PAUSE_SCOPES = ("all", "destination", "event_type", "key")

PAUSES = """
SELECT scope, value, origin, until <= clock_timestamp() OR paused_by LIKE 'probe by %%' AS probing,
       row_number() OVER (PARTITION BY origin ORDER BY paused_at) AS place
FROM {pauses} WHERE origin = 'breaker' OR until IS NULL OR until > clock_timestamp()
"""
# What keeps rows from being cleaned up: sessions of this database with a snapshot or an id, standbys that
# send feedback, replication slots, prepared transactions. VACUUM itself does not.
SERVER = """
WITH session AS MATERIALIZED (SELECT * FROM pg_stat_activity WHERE pid <> pg_backend_pid()),
holding(since, transactions) AS (
  SELECT a.xact_start, greatest(age(a.backend_xmin), age(a.backend_xid)) FROM session a
  WHERE a.datname = current_database() AND a.backend_type <> 'autovacuum worker'
    AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
  UNION ALL
  SELECT NULL, age(a.backend_xmin) FROM session a WHERE a.backend_type = 'walsender' AND a.datname IS NULL
  UNION ALL SELECT NULL, age(s.xmin) FROM pg_replication_slots s
  UNION ALL
  SELECT p.prepared, age(p.transaction) FROM pg_prepared_xacts p WHERE p.database = current_database())
SELECT coalesce(extract(epoch FROM clock_timestamp() - min(h.since)), 0)::float8 AS seconds,
       coalesce(max(h.transactions), 0)::bigint AS transactions,
       NOT EXISTS (SELECT FROM session a WHERE a.datname = current_database()
                   AND a.query = '<insufficient privilege>') AS sees_all
FROM holding h
"""
UPKEEP = """
SELECT t.name, pg_stat_get_dead_tuples(t.id) AS dead_tuples,
       extract(epoch FROM clock_timestamp() - pg_stat_get_last_autovacuum_time(t.id))::float8
       AS autovacuum_seconds
FROM (VALUES (%(outbox)s, {outbox_name}), (%(leases)s, {leases_name})) t(name, id)
"""


class Gauges:
    def __init__(self, table: Table) -> None:
        self._counting = Counting(table, ROWS_FOR_GAUGES)
        self._recount_at = 0.0
        self._pauses = fill(PAUSES, table.name)
        names = {f"{word}_name": regclass(table.name, word) for word in ("outbox", "leases")}
        self._upkeep = fill(UPKEEP, table.name, **names)
        self._tables = {"outbox": table.name.table, "leases": f"{table.name.table}_leases"}

    def read(self, conn: Connection[Any]) -> Reading | None:
        """What can be said within a second or two; None where that is not enough."""
        try:
            counts = self._counted(conn)
            with limited(conn, GAUGES_SECONDS, "reading the gauges", "it is tried again"):
                return self._reading(conn, counts)
        except TooSlow:
            return None

    def _counted(self, conn: Connection[Any]) -> Counts:
        if monotonic() >= self._recount_at:
            try:
                with limited(conn, GAUGES_SECONDS, "reading the gauges", "it is tried again"):
                    return self._counting.count(conn)
            except TooSlow:
                self._recount_at = monotonic() + RECOUNT_SECONDS
        with limited(conn, GAUGES_SECONDS, "reading the gauges", "it is tried again"):
            return self._counting.estimate(conn)

    def _reading(self, conn: Connection[Any], counts: Counts) -> Reading:
        server = one(conn, SERVER, {})
        upkeep = {row.pop("name"): Upkeep(**row) for row in every(conn, self._upkeep, self._tables)}
        pauses = every(conn, self._pauses, {})
        by_origin = {
            origin: dict.fromkeys(scopes, 0)
            for origin, scopes in (("breaker", BREAKER_SCOPES), ("operator", PAUSE_SCOPES))
        }
        for pause in pauses:
            scopes = by_origin[pause["origin"]]
            scopes[pause["scope"]] = scopes.get(pause["scope"], 0) + 1
        breakers = [
            Breaker(pause["scope"], Subject(pause["scope"], pause["value"]).label, pause["probing"])
            for pause in pauses
            if pause["origin"] == "breaker" and pause["place"] <= BREAKERS_SHOWN
        ]
        return Reading(
            pending=counts.pending,
            retrying=counts.retrying,
            processing=counts.processing,
            failed=counts.failed,
            dead_letter=counts.dead_letter,
            blocked_keys=counts.blocked_keys,
            oldest_pending_seconds=counts.oldest_pending_seconds or 0.0,
            workers=counts.workers,
            breakers=tuple(breakers),
            open_breakers=by_origin["breaker"],
            operator_pauses=by_origin["operator"],
            upkeep=upkeep,
            oldest_transaction_seconds=server["seconds"],
            held_back_transactions=server["transactions"],
            sees_all_sessions=server["sees_all"],
        )
