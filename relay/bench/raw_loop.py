"""The ceiling of the database's part: claims and settles with the relay's own statements, and nothing else.

Three threads and sessions as in the relay: two claim, half a lap from each other, and hand over to the one
that settles, a claim at a time on its way, so that claims and settles overlap as they do there. No publisher,
no registration, no housekeeping.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

from psycopg import Connection

from relay.bench.journal import Journal
from relay.bench.plan import POISON_KEY, POISON_TYPE
from relay.event import Event
from relay.scan import BUCKETS, THE_PAST, Scan
from relay.settings import Settings
from relay.settlement import Settlement
from relay.store.claim import Claiming
from relay.store.connection import connect, resolve
from relay.store.look import Claim, Limits
from relay.store.settle import Settling
from relay.worker.channel import Channel
from relay.worker.state import InFlight

COMPLETE = Settlement("complete")
BLOCK = Settlement("block", "poisoned by the bench")
RELEASE = Settlement("release")
# Who found nothing but keys in flight looks again after so long, or when none is in flight any more.
REST_SECONDS = 0.02


def raw_loop(settings: Settings, journal: Journal, number: int, of: int, enough: int | None) -> None:
    """Until everything in this loop's share of the buckets is settled, or `enough` events are."""
    url = settings.database_url.get_secret_value()
    worker = f"raw-{number}"
    with (
        connect(url, "raw claimer") as claimer,
        connect(url, "raw helper") as helper,
        connect(url, "raw settler", synchronous_commit="off") as settling_conn,
        ThreadPoolExecutor(2) as threads,
    ):
        table = resolve(claimer, settings.table_name)
        settler = _Settler(settling_conn, Settling(table, worker, settings.completion), journal, enough)
        limits = Limits(settings.batch_size, settings.claim_bytes)
        loops = []
        for conn, scan in ((claimer, Scan()), (helper, Scan(start=BUCKETS // 2))):
            claiming = Claiming(table, worker, settings.destination, settings.lease_seconds)
            claiming.watch(range(number, BUCKETS, of) if of > 1 else None)
            loops.append(threads.submit(_claim_all, conn, claiming, scan, limits, settler))
        for loop in loops:
            loop.result()
        settler.end()


def _claim_all(
    conn: Connection[Any], claiming: Claiming, scan: Scan, limits: Limits, settler: "_Settler"
) -> None:
    """Until a whole lap found nothing, with nothing in flight when it began, and nothing taken by the other.

    The keys of what is in flight are passed over, and so are the buckets that the other looks into. Whoever
    ends last has seen that nothing is left.
    """
    lap, taken, quiet = scan.laps, settler.taken, False
    while not settler.over:
        claim = claiming.claim(conn, scan, limits).claim
        if claim is not None:
            settler.take(claim)
            lap = scan.laps
        elif scan.laps >= lap + 2 and scan.later == THE_PAST:  # two: the first began anywhere in the ring
            if quiet and settler.taken == taken:
                return
            settler.in_flight.wait_empty(REST_SECONDS)
            lap, taken, quiet = scan.laps, settler.taken, settler.in_flight.wait_empty(0)


class _Settler:
    """The thread that settles what it is given."""

    def __init__(
        self, conn: Connection[Any], settling: Settling, journal: Journal, enough: int | None
    ) -> None:
        self._conn = conn
        self._settling = settling
        self._journal = journal
        self._enough = enough
        self._claimed: Channel[Claim] = Channel(1)
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self.taken = 0
        self.over = False  # enough was settled, or it failed: nothing more is taken
        self.in_flight = InFlight()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self, claim: Claim) -> None:
        self.in_flight.enter()
        with self._lock:
            self.taken += 1
        self._claimed.put(claim)

    def end(self) -> None:
        self._claimed.close()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while (claim := self._claimed.get()) is not None:
                self._settling.settle(self._conn, claim, [_settlement(event) for event in claim.events])
                self._journal.write(monotonic(), [e.position for e in claim.events if e.key != POISON_KEY])
                self.in_flight.leave()
                if self._enough is not None and self._journal.events >= self._enough:
                    self._refuse_more()
        except BaseException as error:  # noqa: BLE001 - raised again by end()
            self._failure = error
            self._refuse_more()

    def _refuse_more(self) -> None:
        self.over = True
        self._claimed.abandon()


def _settlement(event: Event) -> Settlement:
    if event.key != POISON_KEY:
        return COMPLETE
    return BLOCK if event.event_type == POISON_TYPE else RELEASE
