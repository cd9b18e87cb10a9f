"""Publishers that lie about what they deliver, for a bench that must find out."""

from collections.abc import Sequence

from publishers.memory import MemoryPublisher
from relay.event import Event
from relay.outcome import Delivered, Outcome


class Losing(MemoryPublisher):
    """Keeps all events but the tenth."""

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        super().publish(events, deadline)
        self.delivered = [event for event in self.delivered if event.position % 1000 != 10]
        return [Delivered()] * len(events)


class Inverting(MemoryPublisher):
    """Keeps every batch backwards."""

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        return super().publish(events[::-1], deadline)
