"""The publisher that keeps events in memory passes the suite of all publishers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from publishers.memory import MemoryPublisher
from relay.event import Event
from relay.message import plain_headers
from relay.outcome import Delivered, Outcome, Refused
from relay.testing import PublisherConformance, Received


@dataclass
class MemoryRig:
    destination: str = "outbox.events"
    made: list[MemoryPublisher] = field(default_factory=list)

    def make(self) -> MemoryPublisher:
        self.made.append(MemoryPublisher(decide=_decide))
        return self.made[-1]

    def received(self, at_least: int) -> list[Received]:
        events: Sequence[Event] = [event for publisher in self.made for event in publisher.delivered]
        return [Received(event.event_id, event.payload, dict(plain_headers(event))) for event in events]

    def undeliverable(self, event: Event) -> Event:
        return event._replace(event_type="Refused")


def _decide(event: Event) -> Outcome:
    return Refused("not wanted") if event.event_type == "Refused" else Delivered()


class TestMemory(PublisherConformance):
    @pytest.fixture
    def rig(self) -> MemoryRig:
        return MemoryRig()
