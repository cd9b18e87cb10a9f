"""Actions on many events, one at a time, on a connection of their own: begun, watched, stopped.

A job goes on when the page that began it is closed; it ends with the process, between two of its batches.
"""

import itertools
import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from time import time
from typing import Any

import psycopg

from relay.errors import RelayError
from relay.settings import Settings
from relay.store import redrive
from relay.store.connection import connect, resolve
from relay.web.desk import sentence

log = logging.getLogger(__name__)

JOBS_REMEMBERED = 20
STATEMENT_TIMEOUT = "60s"


class Occupied(RelayError):
    """Another action is under way."""


@dataclass
class Job:
    number: int
    action: redrive.Action
    which: redrive.Filter
    actor: str
    reason: str
    started: float
    state: str = "running"  # then done, stopped or failed
    progress: redrive.Progress = field(default_factory=redrive.Progress)
    trouble: str | None = None
    stopping: bool = False

    def as_json(self) -> dict[str, Any]:
        done = self.progress
        return {
            "number": self.number,
            "action": self.action,
            "state": self.state,
            "changed": done.changed,
            "in_flight": done.in_flight,
            "gone": done.gone,
            "started": self.started,
            "trouble": self.trouble,
        }


class Jobs:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._numbers = itertools.count(1)
        self._thread: threading.Thread | None = None

    def begin(self, action: redrive.Action, which: redrive.Filter, actor: str, reason: str) -> Job:
        """Start it; Occupied where another one runs."""
        with self._lock:
            if any(job.state == "running" for job in self._jobs.values()):
                raise Occupied("another action is under way: wait for its end, or stop it")
            job = Job(next(self._numbers), action, which, actor, reason, time())
            self._jobs[job.number] = job
            while len(self._jobs) > JOBS_REMEMBERED:
                self._jobs.popitem(last=False)
            self._thread = threading.Thread(target=self._run, args=[job], name="relay-pages-job", daemon=True)
            self._thread.start()
        return job

    def get(self, number: int) -> Job | None:
        with self._lock:
            return self._jobs.get(number)

    def stop(self) -> None:
        """End what runs after its batch."""
        with self._lock:
            for job in self._jobs.values():
                job.stopping = True
        if self._thread is not None:
            self._thread.join(5)

    def _run(self, job: Job) -> None:
        try:
            self._work(job)
            job.state = "stopped" if job.stopping else "done"
        except (RelayError, psycopg.Error) as error:
            job.trouble = sentence(error)
            job.state = "failed"
        except BaseException:
            job.trouble, job.state = "an error of the relay: see its log", "failed"
            raise

    def _work(self, job: Job) -> None:
        url = self._settings.database_url.get_secret_value()
        with connect(url, "pages action", statement_timeout=STATEMENT_TIMEOUT) as conn:
            table = resolve(conn, self._settings.table_name)
            if job.action == "retry":
                steps = redrive.retry(conn, table, job.which, actor=job.actor, reason=job.reason or None)
            else:
                steps = redrive.skip(conn, table, job.which, actor=job.actor, reason=job.reason)
            for progress in steps:
                job.progress = progress
                if job.stopping:
                    return
