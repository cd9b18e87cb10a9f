"""One call of the webhook publisher: which event is next, and what became of each.

Keys run side by side, each one event at a time. A thread that is free takes the key whose next event goes to
the host with the fewest requests under way, so a host that hangs holds at most its share of the threads.
Behind an event that is not delivered nothing of its key is sent. Of a host that asked for time, or failed
several times in a row, nothing more is tried in this call.
"""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from relay.event import Event
from relay.outcome import HELD_UP, Delivered, Outcome, Unconfirmed

FAILURES_IN_A_ROW = 5


class Turn(NamedTuple):
    place: int  # of the event in the call
    event: Event
    host: str


class Call:
    def __init__(self, events: Sequence[Event], hosts: Sequence[str], deadline: float) -> None:
        self._deadline = deadline
        self._events = events
        self._hosts = hosts
        self._lock = threading.Lock()
        self._outcomes: list[Outcome | None] = [None] * len(events)
        self._running: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._down: dict[str, Unconfirmed] = {}
        self._over = False
        lanes: dict[str, deque[int]] = defaultdict(deque)
        for index, event in enumerate(events):
            lanes[event.key].append(index)
        self.width = len(lanes)
        self._waiting: dict[str, deque[deque[int]]] = defaultdict(deque)
        for lane in lanes.values():
            self._waiting[hosts[lane[0]]].append(lane)
        self._under_way: dict[int, deque[int]] = {}

    def take(self) -> Turn | None:
        """The next event to send; None: there is nothing left that this thread could do."""
        with self._lock:
            while self._waiting and not self._over and monotonic() < self._deadline:
                host = min(self._waiting, key=self._running.__getitem__)
                lane = self._waiting[host].popleft()
                if not self._waiting[host]:
                    del self._waiting[host]
                index = lane.popleft()
                if (down := self._down.get(host)) is not None:
                    self._outcomes[index] = down
                    continue
                self._running[host] += 1
                self._under_way[index] = lane
                return Turn(index, self._events[index], host)
            return None

    def settle(self, turn: Turn, outcome: Outcome, of_host: bool) -> None:
        """Record what became of a turn; `of_host` says that the host, not the event, is at fault."""
        with self._lock:
            self._running[turn.host] -= 1
            lane = self._under_way.pop(turn.place)
            self._outcomes[turn.place] = outcome
            if isinstance(outcome, Unconfirmed) and of_host:
                self._failures[turn.host] += 1
                if outcome.retry_after is not None or self._failures[turn.host] >= FAILURES_IN_A_ROW:
                    self._down[turn.host] = outcome
                return
            self._failures[turn.host] = 0
            if lane and isinstance(outcome, Delivered):
                self._waiting[self._hosts[lane[0]]].append(lane)

    def finish(self) -> list[Outcome]:
        """One outcome per event. What a thread still reports after this is not heard."""
        with self._lock:
            self._over = True
            outcomes: list[Outcome] = []
            stopped: set[str] = set()
            for index, event in enumerate(self._events):
                outcome = self._outcomes[index]
                if event.key in stopped:
                    outcome = HELD_UP
                elif outcome is None:
                    outcome = self._late(index)
                if not isinstance(outcome, Delivered):
                    stopped.add(event.key)
                outcomes.append(outcome)
            return outcomes

    def _late(self, index: int) -> Unconfirmed:
        host = self._hosts[index]
        if index in self._under_way:
            return Unconfirmed(f"{host} did not answer before the deadline", "destination", holds="host")
        return Unconfirmed(f"not sent to {host}: the deadline came first", "destination", holds=None)
