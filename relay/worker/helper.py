"""Claims beside the claimer while there is a backlog.

A claim is work of one session of the database, and one session alone does not keep a publisher busy. The
helper has a session of its own and begins half a lap away. It takes what is plainly due; whatever
takes judgement (probes, limits, events that lost a lease) is left to the claimer. While claims are not
filled it sleeps.
"""

import threading
from typing import Any

from psycopg import Connection

from relay.scan import BUCKETS, Scan
from relay.store.claim import Claiming
from relay.store.look import Limits
from relay.worker.intake import Intake
from relay.worker.state import Hold


class Helper:
    def __init__(self, conn: Connection[Any], claiming: Claiming, intake: Intake, hold: Hold) -> None:
        self._conn = conn
        self._claiming = claiming
        self._intake = intake
        self._hold = hold
        self._scan = Scan()
        self._limits: Limits | None = None
        self._claimer_at = 0
        self._called = threading.Event()
        self._lock = threading.Lock()
        self._resting = True
        self._stopping = False

    def call(self, limits: Limits, at: int) -> None:
        """There is more than one claim takes; the claimer is at this bucket."""
        with self._lock:
            self._limits, self._claimer_at = limits, at
            self._resting = False
            self._called.set()

    @property
    def resting(self) -> bool:
        """It claims nothing and locks nothing before it is called again."""
        return self._resting

    def stop(self) -> None:
        self._stopping = True
        self._called.set()

    def run(self) -> None:
        """Until stopped."""
        while self._called.wait() and not self._stopping:
            self._called.clear()
            # Far from the claimer: whoever follows another finds what that one has just taken.
            self._scan = Scan(start=(self._claimer_at + BUCKETS // 2) % BUCKETS)
            while self._filled():
                pass
            with self._lock:
                self._resting = not self._called.is_set()

    def _filled(self) -> bool:
        """Claim once; whether it was filled, so that another is worth its while."""
        limits = self._limits
        if limits is None or self._stopping or self._hold.remaining() > 0:
            return False
        look, _ = self._intake.take(lambda: self._claiming.claim(self._conn, self._scan, limits))
        return look.claim is not None and look.full
