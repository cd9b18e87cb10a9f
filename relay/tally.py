"""What a worker has done since it started, in a form small enough to tell all who look at the workers."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry


@dataclass(frozen=True)
class Tally:
    published: dict[str, int] = field(default_factory=dict)  # by outcome
    settled: dict[str, int] = field(default_factory=dict)  # by act
    confirmed: dict[str, int] = field(default_factory=dict)  # within so many seconds; cumulative

    @classmethod
    def of(cls, registry: CollectorRegistry) -> "Tally":
        published: Counter[str] = Counter()
        settled: Counter[str] = Counter()
        confirmed: Counter[str] = Counter()
        for family in registry.collect():
            for sample in family.samples:
                match sample.name:
                    case "relay_published_events_total":
                        published[sample.labels["outcome"]] += int(sample.value)
                    case "relay_settled_events_total":
                        settled[sample.labels["act"]] += int(sample.value)
                    case "relay_commit_to_confirm_seconds_bucket":
                        confirmed[sample.labels["le"]] += int(sample.value)
        # Bounds within which nothing was confirmed stay: the next one's events lie between the two.
        return cls(dict(published), dict(settled), dict(confirmed))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
