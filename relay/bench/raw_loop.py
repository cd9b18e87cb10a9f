"""The ceiling of the database's part: claims and settles with the relay's own statements, and nothing else.

Two threads as in the relay, a claim at a time on its way from one to the other, so that claims and settles
overlap as they do there. No publisher, no registration, no housekeeping.
"""

import threading
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


def raw_loop(settings: Settings, journal: Journal, number: int, of: int, enough: int | None) -> None:
    """Until everything in this loop's share of the buckets is settled, or `enough` events are."""
    url = settings.database_url.get_secret_value()
    worker = f"raw-{number}"
    with (
        connect(url, "raw claimer") as claiming_conn,
        connect(url, "raw settler", synchronous_commit="off") as settling_conn,
    ):
        table = resolve(claiming_conn, settings.table_name)
        claiming = Claiming(table, worker, settings.destination, settings.lease_seconds)
        claiming.watch(range(number, BUCKETS, of) if of > 1 else None)
        settler = _Settler(settling_conn, Settling(table, worker, settings.completion), journal, enough)
        limits = Limits(settings.batch_size, settings.claim_bytes)
        _claim_all(claiming_conn, claiming, limits, settler)
        settler.end()


def _claim_all(conn: Connection[Any], claiming: Claiming, limits: Limits, settler: "_Settler") -> None:
    scan, lap = Scan(), 0
    while True:
        claim = claiming.claim(conn, scan, limits).claim
        if claim is not None:
            lap = scan.laps
            if not settler.take(claim):
                return
        elif scan.laps > lap and scan.later == THE_PAST:
            # The keys of what is in flight were passed over: one more lap when nothing is.
            if settler.idle:
                return
            settler.in_flight.wait_empty(1.0)
            lap = scan.laps


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
        self.in_flight = InFlight()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        return self.in_flight.wait_empty(0)

    def take(self, claim: Claim) -> bool:
        """False: enough was settled, or it failed."""
        self.in_flight.enter()
        return self._claimed.put(claim)

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
                    self._claimed.abandon()
        except BaseException as error:  # noqa: BLE001 - raised again by end()
            self._failure = error
            self._claimed.abandon()


def _settlement(event: Event) -> Settlement:
    if event.key != POISON_KEY:
        return COMPLETE
    return BLOCK if event.event_type == POISON_TYPE else RELEASE
