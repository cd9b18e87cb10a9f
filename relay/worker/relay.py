"""The relay process: connects, works, reconnects, and stops cleanly on SIGTERM or SIGINT.

Exit codes: 0 when it was stopped and has drained, or when nothing is left (`until_empty`); 130 when it was
stopped before that; 1 when the database was lost while it drained, so that others must take over.
"""

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable
from enum import IntEnum
from time import monotonic
from typing import Any

import psycopg
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_never, wait_random_exponential

from relay.backoff import Rising
from relay.errors import RelayError, SchemaError, SettingsError
from relay.health_file import HealthFile
from relay.http import HttpServer
from relay.metrics import Metrics
from relay.outcome import Publisher
from relay.plugins import make_publisher
from relay.settings import Settings
from relay.worker.registration import Registration
from relay.worker.state import Hold

log = logging.getLogger(__name__)

# Of the database, while it still may be slow rather than gone.
SILENT_SECONDS = 10.0
# Of a publisher: first it is not relaying, then nothing but a restart will help.
LATE_SECONDS = 3.0
HUNG_SECONDS = 60.0
# A life that ends sooner was no success: without a rest the next one would fail as fast.
BRIEF_SECONDS = 10.0


class Exit(IntEnum):
    DONE = 0
    CUT_OFF = 1
    INTERRUPTED = 130


class Relay:
    def __init__(self, settings: Settings, publisher: Publisher, metrics: Metrics) -> None:
        self._settings = settings
        self._publisher = publisher
        self._metrics = metrics
        self._hold = Hold()
        self._stopping = threading.Event()
        self._registration: Registration | None = None

    def stop(self) -> None:
        """Finish what is in flight, then return from run()."""
        self._stopping.set()
        if registration := self._registration:
            registration.drain()

    def readiness(self) -> str | None:
        """None when relaying; otherwise why not."""
        registration = self._registration
        if self._stopping.is_set():
            return "draining: finishing what is in flight"
        if registration is None:
            return "not connected to the database"
        if (silence := registration.silence()) > SILENT_SECONDS:
            return f"the database has not answered for {silence:.0f} s"
        if (overdue := registration.overdue()) > LATE_SECONDS:
            return f"the publisher has not returned {overdue:.0f} s after its deadline"
        if self._hold.reason:
            return f"claiming pauses: {self._hold.reason}"
        return None

    def liveness(self) -> str | None:
        """None while a restart would not help; asks no database, and no broker."""
        registration = self._registration
        if registration is None:
            return None
        if (overdue := registration.overdue()) > HUNG_SECONDS:
            return f"the publisher hangs: it has not returned {overdue:.0f} s after its deadline"
        if (neglect := registration.neglect()) > HUNG_SECONDS:
            return f"the relay hangs: its threads have not been looked after for {neglect:.0f} s"
        return None

    def overdue(self) -> float:
        """Seconds that the publisher has not returned after its deadline."""
        registration = self._registration
        return registration.overdue() if registration else 0.0

    def run(self, until_empty: bool = False, takeover: bool = False) -> Exit:
        previous: str | None = None
        rests = Rising(0.2, 10.0)
        while not self._stopping.is_set():
            registration = self._register(takeover, previous)
            if registration is None:
                break
            previous = registration.worker
            self._registration = registration
            if self._stopping.is_set():
                registration.drain()
            began = monotonic()
            try:
                registration.run(until_empty)
                break
            except (psycopg.Error, RelayError) as error:
                log.error("worker %s ends: %s; what was in flight is dropped", registration.worker, error)
                if self._stopping.is_set():
                    return Exit.CUT_OFF
            finally:
                self._registration = None
            if monotonic() - began >= BRIEF_SECONDS:
                rests.reset()
            else:
                self._wait(rests.step())
        return Exit.INTERRUPTED if until_empty and self._stopping.is_set() else Exit.DONE

    def _wait(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _register(self, takeover: bool, previous: str | None) -> Registration | None:
        """A new registration; a first one that fails is the user's to know, later ones are tried again."""

        def worth_another_try(error: BaseException) -> bool:
            fixed = isinstance(error, (SettingsError, SchemaError))
            return previous is not None and isinstance(error, (psycopg.Error, RelayError)) and not fixed

        def tell(state: RetryCallState) -> None:
            log.warning("%s; trying again", state.outcome.exception() if state.outcome else "no connection")

        for attempt in Retrying(
            retry=retry_if_exception(worth_another_try),
            wait=wait_random_exponential(multiplier=0.2, max=10),
            stop=stop_never,
            sleep=self._wait,
            before_sleep=tell,
            reraise=True,
        ):
            if self._stopping.is_set():
                return None
            with attempt:
                return Registration(
                    self._settings, self._publisher, self._hold, self._metrics, takeover, previous
                )
        return None


def spare_the_collector() -> None:
    """Batches come and go by the thousand and hold no cycles: looking for some in them is time lost."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def run(
    settings: Settings,
    *,
    until_empty: bool = False,
    takeover: bool = False,
    told_to_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Relay until stopped or empty; the exit code. told_to_stop: whether a signal came before this began."""
    # First of all: until then the process with id 1 of a container never hears of a SIGTERM.
    with _Signals(settings.grace_seconds, told_to_stop) as signals:
        spare_the_collector()
        metrics = Metrics()
        publisher = make_publisher(settings)
        try:
            relay = Relay(settings, publisher, metrics)
            signals.drain_by(relay.stop)
            metrics.watch(relay.readiness, relay.overdue)
            http = HttpServer(settings, metrics, relay.readiness, relay.liveness)
            health_file = HealthFile(settings.health_file, relay.liveness, relay.readiness)
            http.start()
            try:
                health_file.start()
                return relay.run(until_empty, takeover)
            finally:
                health_file.stop()
                http.stop()
        finally:
            publisher.close()


class _Signals:
    """The first SIGTERM or SIGINT drains; the second, or the end of the grace period, exits at once."""

    def __init__(self, grace_seconds: float, told_before: Callable[[], bool]) -> None:
        self._grace_seconds = grace_seconds
        self._told_before = told_before
        self._drain: Callable[[], None] = lambda: None  # until there is something to drain
        self._seen = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        if self._told_before() and not self._seen:
            self._handle(signal.SIGTERM, None)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def drain_by(self, drain: Callable[[], None]) -> None:
        self._drain = drain
        if self._seen:
            drain()

    def _handle(self, number: int, frame: Any) -> None:
        if self._seen:
            log.error("stopped at once: events in flight will be published again by others")
            os._exit(1)
        self._seen = True
        log.info("draining: finishing what is in flight")
        # Not in the handler itself: the main thread may hold any lock at this moment.
        threading.Thread(target=self._drain, daemon=True).start()
        deadline = threading.Timer(self._grace_seconds, self._overdue)
        deadline.daemon = True
        deadline.start()

    def _overdue(self) -> None:
        log.error("the grace period of %.0f s is over: exiting; others take over", self._grace_seconds)
        os._exit(1)
