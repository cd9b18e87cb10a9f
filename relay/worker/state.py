"""What the threads of one worker share."""

import threading
from dataclasses import dataclass, field
from time import monotonic

from relay.backoff import Rising
from relay.outcome import Outcome
from relay.pause import Subject
from relay.store.look import Claim


@dataclass(eq=False)
class Batch:
    """A claim on its way through the worker."""

    claim: Claim
    # Monotonic and taken before the claim was sent: nothing is handed to the broker after it.
    deadline: float
    probe: Subject | None = None  # the breaker that this batch of one tries
    outcomes: list[Outcome] = field(default_factory=list)
    marked: bool = False  # its rows say that they are in flight


class InFlight:
    """The batches that were claimed and are not settled yet, and how many may be on their way here."""

    def __init__(self) -> None:
        self._expected = 0
        self._batches: list[Batch] = []
        self._changed = threading.Condition()

    def enter(self) -> None:
        """A batch may come of what is done now."""
        with self._changed:
            self._expected += 1

    def holds(self, batch: Batch) -> None:
        with self._changed:
            self._batches.append(batch)

    def leave(self, batch: Batch | None = None) -> None:
        with self._changed:
            self._expected -= 1
            if batch is not None:
                self._batches.remove(batch)
            self._changed.notify_all()

    def unmarked(self) -> list[Batch]:
        with self._changed:
            return [batch for batch in self._batches if not batch.marked]

    def wait_empty(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._expected == 0, seconds)


class Hold:
    """Stops this worker's claiming while its settings keep everything from getting through."""

    def __init__(self, longest: float = 30.0) -> None:
        self._lock = threading.Lock()
        self._rising = Rising(0.5, longest)
        self._until = 0.0
        self.reason: str | None = None

    def engage(self, reason: str, at_least: float | None = None) -> float:
        with self._lock:
            wait = max(self._rising.step(), at_least or 0.0)
            self._until = monotonic() + wait
            self.reason = reason
            return wait

    def lift(self) -> None:
        with self._lock:
            self._rising.reset()
            self._until = 0.0
            self.reason = None

    def remaining(self) -> float:
        with self._lock:
            return self._until - monotonic()
