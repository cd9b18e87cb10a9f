"""A publisher whose broker is down while a file says so, and that keeps count of its calls."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from publishers.stdout import StdoutPublisher
from relay.event import Event
from relay.outcome import Outcome, Unconfirmed


class FlakyPublisher(StdoutPublisher):
    """$FLAKY_DOWN is a file with the destinations that fail, one a line, `*` for all."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._down = Path(os.environ["FLAKY_DOWN"])
        self._calls = Path(os.environ["FLAKY_CALLS"])

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        down = set(self._down.read_text().split())
        with self._calls.open("a") as calls:
            calls.writelines(f"{event.destination} {len(events)}\n" for event in events)
        stopped: set[str] = set()
        outcomes: list[Outcome] = []
        for event in events:
            if event.key in stopped or {event.destination, "*"} & down:
                stopped.add(event.key)
                outcomes.append(Unconfirmed("the broker is down", "broker"))
            else:
                outcomes += super().publish([event], deadline)
        return outcomes
