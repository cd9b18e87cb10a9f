"""Shows the gauges of an outbox while no worker does, so that work without workers is seen by somebody.

Only who relays can be the housekeeper; with the last worker its gauges end. Then this one shows them, from a
process that does not relay. It steps back as soon as a worker keeps house: a sum over all processes stays
right. Of the workers it counts those that are connected, because nobody is left to declare the others dead.
While the database is out of reach it shows nothing.
"""

import logging
import threading
from dataclasses import replace
from time import monotonic

import psycopg
from prometheus_client import CollectorRegistry

from relay.errors import RelayError
from relay.metrics import Metrics
from relay.settings import Settings
from relay.store.connection import StoreConnection, Table, transaction
from relay.store.gauges import Gauges
from relay.store.sqltext import fill
from relay.store.workers import HAS_LOCK
from relay.web.desk import Desk

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
# One look that is late or fails does not make the gauges flicker; two do.
HOLD_SECONDS = 12.0

WHO_IS_THERE = """
SELECT coalesce(bool_or(w.housekeeper_until > clock_timestamp()), false),
       count(*) FILTER (WHERE w.last_seen_at > clock_timestamp() - %(stale_seconds)s * interval '1 second'
                        AND ((w.metadata ->> 'has_session')::boolean IS NOT TRUE OR {HAS_LOCK}))
FROM {workers} w WHERE w.status <> 'dead'
"""


class StandIn:
    """`metrics` has the gauges of the whole outbox and no worker's: this process is none."""

    def __init__(self, settings: Settings) -> None:
        self.metrics = Metrics()
        self.metrics.registry = CollectorRegistry()
        self.metrics.registry.register(self.metrics.table)
        self._stale_seconds = settings.stale_seconds
        self._desk = Desk(settings, "stand-in", seats=1)
        self._gauges: Gauges | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay-stand-in", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._desk.close()

    def _run(self) -> None:
        while True:
            try:
                self._desk.ask(self.look)
            except (RelayError, psycopg.Error) as error:
                log.debug("nothing is known of the outbox: %s", error)
            except Exception:
                log.exception("a look at the gauges of the outbox failed: the next one is tried")
            if self._ended.wait(LOOK_SECONDS):
                self.metrics.table.resign()
                return

    def look(self, conn: StoreConnection, table: Table) -> None:
        """Show what there is, unless a worker does."""
        statement = fill(WHO_IS_THERE, table.name, HAS_LOCK=HAS_LOCK)
        parameters = {"namespace": table.worker_locks, "stale_seconds": self._stale_seconds}
        with transaction(conn):
            kept, connected = conn.execute(statement, parameters).fetchall()[0]
        if kept:
            self.metrics.table.resign()
            return
        self._gauges = self._gauges or Gauges(table)
        if reading := self._gauges.read(conn):
            self.metrics.table.show(replace(reading, workers=connected))
            self.metrics.table.hold(monotonic() + HOLD_SECONDS)
