"""What the conformance suite needs to know about a publisher and its broker."""

from dataclasses import dataclass
from typing import Protocol

from relay.event import Event
from relay.outcome import Publisher


@dataclass(frozen=True)
class Received:
    """A message as a consumer sees it."""

    event_id: str
    payload: bytes
    headers: dict[str, str]


class PublisherRig(Protocol):
    destination: str

    def make(self) -> Publisher:
        """A new publisher, connected to the rig's broker."""

    def received(self, at_least: int) -> list[Received]:
        """All messages so far, in the order the broker has them per key; waits for `at_least`."""

    def undeliverable(self, event: Event) -> Event | None:
        """The event changed so that the broker refuses it; None where there is no such thing."""
