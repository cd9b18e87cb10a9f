"""One relay under test, or one raw loop, in a process of its own: its CPU and memory are nobody else's.

The parent sends a Job, hears `ready` when everything is imported and made, sends `go`, and gets a Done or
a failure. It may send `stop` meanwhile. When the parent is gone, so is the child.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from time import monotonic, process_time
from typing import Any, Literal

from publishers.memory import MemoryPublisher
from relay.bench.journal import Journal
from relay.bench.local_processes import peak_rss
from relay.bench.raw_loop import raw_loop
from relay.bench.watched import Watched
from relay.errors import RelayError
from relay.metrics import Metrics
from relay.outcome import Publisher
from relay.plugins import make_publisher
from relay.settings import Settings
from relay.worker.registration import Registration
from relay.worker.relay import spare_the_collector
from relay.worker.state import Hold

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    settings: Settings
    does: Literal["relay", "relay without a broker", "raw loop"]
    directory: Path
    number: int = 0
    of: int = 1
    until_empty: bool = True
    stop_after: int | None = None  # events

    @property
    def journal_is_evidence(self) -> bool:
        """What was published can be read back nowhere else."""
        return self.does != "relay" or self.settings.publisher not in ("kafka", "rabbitmq", "stdout")

    @property
    def journal(self) -> Path:
        return self.directory / f"{self.number}.journal"

    @property
    def printed(self) -> Path:
        """What the stdout publisher prints."""
        return self.directory / f"{self.number}.out"

    @property
    def log(self) -> Path:
        return self.directory / f"{self.number}.log"


@dataclass(frozen=True)
class Done:
    started: float  # monotonic
    cpu: float
    peak_rss: int | None
    kept: list[tuple[str, int]] | None  # key and position of what the publisher itself has kept


def main(pipe: Pipe, job: Job) -> None:
    """The process's target; says what went wrong instead of printing it."""
    logging.basicConfig(filename=job.log, level=logging.WARNING)
    sys.stdout = job.printed.open("w")
    try:
        pipe.send(_work(pipe, job))
    except EOFError:
        pass
    except RelayError as error:
        pipe.send(error)
    except Exception as error:
        log.exception("the bench's relay failed")
        pipe.send(RelayError(f"a process of the bench failed: {type(error).__name__}: {error}"))
    sys.stdout.flush()


def _work(pipe: Pipe, job: Job) -> Done:
    journal = Journal(job.journal)
    if job.does == "raw loop":
        _wait_for_go(pipe)
        return _measured(lambda: raw_loop(job.settings, journal, job.number, job.of, job.stop_after), journal)
    spare_the_collector()
    publisher = _publisher(job)
    try:
        _wait_for_go(pipe)
        watched = Watched(publisher, journal, job.journal_is_evidence)
        done = _measured(lambda: _relay(pipe, job, watched), journal)
    finally:
        publisher.close()
    kept = getattr(publisher, "delivered", None)
    if kept is None or job.does != "relay":
        return done
    return replace(done, kept=[(event.key, event.position) for event in kept])


def _publisher(job: Job) -> Publisher:
    if job.does != "relay":
        return MemoryPublisher({"discard": True})
    # A name that only a bench knows: whoever relays by it would lose events.
    return MemoryPublisher() if job.settings.publisher == "memory" else make_publisher(job.settings)


def _wait_for_go(pipe: Pipe) -> None:
    pipe.send("ready")
    pipe.recv()


def _measured(work: Callable[[], None], journal: Journal) -> Done:
    started, cpu = monotonic(), process_time()
    work()
    spent = process_time() - cpu
    journal.close()
    return Done(started, spent, peak_rss(), None)


def _relay(pipe: Pipe, job: Job, publisher: Watched) -> None:
    registration = Registration(job.settings, publisher, Hold(), Metrics())
    publisher.enough_after(job.stop_after, registration.drain)
    threading.Thread(target=_heed, args=(pipe, registration.drain), daemon=True).start()
    registration.run(until_empty=job.until_empty)


def _heed(pipe: Any, stop: Callable[[], None]) -> None:
    """Stop when told to; end with the parent."""
    with suppress(OSError):
        try:
            pipe.recv()
        except EOFError:
            os._exit(1)
        stop()
