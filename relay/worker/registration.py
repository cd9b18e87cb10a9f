"""One life of a worker: a registration, its connections and its threads.

It ends when it is asked to, when nothing is left (`until_empty`), or when a connection breaks; then what
was in flight is dropped, and the relay starts another life under a new id.
"""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from hashlib import sha256
from time import monotonic
from typing import Any

from psycopg import Connection

from relay import __version__
from relay.destination import shown
from relay.errors import RelayError, SettingsError
from relay.metrics import Metrics
from relay.names import TableName
from relay.outcome import Publisher
from relay.pace import Paces
from relay.scan import BUCKETS
from relay.settings import Settings
from relay.store.claim import Claiming
from relay.store.connection import StoreConnection, Table, connect, hang_up, resolve
from relay.store.floor import Floor
from relay.store.gauges import Gauges
from relay.store.look import Limits
from relay.store.migrate import require_current
from relay.store.pauses import Breakers
from relay.store.prune import Pruning
from relay.store.reap import Reaping
from relay.store.settle import Settling
from relay.store.timeline import secure_generations
from relay.store.wake import Alarm
from relay.store.workers import Registry
from relay.worker.bell import Bell
from relay.worker.channel import Channel
from relay.worker.claimer import Claimer
from relay.worker.helper import Helper
from relay.worker.intake import Intake
from relay.worker.keeper import Keeper
from relay.worker.publishing import Publishing
from relay.worker.settler import Settler
from relay.worker.state import Batch, Hold, InFlight

log = logging.getLogger(__name__)


def new_worker_id() -> str:
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(4)}"


class Registration:
    """Connects and registers when made; run() does the work. `previous` is the life that ended before it."""

    def __init__(
        self,
        settings: Settings,
        publisher: Publisher,
        hold: Hold,
        metrics: Metrics,
        takeover: bool = False,
        previous: str | None = None,
    ) -> None:
        self.worker = new_worker_id()
        self._failure: BaseException | None = None
        self._stale_seconds = settings.stale_seconds
        self._hung_up = False
        self._supervised: float | None = None  # when run() last looked after its threads
        self._connections: list[StoreConnection] = []
        self._bell = Bell()
        try:
            self._build(settings, publisher, hold, metrics, takeover or previous is not None)
            if previous is not None:
                self._registry.retire(self._keeping, previous)
            self._registry.register(self._keeping, self.worker, _metadata(settings), self._sessions())
        except BaseException:
            self._disconnect()
            raise

    def _build(
        self, settings: Settings, publisher: Publisher, hold: Hold, metrics: Metrics, takeover: bool
    ) -> None:
        self._keeping = keeping = self._connect(settings, "keeper")
        table = resolve(keeping, TableName.parse(settings.table))
        require_current(keeping, table.name)
        self._registry = registry = Registry(table, settings.stale_seconds)
        if not takeover:
            _refuse_other_publishers(registry, keeping, table, settings)
        secure_generations(keeping, table)

        self._claimed: Channel[Batch] = Channel(1)
        self._published: Channel[Batch] = Channel(1)
        in_flight = InFlight()
        breakers = Breakers(table, self.worker)
        paces = Paces(settings.rate_limits, monotonic())
        # Behind a pooler settings hold in transactions only.
        claims = (table, self.worker, settings.destination, settings.lease_seconds)
        claiming, helping = [Claiming(*claims, stepwise=keeping.pooled) for _ in range(2)]

        def watch(buckets: Sequence[int] | None) -> None:
            claiming.watch(buckets)
            helping.watch(buckets)

        listens = settings.wake == "auto" and not keeping.pooled
        if keeping.pooled:
            # Neither a notification nor a session lock passes a pooler in transaction mode.
            log.info(
                "a pooler stands before the database: polls instead of listening, and if this process"
                " is killed the others notice after %g s",
                settings.stale_seconds,
            )
        # A claim that stops half way because this process froze is not idle for the server. Whoever buries
        # this worker ends it; where the server can, it does so itself when the lease would be over.
        bounds = keeping.info.server_version >= 170000
        limit = {"transaction_timeout": f"{settings.lease_seconds * 1000:.0f}ms"} if bounds else {}
        intake = Intake(settings.publish_seconds, self._claimed, in_flight, metrics)
        self._helper = Helper(self._connect(settings, "claimer", **limit), helping, intake, hold)
        self._claimer = Claimer(
            self._connect(settings, "claimer", **limit),
            claiming,
            breakers,
            Alarm(table) if listens else None,
            Limits(settings.batch_size, settings.claim_bytes),
            paces,
            intake,
            self._helper,
            Floor(table),
            in_flight,
            self._bell,
            hold,
            first_bucket=secrets.randbelow(BUCKETS),
        )
        self._publishing = Publishing(publisher, self._claimed, self._published, metrics)
        self._settler = Settler(
            # A completion that a crash of the server forgets is published again: a duplicate, no loss.
            self._connect(settings, "settler", synchronous_commit="off"),
            Settling(table, self.worker, settings.completion),
            settings.on_exhausted,
            breakers,
            self._published,
            in_flight,
            self._bell,
            hold,
            metrics,
        )
        self._keeper = Keeper(
            keeping,
            self.worker,
            registry,
            Reaping(table, settings.on_exhausted),
            Gauges(table),
            paces,
            Pruning(table, settings.retention, settings.dead_letter_retention, settings.inbox_retention),
            watch,
            table.housekeeping_lock,
            settings.heartbeat_seconds,
            metrics,
        )

    def _connect(self, settings: Settings, purpose: str, **session: str) -> StoreConnection:
        # All on one server, even where several take themselves for the primary.
        beside = self._connections[0] if self._connections else None
        conn = connect(settings.database_url.get_secret_value(), purpose, beside=beside, **session)
        self._connections.append(conn)
        return conn

    def _sessions(self) -> list[int]:
        """Process ids on the server. Behind a pooler there are none that are this worker's."""
        return [conn.info.backend_pid for conn in self._connections if not conn.pooled]

    def silence(self) -> float:
        """Seconds since the database last answered."""
        return self._keeper.silence()

    def overdue(self) -> float:
        """Seconds that the publisher has not returned after its deadline."""
        return self._publishing.overdue()

    def neglect(self) -> float:
        """Seconds since somebody last looked after the threads; 0 while nobody has to."""
        last = self._supervised
        return 0.0 if last is None else monotonic() - last

    def drain(self) -> None:
        """Claim nothing more; run() returns once what is in flight has been settled."""
        self._claimer.stop()
        self._keeper.drain()

    def run(self, until_empty: bool = False) -> None:
        """Work until drained or empty; raises what ended it otherwise."""
        log.info("worker %s relays", self.worker)
        try:
            self._keeper.tick(monotonic())  # what the dead have left behind comes first
            keeper = self._thread("keeper", self._keeper.run)
            helper = self._thread("helper", self._helper.run)
            line = [
                self._thread("claimer", lambda: self._claim(until_empty, helper)),
                self._thread("publisher", self._publishing.run),
                self._thread("settler", self._settler.run),
            ]
            for thread in line:
                self._outlast(thread)
            self._keeper.stop()
            self._outlast(keeper)
        finally:
            self._supervised = None
            self._keeper.resign()
            self._disconnect()
        if self._failure is not None:
            raise self._failure

    def _claim(self, until_empty: bool, helper: threading.Thread) -> None:
        try:
            self._claimer.run(until_empty)
        finally:
            self._helper.stop()
        helper.join()
        self._claimed.close()

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as failure:  # noqa: BLE001 - handed to run()
                self._fail(failure)

        thread = threading.Thread(target=guarded, name=f"relay-{name}", daemon=True)
        thread.start()
        return thread

    def _fail(self, failure: BaseException) -> None:
        """Whatever broke, end the whole registration: leases that stay behind are taken back by others."""
        if self._failure is None:
            self._failure = failure
        self._claimer.stop()
        self._keeper.stop()
        self._claimed.abandon()
        self._published.abandon()

    def _outlast(self, thread: threading.Thread) -> None:
        """Wait for the thread; a database that is silent for so long that others take over is given up."""
        while thread.is_alive():
            self._supervised = monotonic()
            thread.join(1.0)
            if self._keeper.silence() > self._stale_seconds and not self._hung_up:
                self._hung_up = True
                self._fail(RelayError(f"the database has not answered for {self._keeper.silence():.0f} s"))
                for conn in self._connections:
                    hang_up(conn)

    def _disconnect(self) -> None:
        for conn in self._connections:
            conn.close()
        self._bell.close()


def _metadata(settings: Settings) -> dict[str, Any]:
    return {
        "version": __version__,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "publisher": settings.publisher,
        "destination": shown(settings.destination),
        "relays_to": _fingerprint(settings),
    }


def _fingerprint(settings: Settings) -> str:
    """Tells two publishers or destinations apart without showing them: a URL may contain a secret."""
    return sha256(f"{settings.publisher}\0{settings.destination}".encode()).hexdigest()[:16]


def _refuse_other_publishers(
    registry: Registry, conn: Connection[Any], table: Table, settings: Settings
) -> None:
    for worker, metadata in registry.living(conn).items():
        theirs = (metadata.get("publisher"), metadata.get("destination"))
        if metadata.get("relays_to") != _fingerprint(settings):
            raise SettingsError(
                f"worker {worker} relays {table.name} to {theirs[1]} by {theirs[0]}, this one"
                f" would relay it to {shown(settings.destination)} by {settings.publisher}: stop the other"
                " first, use one table per publisher, or pass --takeover"
            )
