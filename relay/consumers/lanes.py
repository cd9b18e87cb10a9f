"""The messages that a consumer holds: one lane per key, whose first message decides for all of it.

A message that waits for its retry holds its lane and no other. Pure: nothing here does I/O.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from relay.consumers.message import Raw


@dataclass(eq=False, slots=True)
class Delivery:
    """One message in hand. `place`: what it is lost with, a partition or a connection."""

    place: Hashable
    key: str | None
    raw: Raw
    token: Any  # what the broker calls it: an offset, a delivery tag


@dataclass(eq=False, slots=True)
class _Lane:
    place: Hashable
    waiting: deque[Delivery] = field(default_factory=deque)
    gone: bool = False


class Lanes:
    def __init__(self) -> None:
        self._lanes: dict[Hashable, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._later: list[tuple[float, int, _Lane]] = []
        self._numbers = count()
        self._held: dict[Hashable, int] = {}
        self._current: _Lane | None = None

    def __len__(self) -> int:
        return sum(self._held.values())

    def held(self, place: Hashable) -> int:
        return self._held.get(place, 0)

    def add(self, delivery: Delivery) -> None:
        name = _name(delivery)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(delivery.place)
            self._ready.append(lane)
        lane.waiting.append(delivery)
        self._held[delivery.place] = self.held(delivery.place) + 1

    def next(self, now: float) -> Delivery | None:
        """The first message of a lane that may go on; tell it `done` or `again` before the next call."""
        while self._later and self._later[0][0] <= now:
            self._ready.append(heappop(self._later)[2])
        while self._ready:
            lane = self._ready.popleft()
            if not lane.gone:
                self._current = lane
                return lane.waiting[0]
        return None

    def done(self, delivery: Delivery) -> None:
        lane = self._leave(delivery)
        if lane is None:
            return
        lane.waiting.popleft()
        self._held[lane.place] -= 1
        if lane.waiting:
            self._ready.append(lane)
        else:
            del self._lanes[_name(delivery)]

    def again(self, delivery: Delivery, due: float) -> None:
        """Its lane waits until then."""
        lane = self._leave(delivery)
        if lane is not None:
            heappush(self._later, (due, next(self._numbers), lane))

    def _leave(self, delivery: Delivery) -> _Lane | None:
        lane, self._current = self._current, None
        assert lane is not None, "next() comes first"
        assert lane.waiting[0] is delivery, "next() hands out one message at a time"
        return None if lane.gone else lane

    def drop(self, place: Hashable) -> None:
        """Forget all messages of this place: they are somebody else's now, or will come again."""
        for name, lane in list(self._lanes.items()):
            if lane.place == place:
                lane.gone = True
                del self._lanes[name]
        self._held.pop(place, None)

    def wait(self, now: float) -> float | None:
        """Seconds until something may go on; None: nothing waits for time."""
        if self._ready:
            return 0.0
        return max(0.0, self._later[0][0] - now) if self._later else None


def _name(delivery: Delivery) -> Hashable:
    # A message without a key stands alone.
    return (delivery.place, delivery if delivery.key is None else delivery.key)
