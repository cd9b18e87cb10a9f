"""Where the next claim looks: a bucket to start from, a cursor inside each bucket, a cursor in time.

Without the cursors the first keys of the first buckets would be served for ever. Cursors are hints:
a lost one costs fairness for a moment, never an event. Pure: nothing here does I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

BUCKETS = 1024
# Each locked bucket is an entry in the lock table that all sessions of the server share.
BUCKETS_PER_CLAIM = 64
# A lap through the buckets can be made in so many parts.
PARTS = 16
# A lap is dear that takes so much longer than its looks and their events do. A disk that stalls makes one or
# two of them slow; dead entries make all of them slow.
DEAR_SECONDS = 0.03
SECONDS_PER_LOOK = 0.003
TRIPS_PER_LOOK = 5  # to the server, at most
SECONDS_PER_EVENT = 50e-6
DEAR_LAPS = 3
MOST_DEAR_LAPS = 3 << 8
RESTS = 4
# What a floor that rises saves of a lap: to pass an entry by its position alone costs so much less.
FLOOR_SAVES = 20
# At the end of the table a claim takes few events: who has left some behind so often in a row needs laps.
BEHIND = 16
# Of the laps in parts one in so many looks below the floor too.
THOROUGH = 8
# Whoever inserts at the end of a table fills pages that were taken some time ago, seldom so many back.
TAIL_BLOCKS = 64
# Where nothing is known yet.
FIRST_TAIL_BLOCKS = 4096
THE_PAST = (datetime(1, 1, 1, tzinfo=UTC), 0)
# A backlog is deep whose positions lie so far apart. Of one, a lap takes the oldest part: enough to fill
# claims from the buckets that one may lock, and not so little that to pass the others costs what it saves.
DEEP = 1_000_000
LEAST_OF_DEEP = 250_000
PART_OF_DEEP = 32
FOREVER = 2**63 - 1
EARLIEST = -(2**63)


@dataclass
class Scan:
    start: int = 0
    keys: dict[int, str] = field(default_factory=dict)  # bucket → last key looked at; absent: from its first
    later: tuple[datetime, int] = THE_PAST  # last row looked at among those that waited
    # Of a deep backlog: take nothing from this position on. Events that were written together lie together,
    # those of one bucket lie everywhere: to take all of a bucket at once touches every page for each event.
    horizon: int = FOREVER
    later_rests: bool = False  # keys that waited filled the last claim: the next is for fresh ones alone
    laps: int = 0  # how often it came around the buckets and left nothing out
    idle: bool = False  # the last look found nothing at all
    width: int = BUCKETS_PER_CLAIM  # how many buckets the next claim is likely to need

    def copy(self) -> "Scan":
        return replace(self, keys=dict(self.keys))

    def after(self, bucket: int) -> str:
        return self.keys.get(bucket, "")

    def pass_over(self, buckets: Sequence[int]) -> None:
        """Go on behind buckets that others hold; their cursors stay."""
        self._go_on_at((buckets[-1] + 1) % BUCKETS if buckets else self.start)

    def _go_on_at(self, start: int) -> None:
        if start <= self.start:
            self._come_around()
        self.start = start

    def _come_around(self) -> None:
        """A lap under a horizon is none."""
        self.laps += self.horizon == FOREVER
        self.horizon = FOREVER

    def took(self, positions: Sequence[int]) -> None:
        """After a claim that was filled: where it came from a deep backlog, go on with its oldest part."""
        first, last = min(positions), max(positions)
        if self.horizon == FOREVER and last - first > DEEP:
            self.horizon = first + max(LEAST_OF_DEEP, (last - first) // PART_OF_DEEP)

    def advance(self, looked: Sequence[int], reached: Sequence[tuple[int, str]], *, full: bool) -> None:
        """Move on after a claim.

        looked: buckets in the order the claim went through them. reached: of those in which it saw
        keys, the last key. full: the claim stopped at one of its limits, so the last bucket reached
        is not finished and those behind it were not looked at.
        """
        self.later_rests = full and not reached and bool(looked)
        self.width = min(2 * len(reached) + 2 if full else 4 * self.width, BUCKETS_PER_CLAIM)
        if full and not reached:
            return
        last = reached[-1][0] if full else None
        for bucket in looked:
            if bucket == last:
                self.keys[bucket] = reached[-1][1]
                if bucket < self.start:
                    self._come_around()
                self.start = bucket
                return
            self.keys.pop(bucket, None)
        self._go_on_at((looked[-1] + 1) % BUCKETS if looked else self.start)


@dataclass
class Tail:
    """The block of the table from which on new events are looked for; None: near its end."""

    block: int | None = None
    after: int = EARLIEST  # keys that have their first event there up to this position are passed over
    _looks: int = 0  # behind such keys

    def advance(self, blocks: int, oldest: int | None) -> None:
        """After a look at a table of so many blocks; oldest: that of the first event which it found there.

        What stays there because it is held is not followed for ever: laps will find it.
        """
        end = blocks - TAIL_BLOCKS
        first = end if oldest is None else min(end, max(oldest, blocks - FIRST_TAIL_BLOCKS))
        self.block = max(self.block or 0, first)

    def looked_at(self, firsts: Sequence[int], taken: int) -> None:
        """After a look at keys whose first events there are these; of so many of them some were taken.

        What cannot be taken must not keep others from being looked at: the next look is at those behind.
        """
        behind = self.after != EARLIEST
        self._looks = self._looks + 1 if behind else 0
        if not firsts or self._looks == BEHIND:
            self.after, self._looks = EARLIEST, 0
        elif behind or taken < len(firsts):
            self.after = firsts[-1]


class Laps:
    """Whether laps through the buckets are dear, and when the next part of one is due.

    While somebody holds a transaction open, index entries of events that are long gone cannot be removed,
    and every lap passes all of them. Then laps are made in parts, with rests, and meanwhile new events are
    looked for at the end of the table. For a backlog, whole laps are made above the floor until it is gone.
    """

    def __init__(self) -> None:
        self.dear = False
        self.behind = False  # laps are dear, and there is a backlog
        self.part = 0
        self._lap = 0  # in parts
        self._excess: float | None = None  # seconds that the looks of this lap took longer than they should
        self._filled = False  # some look of this lap was
        self._slow = 0  # laps in a row
        self._needed = DEAR_LAPS
        self._in_parts = self._at_the_end = 0  # events that were found so, in this lap
        self._next = 0.0
        self._cut = 0
        self._cost: float | None = None  # seconds that a whole lap takes, as its last part tells
        self._prompt = 0  # so many parts are made as soon as they are due
        self.trip = 0.0  # seconds that a trip to the server takes

    def looked(self, seconds: float, events: int, *, full: bool = False) -> None:
        """After a claim. One that was filled does not count: for a backlog a lap is worth what it costs."""
        if full and events:
            self._filled = True
            self.behind |= self.dear
        elif self.thorough and not self.behind:  # above the floor all looks are cheap
            excess = seconds - SECONDS_PER_LOOK - TRIPS_PER_LOOK * self.trip - events * SECONDS_PER_EVENT
            self._excess = (self._excess or 0.0) + excess

    def lap_ended(self) -> None:
        """A lap, whole or in parts. One above the floor tells only whether there is a backlog still."""
        if self.behind:
            self.behind = self._filled
        elif self.thorough and self._excess is not None:
            self._slow = self._slow + 1 if self._excess > DEAR_SECONDS else 0
            self._excess = None
            if self._slow >= self._needed and not self.dear:
                # Whether they are is seen best by a whole lap in parts.
                self.part = self._lap = self._in_parts = self._at_the_end = 0
                self._prompt = PARTS
            self.dear = self._slow >= self._needed
        self._filled = False

    def _judge_parts(self) -> None:
        """Where new events are not at the end of the table, nobody keeps dead rows from being cleaned up.

        Then laps were slow by chance, and to make them in parts is what keeps events waiting.
        """
        if self._in_parts > self._at_the_end:
            self.dear, self.behind, self._slow = False, False, 0
            self._needed = min(2 * self._needed, MOST_DEAR_LAPS)
        elif self._at_the_end:
            self._needed = DEAR_LAPS
        self._in_parts = self._at_the_end = 0

    def looked_at_the_end(self, events: int, *, cut: bool, waiting: int, saves: bool) -> None:
        """A backlog that is worth more than a lap above the floor costs is better taken by laps.

        events: that were taken there. cut: more keys wait there than a claim takes. waiting: events that
        could be taken, if that is known. saves: the floor spares a lap most of what is dead.
        """
        self._at_the_end += events
        self._cut = self._cut + 1 if cut else 0
        price = None if self._cost is None else self._cost / (FLOOR_SAVES if saves else 1)
        worth_it = cut and price is not None and waiting * SECONDS_PER_EVENT > price
        if worth_it or self._cut == BEHIND:
            self._cut = 0
            self.behind = True

    @property
    def thorough(self) -> bool:
        """This lap, if it is made in parts, is for what is below the floor too: it tells what laps cost."""
        return not self.dear or self._lap % THOROUGH == 0

    def due(self, now: float) -> bool:
        return now >= self._next

    def woken(self) -> None:
        """Something has come. If it is not at the end of the table, the next lap must find it soon."""
        self._prompt = PARTS

    def longest_sleep(self, now: float, seconds: float) -> float:
        """So many at most, and while a lap is being made no longer than until its next part is due."""
        return min(seconds, max(0.0, self._next - now)) if self.dear and self._prompt else seconds

    def part_ended(self, now: float, seconds: float, besides: float = 0.0, *, events: int = 0) -> None:
        """The next part is due when this one, and what was done besides, has taken a fifth of the time."""
        if not self.behind:  # a backlog says nothing about where new events are
            self._in_parts += events
        self._next = now + RESTS * (seconds + besides)
        self._prompt = max(self._prompt - 1, 0)
        if self.thorough:
            self._cost = PARTS * seconds
        self.part = (self.part + 1) % PARTS
        if self.part == 0:
            self.lap_ended()
            self._judge_parts()
            self._lap += 1


def part_of(buckets: Sequence[int], part: int) -> list[int]:
    return [bucket for bucket in buckets if bucket * PARTS // BUCKETS == part]


def next_owned(buckets: Sequence[int]) -> list[int]:
    """For each bucket and the one after the last: the next of `buckets`, itself included; BUCKETS: none."""
    following = [BUCKETS] * (BUCKETS + 1)
    owned = set(buckets)
    for bucket in reversed(range(BUCKETS)):
        following[bucket] = bucket if bucket in owned else following[bucket + 1]
    return following


def reach(buckets: Sequence[int], limit: int, owned: Sequence[int] | None = None) -> int:
    """How many of these come before the first owned one that would be one bucket too many."""
    seen: set[int] = set()
    for n, bucket in enumerate(buckets):
        if bucket in seen or (owned is not None and owned[bucket] != bucket):
            continue
        if len(seen) == limit:
            return n
        seen.add(bucket)
    return len(buckets)
