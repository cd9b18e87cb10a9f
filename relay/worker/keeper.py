"""Keeps the worker known as alive and takes back what others have lost. Owns one connection.

Every worker keeps house, whoever gets the lock; only one, the housekeeper, reads the gauges of the whole
outbox and deletes what is past its retention. It holds its post by a lease of seconds: who freezes or dies
loses it, who leaves frees it.

That connection holds the worker's session lock: if it breaks, others may take the worker for dead, so
the worker ends this registration and starts anew under another id.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import psycopg
from psycopg import Connection

from relay.errors import RelayError
from relay.metrics import Metrics
from relay.pace import Paces
from relay.ring import owned_buckets
from relay.scan import BUCKETS
from relay.store.connection import transaction
from relay.store.gauges import Gauges
from relay.store.prune import Pruning
from relay.store.reap import LEASES_PER_REAP, Reaping
from relay.store.workers import Registry
from relay.tally import Tally

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
GAUGES_SECONDS = 5.0
TELL_SECONDS = 2.0
HOUSE_SECONDS = 60.0
PRUNE_AGAIN_SECONDS = 60.0
FROZEN_SECONDS = 5
POST_SECONDS = 6.0
RENEW_SECONDS = 2.0

LOCK_HOUSE = """
SELECT pg_try_advisory_xact_lock(%s), set_config('idle_in_transaction_session_timeout', %s, true)
"""


class Keeper:
    def __init__(
        self,
        conn: Connection[Any],
        worker: str,
        registry: Registry,
        reaping: Reaping,
        gauges: Gauges,
        paces: Paces,
        pruning: Pruning,
        own: Callable[[Sequence[int]], None],
        housekeeping_lock: int,
        heartbeat_seconds: float,
        metrics: Metrics,
    ) -> None:
        self._conn = conn
        self._worker = worker
        self._registry = registry
        self._reaping = reaping
        self._gauges = gauges
        self._paces = paces
        self._pruning = pruning
        self._own = own
        self._housekeeping_lock = housekeeping_lock
        self._colleagues: list[str] = []
        self._heartbeat_seconds = heartbeat_seconds
        self._metrics = metrics
        self._status = "alive"
        self._ended = threading.Event()
        self._answered = monotonic()
        self._next_heartbeat = 0.0
        self._next_gauges = 0.0
        self._next_house = 0.0
        self._next_prune = 0.0
        self._is_housekeeper = False
        self._next_renewal = 0.0
        self._next_tell = 0.0
        self._told: list[Tally] = []

    def drain(self) -> None:
        """Tell others that this worker is on its way out; goes on heartbeating."""
        self._status = "draining"
        self._next_heartbeat = 0.0

    def stop(self) -> None:
        self._ended.set()

    def silence(self) -> float:
        """Seconds since the database last answered all that was asked."""
        return monotonic() - self._answered

    def run(self) -> None:
        """Until stopped; deregisters at the end."""
        while not self._ended.wait(TICK_SECONDS):
            self.tick(monotonic())
        self._registry.deregister(self._conn, self._worker)

    def resign(self) -> None:
        """However it ended: say nothing more about the outbox."""
        self._metrics.table.resign()
        self._metrics.owned_buckets.set(0)

    def tick(self, now: float) -> None:
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + self._heartbeat_seconds
            if not self._registry.heartbeat(self._conn, self._worker, self._status):
                raise RelayError(f"worker {self._worker} was declared dead by the others")
        self._keep_house(now)
        self._share_buckets()
        self._tell(now)
        self._read_gauges()
        self._prune(now)
        self._answered = monotonic()

    def _keep_house(self, now: float) -> None:
        """One worker at a time; the lock is a transaction's, and ends with it if the worker freezes there."""
        if now < self._next_house and self._registry.all_well(self._conn):
            return
        self._next_house = now + HOUSE_SECONDS
        with transaction(self._conn):
            lock = self._conn.execute(LOCK_HOUSE, [self._housekeeping_lock, f"{FROZEN_SECONDS}s"]).fetchone()
            if lock is None or not lock[0]:
                return
            self._reap()

    def _prune(self, now: float) -> None:
        """As the housekeeper. Where it fails, events must go out all the same."""
        if not self._is_housekeeper or now < self._next_prune:
            return
        try:
            self._pruning.prune(self._conn)
        except psycopg.Error as error:
            if self._conn.broken or self._conn.closed:
                raise
            log.warning("what is past its retention stays for now: %s", error)
            self._next_prune = now + PRUNE_AGAIN_SECONDS

    def _read_gauges(self) -> None:
        """As the housekeeper; all others show nothing."""
        now = monotonic()
        if now >= self._next_renewal:
            self._is_housekeeper = self._registry.keep_house(self._conn, self._worker, POST_SECONDS)
            if not self._is_housekeeper:
                self._metrics.table.resign()
                self._next_gauges = 0.0
                return
            self._next_renewal = now + RENEW_SECONDS
            self._metrics.table.hold(now + POST_SECONDS)
        if now >= self._next_gauges:
            self._next_gauges = now + GAUGES_SECONDS
            if reading := self._gauges.read(self._conn):
                self._metrics.table.show(reading)

    def _share_buckets(self) -> None:
        """Watch the buckets that are this worker's among those who live now."""
        colleagues = self._registry.claiming(self._conn)
        if colleagues != self._colleagues:
            self._colleagues = colleagues
            buckets = owned_buckets(self._worker, colleagues)
            log.info("watching %d of %d buckets, %d workers", len(buckets), BUCKETS, len(colleagues))
            self._own(buckets)
            self._metrics.owned_buckets.set(len(buckets))
            self._paces.share(len(colleagues))

    def _tell(self, now: float) -> None:
        """What this worker has done so far, for the operator's pages; twice the same says that it rests."""
        if now < self._next_tell:
            return
        self._next_tell = now + TELL_SECONDS
        tally = Tally.of(self._metrics.registry)
        if self._told != [tally, tally]:
            self._registry.tell(self._conn, self._worker, tally.as_json())
            self._told = [*self._told[-1:], tally]

    def _reap(self) -> None:
        gone = self._registry.bury(self._conn)
        while True:
            reaped = self._reaping.reap(self._conn, gone)
            if reaped.leases:
                log.warning(
                    "took back %d events of %d lost leases (%d parked)",
                    reaped.events,
                    reaped.leases,
                    reaped.parked,
                )
                self._metrics.reaped(reaped.leases, reaped.events)
            if reaped.events != reaped.expected:
                self._metrics.short_settlements.inc()
                log.error("lost leases named %d events, %d were found", reaped.expected, reaped.events)
            if reaped.leases < LEASES_PER_REAP:
                return
