"""Claims while there is work, sleeps while there is none.

Owns one connection. Where a claim is filled it calls the helper, who claims beside it.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

from psycopg import Connection

from relay.backoff import Rising
from relay.pace import Paces
from relay.pause import Subject
from relay.scan import EARLIEST, PARTS, THE_PAST, Laps, Scan, Tail
from relay.store.claim import Claiming
from relay.store.claim_sql import LATER_ROWS_PER_CLAIM
from relay.store.connection import trip_seconds
from relay.store.floor import Floor
from relay.store.look import Limits, Look
from relay.store.pauses import Breakers
from relay.store.wake import Alarm
from relay.worker.bell import Bell
from relay.worker.helper import Helper
from relay.worker.intake import Intake
from relay.worker.state import Hold, InFlight

LONGEST_SLEEP = 0.25
# A claim costs much the same for one event as for ten. Where it takes so long that several have come, the
# next begins no sooner than this after it: fewer claims leave the machine to those who wait for it.
FEW_EVENTS = 64
GATHER_PER_EVENT = 0.0005
LONGEST_GATHER = 0.004
# Ownership is a hint that may be wrong for a while: what nobody claimed for so long is anyone's.
SWEEP_SECONDS = 1.0
SWEEP_AGE = 5.0
# At the end of the table, behind keys that are held: so often at once.
LOOKS_AT_THE_END = 4
# Events that lost a lease go out in small groups, then alone, so that one that kills its worker
# does not take others to their last attempt.
LOST_ONCE = (1, 1)
LOST_MORE = (2, 1_000_000)
GROUP_OF_LOST = 16


def gathering(events: int) -> float:
    """Seconds from the beginning of a claim that took so many to that of the next."""
    return min(events * GATHER_PER_EVENT, LONGEST_GATHER) if events < FEW_EVENTS else 0.0


class Claimer:
    def __init__(
        self,
        conn: Connection[Any],
        claiming: Claiming,
        breakers: Breakers,
        alarm: Alarm | None,
        limits: Limits,
        paces: Paces,
        intake: Intake,
        helper: Helper,
        floor: Floor,
        in_flight: InFlight,
        bell: Bell,
        hold: Hold,
        first_bucket: int = 0,
    ) -> None:
        self._conn = conn
        self._claiming = claiming
        self._breakers = breakers
        self._alarm = alarm
        self._limits = replace(limits, spared=paces.subjects)
        self._paces = paces
        self._intake = intake
        self._helper = helper
        self._in_flight = in_flight
        self._bell = bell
        self._hold = hold
        self._scan = Scan(start=first_bucket)
        self._spent = 0.0  # seconds in claims, without those that the publisher kept it waiting
        self._laps = Laps()
        self._tail = Tail()
        self._floor = floor
        self._given = 0  # the position of an event that was seen
        self._held_back = False
        self._sweep = Scan(start=first_bucket)
        self._next_sweep = monotonic() + SWEEP_SECONDS
        self._last = (0.0, 0)  # when the last claim began, and how many events it took
        self._alone = False  # the last look took one event, and there was no other
        self._blocked = False  # a look of this lap met keys in flight, or buckets that others had locked
        self._strokes = 0  # of the bell, before this lap
        self._polls = Rising(0.001, LONGEST_SLEEP)
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self, until_empty: bool = False) -> None:
        """Until stopped, or until nothing is left to publish now, in whoever's buckets."""
        self._limits = replace(self._limits, everywhere=until_empty)
        if self._alarm:
            self._alarm.listen(self._conn)
        self._laps.trip = trip_seconds(self._conn)
        while not self._stopping.is_set():
            if (wait := self._hold.remaining()) > 0:
                self._stopping.wait(min(wait, 1.0))
            elif self._found_in_a_lap():
                self._polls.reset()
                if self._alone and self._alarm and self._alarm.armed and not until_empty:
                    self._doze(self._alarm)
                else:
                    self._gather()
            elif not until_empty or self._held_back:
                self._sleep()
            elif self._nothing_left():
                return

    def _gather(self) -> None:
        """After a few events: rest for a moment, so that what comes meanwhile goes together."""
        began, events = self._last
        rest = began + gathering(events) - monotonic()
        if rest > 0:
            self._stopping.wait(rest)

    def _nothing_left(self) -> bool:
        """What was in flight could have come back, or met a breaker; one more lap says it did not.

        Not while the helper is at work: a lap passes over the buckets that it has locked.
        """
        quiet = self._in_flight.wait_empty(0.05) and self._helper.resting
        return quiet and not self._found_in_a_lap() and not self._held_back

    def _found_in_a_lap(self) -> bool:
        """Claim something; False: all buckets and everything that waited were looked at in vain."""
        self._strokes, self._blocked, self._alone = self._bell.strokes, False, False
        limits = self._limits
        if self._laps.dear and not limits.everywhere:
            if not self._laps.behind:
                return self._found_in_a_part_or_at_the_end()
            limits = replace(limits, floor=self._floor.value)
        self._tail = Tail()
        # Behind a cursor is not all of a bucket: where there is any, once more around.
        enough = self._scan.laps + (2 if self._scan.keys else 1)
        while not self._stopping.is_set():
            laps = self._scan.laps
            got = self._round(limits)
            if self._scan.laps > laps:
                self._laps.lap_ended()
                if limits.floor is not None:
                    self._floor.rise(self._conn, self._given, steps=PARTS)
            if got:
                return True
            if self._scan.laps >= enough and self._scan.later == THE_PAST:
                return False
        return False

    def _found_in_a_part_or_at_the_end(self) -> bool:
        got = False
        if self._laps.due(monotonic()):
            floor = None if self._laps.thorough else self._floor.value
            spent, self._last = self._spent, (0.0, 0)
            got = self._round(replace(self._limits, part=self._laps.part, floor=floor))
            spent, risen = self._spent - spent, monotonic()
            self._floor.rise(self._conn, self._given)
            now = monotonic()
            self._laps.part_ended(now, spent, now - risen, events=self._last[1])
        return self._look_at_the_end() or got

    def _round(self, limits: Limits) -> bool:
        """Look once, and once more for those that lost a lease; True if anything was claimed."""
        started, spent = monotonic(), self._spent
        before = self._scan.copy()
        look = self._look(self._scan, limits)
        events = len(look.claim.events) if look.claim else 0
        self._laps.looked(self._spent - spent, events, full=look.full)
        self._blocked |= look.blocked or look.skipped > 0
        # Few events that fill a claim are large: enough of them are in memory.
        if events >= FEW_EVENTS and look.full and limits.part is None:
            self._helper.call(limits, self._scan.start)
        more = False
        for subject in look.probes:
            more |= self._probe(subject)
        allowed = self._paces.ready(started)
        for subject, number in allowed.items():
            more |= self._measured(before, subject, number)
        self._held_back = look.breakers > 0 or len(allowed) < len(self._paces.subjects)
        more |= self._take_lost(before, look, limits)
        if started >= self._next_sweep and not self._claiming.watches_all:
            more |= self._sweep_all(started, limits)
        lost = look.lost_once or look.lost_more
        whole = look.whole and limits.part is None
        self._alone = events == 1 and whole and not (more or lost or self._held_back)
        return more or look.claim is not None

    def _take_lost(self, before: Scan, look: Look, limits: Limits) -> bool:
        """Those that the look left alone because they lost a lease."""
        got = False
        if look.lost_once:
            got |= self._look(before.copy(), limits.suspects(GROUP_OF_LOST, LOST_ONCE)).claim is not None
        if look.lost_more:
            got |= self._look(before.copy(), limits.suspects(1, LOST_MORE)).claim is not None
        return got

    def _sweep_all(self, now: float, limits: Limits) -> bool:
        """What an owner leaves lying, whoever that is; again at once while some of it lost leases."""
        limits = replace(limits, min_age=SWEEP_AGE, everywhere=True)
        before = self._sweep.copy()
        look = self._look(self._sweep, limits)
        lost = self._take_lost(before, look, limits)
        self._next_sweep = now + (0.0 if lost else SWEEP_SECONDS)
        return lost or look.claim is not None

    def _measured(self, before: Scan, subject: Subject, events: int) -> bool:
        """What a limit allows to go to its destination now."""
        limits = replace(self._limits, rows=min(events, self._limits.rows), only=subject, spared=())
        claim = self._look(before.copy(), limits).claim
        self._paces.take(subject, len(claim.events) if claim else 0)
        return claim is not None

    def _probe(self, subject: Subject) -> bool:
        """One event to see whether a breaker may close, if no other worker is at it."""
        if not self._breakers.probe(self._conn, subject, self._intake.publish_seconds):
            return False
        scan = Scan(start=self._scan.start)
        limits = replace(self._limits, rows=1, only=subject, probe=True, spared=(), everywhere=True)
        while (scan.laps == 0 or scan.later != THE_PAST) and not self._stopping.is_set():
            if self._look(scan, limits).claim:
                return True
        # Nothing that it could hold.
        self._breakers.close(self._conn, subject)
        return False

    def _look(self, scan: Scan, limits: Limits) -> Look:
        return self._take(limits, lambda: self._claiming.claim(self._conn, scan, limits))

    def _look_at_the_end(self) -> bool:
        for _ in range(LOOKS_AT_THE_END):
            began = self._tail.after
            if self._found_at_the_end():
                return True
            if began == self._tail.after == EARLIEST:
                break
        return False

    def _found_at_the_end(self) -> bool:
        limits = replace(self._limits, floor=self._floor.value)
        look = self._take(limits, lambda: self._claiming.claim_tail(self._conn, self._tail, limits))
        # Where most of what was found is held, it does not tell how much a lap would find.
        taken = len(look.claim.events) if look.claim else 0
        waiting = look.waiting if taken >= LATER_ROWS_PER_CLAIM else 0
        self._laps.looked_at_the_end(taken, cut=look.full, waiting=waiting, saves=not self._floor.stuck)
        self._blocked |= look.blocked
        return look.claim is not None

    def _take(self, limits: Limits, claim: Callable[[], Look]) -> Look:
        started = monotonic()
        look, took = self._intake.take(claim, limits.only if limits.probe else None)
        self._spent += took
        if look.claim:
            self._last = (started, len(look.claim.events))
            self._given = look.claim.events[-1].position
        return look

    def _sleep(self) -> None:
        if self._alarm is None:
            self._stopping.wait(self._laps.longest_sleep(monotonic(), self._polls.step()))
        elif not self._alarm.arm(self._conn):
            self._doze(self._alarm)

    def _doze(self, alarm: Alarm) -> None:
        """Until something was inserted, or has left behind which others were seen to wait."""
        if self._blocked and not self._bell.await_next(self._strokes):
            return
        longest = self._laps.longest_sleep(monotonic(), LONGEST_SLEEP)
        if alarm.sleep(self._conn, longest, self._bell):
            self._scan.idle = False
            self._laps.woken()
