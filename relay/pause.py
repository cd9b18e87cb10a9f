"""What a pause is about. Pure.

A pause holds the events that its subject names; an operator sets it, or a breaker does when a broker fails.
"""

from typing import Literal, NamedTuple, TypeAlias

from relay.destination import host_of, shown
from relay.event import Event

PauseScope: TypeAlias = Literal["all", "destination", "host", "route", "event_type", "key"]


class Subject(NamedTuple):
    scope: PauseScope
    value: str

    @property
    def label(self) -> str:
        """The value as people may see it: URLs contain secrets, types and keys do not."""
        return self.value if self.scope in ("event_type", "key") else shown(self.value)

    def __str__(self) -> str:
        return "everything" if self.scope == "all" else f"{self.scope.replace('_', ' ')} {self.label}"


ALL = Subject("all", "")


def subject_of(scope: PauseScope, event: Event) -> Subject:
    """The subject of that scope which the event belongs to; the claim says the same in SQL."""
    match scope:
        case "all":
            return ALL
        case "destination":
            return Subject(scope, event.destination)
        case "host":
            return Subject(scope, host_of(event.destination))
        case "route":
            return Subject(scope, f"{event.destination}/{event.event_type}")
        case "event_type":
            return Subject(scope, event.event_type)
        case "key":
            return Subject(scope, event.key)
