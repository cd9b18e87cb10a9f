"""What became of an event that was handed to a publisher, and the publisher's seam.

Outcomes are values, never exceptions. Pure: nothing here does I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from relay.event import Event

Scope: TypeAlias = Literal["event", "destination", "broker", "settings"]
# A destination, its host (of a URL), or the route to it (a destination and an event type).
Holds: TypeAlias = Literal["destination", "host", "route"]


LONGEST_RETRY_AFTER = 86_400.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """The broker has taken responsibility for the event."""

    receipt: str | None = None


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """The broker may or may not have the event: publish it again.

    Only scope `event` is held against the event as an attempt. `destination` and `broker` say that
    others would fare no better now: a breaker opens for what `holds` names, by default the event's
    destination. `settings` says that nothing will until somebody changes them.
    """

    reason: str
    scope: Scope = "event"
    retry_after: float | None = None
    holds: Holds | None = "destination"

    def __post_init__(self) -> None:
        """A broker may ask for any wait: at most a day of it is granted."""
        if self.retry_after is not None:
            object.__setattr__(self, "retry_after", min(max(0.0, self.retry_after), LONGEST_RETRY_AFTER))


@dataclass(frozen=True, slots=True)
class Refused:
    """This event can never be accepted."""

    reason: str


Outcome: TypeAlias = Delivered | Unconfirmed | Refused

# For an event that was not sent because one before it was not delivered.
HELD_UP = Unconfirmed("held up behind an earlier event of its key")


class Publisher(Protocol):
    """Where events go. Called from one thread at a time."""

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        """Publish and wait; one outcome per event, in the same order, by `deadline` (monotonic).

        After an event that is not Delivered, no later event of the same key in the same call may
        be reported Delivered.
        """

    def close(self) -> None:
        """Let go of connections and threads, within a few seconds, whatever the broker does."""
