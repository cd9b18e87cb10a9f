"""A publisher that does not return while a file says so."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from publishers.stdout import StdoutPublisher
from relay.event import Event
from relay.outcome import Outcome

PUBLISHER = "tests.system.hanging:HangingPublisher"


class HangingPublisher(StdoutPublisher):
    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._hangs = Path(os.environ["HANGS"])

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        while self._hangs.exists():
            time.sleep(0.05)
        return super().publish(events, deadline)
