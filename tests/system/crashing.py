"""A publisher that takes its process down at one event, as a segfault would."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from publishers.stdout import StdoutPublisher
from relay.event import Event
from relay.outcome import Outcome


class CrashingPublisher(StdoutPublisher):
    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        if any(event.event_id == "poison" for event in events):
            os._exit(139)
        return super().publish(events, deadline)
