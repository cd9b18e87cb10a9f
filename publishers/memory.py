"""Keeps events in this process: for tests, and as the bench's publisher without a broker."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relay.event import Event
from relay.outcome import Delivered, Outcome


class MemoryPublisher:
    """`decide`, if given, says what becomes of each event; of a key nothing follows one that failed."""

    def __init__(
        self, options: Mapping[str, Any] | None = None, decide: Callable[[Event], Outcome] | None = None
    ) -> None:
        self._decide = decide
        self._discard = bool((options or {}).get("discard", False))
        self._lock = threading.Lock()
        self.delivered: list[Event] = []
        self.closed = False

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        if self._decide is None:
            if not self._discard:
                with self._lock:
                    self.delivered.extend(events)
            return [Delivered()] * len(events)
        return self._publish_each(events, self._decide)

    def _publish_each(self, events: Sequence[Event], decide: Callable[[Event], Outcome]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        stopped: dict[str, Outcome] = {}
        for event in events:
            outcome = stopped.get(event.key) or decide(event)
            if isinstance(outcome, Delivered):
                with self._lock:
                    self.delivered.append(event)
            else:
                stopped[event.key] = outcome
            outcomes.append(outcome)
        return outcomes

    def close(self) -> None:
        self.closed = True
