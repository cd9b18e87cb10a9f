"""The last half hour of an outbox in numbers, for any number of pages at the cost of one.

One thread takes a sample every two seconds while somebody watches and every fifteen otherwise, so that who
opens the page sees where things come from. While the database is out of reach samples say why.
"""

import logging
import threading
from collections import deque
from dataclasses import asdict
from time import monotonic, time
from typing import Any, TypeAlias

import psycopg

from relay.errors import RelayError
from relay.reading import Count
from relay.store import overview
from relay.store.connection import StoreConnection, Table
from relay.store.limits import TooSlow
from relay.web.desk import Desk, sentence
from relay.web.trend import Flow, Trend

log = logging.getLogger(__name__)

WATCHED_SECONDS = 2.0
UNWATCHED_SECONDS = 15.0
ATTENTION_SECONDS = 20.0
KEPT_SECONDS = 1800.0
COMPLETED_SECONDS = 10.0

Sample: TypeAlias = dict[str, Any]


class Live:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._trend = Trend()
        # Its time alone would keep everything once the clock is set back.
        self._samples: deque[Sample] = deque(maxlen=round(KEPT_SECONDS / WATCHED_SECONDS))
        self._changed = threading.Condition()
        self._number = 0
        self._watched = 0.0
        self._completed: Count | None = None
        self._count_completed = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="relay-pages-live", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def since(self, number: int) -> list[Sample]:
        """The samples after that number; somebody watches."""
        with self._changed:
            slept = monotonic() - self._watched > ATTENTION_SECONDS
            self._watched = monotonic()
            if slept:
                self._changed.notify_all()
            return [sample for sample in self._samples if sample["number"] > number]

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._keep(self._sample())
            self._wait()

    def _keep(self, sample: Sample) -> None:
        with self._changed:
            self._number += 1
            self._samples.append(sample | {"number": self._number, "at": time()})
            while self._samples[0]["at"] < time() - KEPT_SECONDS:
                self._samples.popleft()

    def _wait(self) -> None:
        """Until the next sample is due; a first watcher does not wait for that."""
        with self._changed:
            if not self._stopping.is_set():
                watched = monotonic() - self._watched < ATTENTION_SECONDS
                self._changed.wait(WATCHED_SECONDS if watched else UNWATCHED_SECONDS)

    def _sample(self) -> Sample:
        try:
            flow, counts = self._desk.ask(self._look)
        except (RelayError, psycopg.Error) as error:
            return {"trouble": sentence(error)}
        except Exception:
            log.exception("a sample for the operator's pages failed: the next one is tried")
            return {"trouble": "an error of the relay: see its log"}
        return {"rates": flow.rates, "workers": flow.workers, "latency": flow.latency, "counts": counts}

    def _look(self, conn: StoreConnection, table: Table) -> tuple[Flow, dict[str, Any] | None]:
        flow = self._trend.add(overview.tallies(conn, table))
        known = self._completed if monotonic() < self._count_completed else None
        try:
            counts = overview.glance(conn, table, known)
        except TooSlow:
            return flow, None
        if known is None:
            self._completed, self._count_completed = counts.completed, monotonic() + COMPLETED_SECONDS
        return flow, asdict(counts)
