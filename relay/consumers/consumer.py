"""The loop that all consumers share: take a message, apply it once, and only then tell the broker.

Guarantees: the broker is told that a message is done after the transaction that applied or parked it has
been committed, never before; so nothing is lost, and what comes twice is found in the inbox. Messages of one
key are handled in the order in which they arrive: one whose handler fails waits for its retry and holds its
key, others go on. After `max_attempts` it is parked and its key goes on (`on_exhausted="dead_letter"`), or it
holds its key until the handler succeeds ("block").

One thread: handlers are never interrupted and never run while the broker's client is being served. Between
two handler calls the client is served, so retries and a database that is away cost no membership. A database
that goes away is awaited; the first connection alone must succeed. What else it refuses, to park a message or
to keep house, is tried again later and ends nothing.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import timedelta
from time import monotonic
from typing import Any, Literal, Required, TypedDict

import psycopg
from prometheus_client import CollectorRegistry, Histogram
from psycopg import Connection

from relay import validation
from relay.backoff import Rising, retry_delay
from relay.consumers.applying import Applying, Handler, told
from relay.consumers.database import DatabaseAway, connect_again, is_away
from relay.consumers.housekeeping import Housekeeping
from relay.consumers.lanes import Delivery, Lanes
from relay.consumers.message import Malformed, Message, decode
from relay.consumers.metrics import metrics_of
from relay.consumers.signals import stopped_by_signals
from relay.consumers.tallies import Tallies, Tally
from relay.errors import SettingsError
from relay.inbox import Verdict
from relay.names import TableName
from relay.store.connection import connect_for_handlers
from relay.store.dead_letters import Reason
from relay.store.inbox import require_inbox

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
# A message whose handler takes the connection down with it, again and again, is at fault itself.
MAX_LOSSES = 10


class Options(TypedDict, total=False):
    """What every consumer may be told; see Consumer for the defaults."""

    database_url: Required[str]
    table: str
    max_attempts: int
    on_exhausted: Literal["dead_letter", "block"]
    fence: bool
    retention: timedelta | None
    backoff: Callable[[int], float]
    registry: CollectorRegistry | None


class Consumer(ABC):
    """A consumer of some broker. Made and run in one thread; `stop` may be called from any."""

    transport: str | None = None  # as `Raw` knows it

    def __init__(
        self,
        name: str,
        handler: Handler,
        *,
        database_url: str,
        table: str = "inbox_dedupe",
        max_attempts: int = 5,
        on_exhausted: Literal["dead_letter", "block"] = "dead_letter",
        fence: bool = False,
        retention: timedelta | None = timedelta(days=7),
        backoff: Callable[[int], float] = retry_delay,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.name = validation.text("consumer", name)
        if max_attempts < 1 or on_exhausted not in ("dead_letter", "block"):
            raise SettingsError("max_attempts must be 1 or more, and on_exhausted 'dead_letter' or 'block'")
        self._database_url = database_url
        self._table = TableName.parse(table)
        self._max_attempts = max_attempts
        self._blocks = on_exhausted == "block"
        self._backoff = backoff
        self._metrics = metrics_of(registry)
        timed = _timed(handler, self._metrics.handler_seconds.labels(name))
        self._applying = Applying(name, timed, self._table, fence=fence, transport=self.transport)
        self._housekeeping = Housekeeping(name, self._table, retention, self._applying.retry_one)
        self._lanes = Lanes()
        self._tallies = Tallies()
        self._trouble = Rising(0.1, 30.0)
        self._park_again = Rising(0.5, 30.0)
        self._keep_house_again = Rising(2.0, 60.0)
        self._next_keep_house = 0.0
        self._conn: Connection[Any] | None = None
        self._stopping = threading.Event()

    @abstractmethod
    def _open(self) -> None:
        """Connect to the broker; raises where it cannot."""

    @abstractmethod
    def _take(self, seconds: float) -> Delivery | None:
        """Serve the broker's client, and take one message if there is one within this time."""

    @abstractmethod
    def _done(self, delivery: Delivery) -> None:
        """Its transaction has been committed: the broker may forget it."""

    @abstractmethod
    def _close(self) -> None:
        """Tell the broker what is done and leave; never raises for a broker that is away."""

    def stop(self) -> None:
        """Finish the message in hand, then return from run()."""
        self._stopping.set()

    def run(self, *, install_signals: bool = False) -> None:
        """Consume until stopped. install_signals: SIGTERM and SIGINT stop it, in the main thread."""
        with stopped_by_signals(self.stop) if install_signals else nullcontext():
            try:
                self._conn = connect_for_handlers(self._database_url, self._purpose)
                require_inbox(self._conn, self._table)
                try:
                    self._open()
                    log.info("consumer %s consumes", self.name)
                    while not self._stopping.is_set():
                        self._step()
                finally:
                    self._close()
            finally:
                self._disconnect()
        log.info("consumer %s has stopped", self.name)

    def _step(self) -> None:
        self._receive(self._patience())
        delivery = self._lanes.next(monotonic())
        conn = self._conn
        assert conn is not None
        try:
            if delivery is not None:
                self._settle(conn, delivery)
            self._keep_house(conn)
        except DatabaseAway as error:
            log.warning("the database is away: %s", error)
            self._rest(self._trouble.step())
            self._reconnect()

    def _keep_house(self, conn: Connection[Any]) -> None:
        if monotonic() < self._next_keep_house:
            return
        try:
            self._housekeeping.tick(conn)
        except Exception as error:
            if is_away(conn, error):
                raise DatabaseAway(told(error)) from error
            delay = self._keep_house_again.step()
            self._next_keep_house = monotonic() + delay
            log.warning("housekeeping of %s is tried again in %.0f s: %s", self.name, delay, told(error))
        else:
            self._keep_house_again.reset()

    def _patience(self) -> float:
        wait = self._lanes.wait(monotonic())
        return TICK_SECONDS if wait is None else min(wait, TICK_SECONDS)

    def _receive(self, seconds: float) -> None:
        delivery = self._take(seconds)
        if delivery is not None:
            self._lanes.add(delivery)
        self._metrics.held.labels(self.name).set(len(self._lanes))

    def _settle(self, conn: Connection[Any], delivery: Delivery) -> None:
        """Bring the message to an end that the broker may know of, or keep it for later."""
        delay: float | None = 0.0
        try:
            delay = self._attempt(conn, delivery)
        finally:
            if delay is not None:
                self._lanes.again(delivery, monotonic() + delay)
        if delay is None:
            self._trouble.reset()
            self._lanes.done(delivery)
            self._done(delivery)

    def _attempt(self, conn: Connection[Any], delivery: Delivery) -> float | None:
        """How long to wait before the next; None: the message is dealt with."""
        try:
            message = decode(delivery.raw)
        except Malformed as malformed:
            return self._park(conn, delivery, "malformed", str(malformed), 0)
        tally = self._tallies.of(message)
        if self._gives_up(tally):
            # It could not be parked when its attempts ran out.
            return self._give_up(conn, delivery, message, tally)
        try:
            verdict = self._applying.apply(conn, message, delivery.raw)
        except Exception as error:  # noqa: BLE001 - held against the message, whatever it is
            self._tallies.keep(message, tally)
            return self._failed(conn, delivery, message, tally, error)
        self._count(message, verdict)
        self._tallies.forget(message)
        return None

    def _failed(
        self, conn: Connection[Any], delivery: Delivery, message: Message, tally: Tally, error: Exception
    ) -> float | None:
        tally.error = told(error)
        if is_away(conn, error):
            tally.losses += conn.closed
            raise DatabaseAway(tally.error) from error
        tally.failures += 1
        log.warning(
            "event %s failed, attempt %d of %d: %s",
            message.event_id,
            tally.failures,
            self._max_attempts,
            tally.error,
            exc_info=error if tally.failures >= self._max_attempts else None,
        )
        if self._gives_up(tally):
            return self._give_up(conn, delivery, message, tally)
        self._metrics.retries.labels(self.name).inc()
        return self._backoff(tally.failures)

    def _gives_up(self, tally: Tally) -> bool:
        return not self._blocks and (tally.failures >= self._max_attempts or tally.losses >= MAX_LOSSES)

    def _give_up(
        self, conn: Connection[Any], delivery: Delivery, message: Message, tally: Tally
    ) -> float | None:
        delay = self._park(conn, delivery, "failed", tally.error, tally.failures)
        if delay is None:
            self._tallies.forget(message)
        return delay

    def _park(
        self, conn: Connection[Any], delivery: Delivery, reason: Reason, error: str, attempts: int
    ) -> float | None:
        """None: it is parked, or was; else how long to wait before trying that again."""
        try:
            parked = self._applying.park(conn, delivery.raw, reason, error, attempts)
        except psycopg.Error as refusal:
            if is_away(conn, refusal):
                raise DatabaseAway(told(refusal)) from refusal
            log.error("the message %s cannot be parked: %s; trying again", delivery.raw.source, told(refusal))
            return self._park_again.step()
        self._park_again.reset()
        if parked:
            self._metrics.parked.labels(self.name, reason).inc()
            log.error("the message %s is parked as %s: %s", delivery.raw.source, reason, error)
        else:
            self._metrics.duplicates.labels(self.name).inc()
        return None

    def _count(self, message: Message, verdict: Verdict) -> None:
        match verdict:
            case "apply":
                self._metrics.applied.labels(self.name).inc()
            case "duplicate":
                self._metrics.duplicates.labels(self.name).inc()
            case "stale":
                self._metrics.regressions.labels(self.name).inc()
                self._metrics.parked.labels(self.name, "stale").inc()
                log.warning("event %s of %s is a late copy: parked", message.event_id, message.key)

    def _reconnect(self) -> None:
        """Until it succeeds or the consumer is stopped; the broker's client is served meanwhile."""
        self._disconnect()
        self._conn = connect_again(self._database_url, self._purpose, self._rest, self._stopping.is_set)
        if self._conn is not None:
            log.info("consumer %s is connected to the database again", self.name)

    def _rest(self, seconds: float) -> None:
        until = monotonic() + seconds
        while not self._stopping.is_set() and (left := until - monotonic()) > 0:
            self._receive(min(left, TICK_SECONDS))

    def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with suppress(psycopg.Error):
                conn.close()

    @property
    def _purpose(self) -> str:
        return f"consumer {self.name}"


def _timed(handler: Handler, seconds: Histogram) -> Handler:
    def timed(conn: Connection[Any], message: Message) -> object:
        with seconds.time():
            return handler(conn, message)

    return timed
