"""How many events may go to a destination now, where a limit was set. Pure: time is passed in.

All workers of an outbox share a limit evenly.
"""

from collections.abc import Mapping

from relay.pause import Subject


class Pace:
    """A token bucket that holds a second's worth, and at least one event."""

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._workers = 1
        self._tokens = 1.0
        self._at = now

    def share(self, workers: int) -> None:
        self._workers = max(1, workers)

    def available(self, now: float) -> int:
        rate = self._per_second / self._workers
        self._tokens = min(self._tokens + (now - self._at) * rate, max(rate, 1.0))
        self._at = now
        return int(self._tokens)

    def take(self, events: int) -> None:
        self._tokens -= events


class Paces:
    """The limits of one worker, by destination."""

    def __init__(self, limits: Mapping[str, float], now: float) -> None:
        self._paces = {
            Subject("destination", name): Pace(per_second, now) for name, per_second in limits.items()
        }
        self.subjects = tuple(self._paces)

    def ready(self, now: float) -> dict[Subject, int]:
        """Destinations that may get events now, and how many."""
        counts = {subject: pace.available(now) for subject, pace in self._paces.items()}
        return {subject: count for subject, count in counts.items() if count > 0}

    def take(self, subject: Subject, events: int) -> None:
        self._paces[subject].take(events)

    def share(self, workers: int) -> None:
        for pace in self._paces.values():
            pace.share(workers)
