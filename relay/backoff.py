"""How long to wait before trying again. Pure."""

import random

LONGEST = 3600.0


def retry_delay(attempts: int, jitter: float | None = None) -> float:
    """Seconds before attempt `attempts + 1`: doubling, at most an hour, spread over its upper half."""
    spread = random.random() if jitter is None else jitter
    return min(float(2 ** min(attempts, 12)), LONGEST) * (0.5 + spread / 2)


class Rising:
    """A wait that doubles from `first` to `longest` and starts over when told."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def reset(self) -> None:
        self._next = self._first

    def step(self) -> float:
        """The next wait in seconds, with jitter."""
        wait = self._next
        self._next = min(self._next * 2, self._longest)
        return wait * (0.75 + random.random() / 4)
