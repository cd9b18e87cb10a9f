"""Where the next claim looks: a bucket to start from, a cursor inside each bucket, a cursor in time.

Without the cursors the first keys of the first buckets would be served for ever. Cursors are hints:
a lost one costs fairness for a moment, never an event. Pure: nothing here does I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

BUCKETS = 1024
_THE_PAST = (datetime(1, 1, 1, tzinfo=UTC), 0)


@dataclass
class Scan:
    start: int = 0
    keys: dict[int, str] = field(default_factory=dict)  # bucket → last key looked at; absent: from its first
    later: tuple[datetime, int] = _THE_PAST  # last row looked at among those that waited
    barren: int = 0  # buckets looked at in a row without claiming anything

    def after(self, bucket: int) -> str:
        return self.keys.get(bucket, "")

    def advance_later(self, last: tuple[datetime, int] | None, full: bool) -> None:
        """Go on behind `last` if the window was full, else start over."""
        self.later = last if last is not None and full else _THE_PAST

    def advance(
        self, looked: Sequence[int], reached: Sequence[tuple[int, str, int]], *, full: bool, key_limit: int
    ) -> None:
        """Move on after a claim.

        looked: buckets in the order the claim went through them. reached: of those in which it saw
        keys, the last key and how many. full: the claim stopped at its rows or bytes, so the last
        bucket reached is not finished and those behind it were not looked at.
        """
        last = reached[-1][0] if reached and full else None
        seen = {bucket: (key, count) for bucket, key, count in reached}
        for bucket in looked:
            key, count = seen.get(bucket, ("", 0))
            if bucket == last or count >= key_limit:
                self.keys[bucket] = key
            else:
                self.keys.pop(bucket, None)
            if bucket == last:
                break
        if last is not None:
            self.start = last
        elif looked:
            self.start = (looked[-1] + 1) % BUCKETS
