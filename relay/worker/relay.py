"""The relay process: connects, works, reconnects, and stops cleanly on SIGTERM or SIGINT."""

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_never, wait_random_exponential

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

    def run(self, until_empty: bool = False, takeover: bool = False) -> None:
        previous: str | None = None
        while not self._stopping.is_set():
            registration = self._register(takeover, previous)
            if registration is None:
                return
            previous = registration.worker
            self._registration = registration
            if self._stopping.is_set():
                registration.drain()
            try:
                registration.run(until_empty)
                return
            except (psycopg.Error, RelayError) as error:
                log.error("worker %s ends: %s; what was in flight is dropped", registration.worker, error)
            finally:
                self._registration = None

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


def run(settings: Settings, *, until_empty: bool = False, takeover: bool = False) -> int:
    """Relay until stopped or empty; the exit code."""
    spare_the_collector()
    metrics = Metrics()
    publisher = make_publisher(settings)
    try:
        relay = Relay(settings, publisher, metrics)
        metrics.watch(relay.readiness, relay.overdue)
        http = HttpServer(settings, metrics, relay.readiness, relay.liveness)
        health_file = HealthFile(settings.health_file, relay.liveness, relay.readiness)
        http.start()
        try:
            health_file.start()
            with _Signals(relay.stop, settings.grace_seconds):
                relay.run(until_empty, takeover)
        finally:
            health_file.stop()
            http.stop()
    finally:
        publisher.close()
    return 0


class _Signals:
    """The first SIGTERM or SIGINT drains; the second, or the end of the grace period, exits at once."""

    def __init__(self, drain: Callable[[], None], grace_seconds: float) -> None:
        self._drain = drain
        self._grace_seconds = grace_seconds
        self._seen = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

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
