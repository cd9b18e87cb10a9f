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
THE_PAST = (datetime(1, 1, 1, tzinfo=UTC), 0)


@dataclass
class Scan:
    start: int = 0
    keys: dict[int, str] = field(default_factory=dict)  # bucket → last key looked at; absent: from its first
    later: tuple[datetime, int] = THE_PAST  # last row looked at among those that waited
    later_rests: bool = False  # keys that waited filled the last claim: the next is for fresh ones alone
    laps: int = 0  # how often it came around the buckets
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
        self.laps += start <= self.start
        self.start = start

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
                self.laps += bucket < self.start
                self.start = bucket
                return
            self.keys.pop(bucket, None)
        self._go_on_at((looked[-1] + 1) % BUCKETS if looked else self.start)


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
