"""What the relay tells Prometheus. Names and labels are part of the public surface; labels are bounded.

Everything here is cheap enough for the hot path: batches are counted in bulk, no database is asked.
"""

import threading
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from relay.destination import shown
from relay.event import Event
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed
from relay.reading import Reading

DESTINATION_LABELS = 100
OTHER = "other"

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SLOW = (*_FAST, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        r = self.registry = registry or CollectorRegistry()
        self.claimed = Counter("relay_claimed_events", "Events claimed", registry=r)
        self._published = Counter(
            "relay_published_events", "Events handed to the publisher", ["destination", "outcome"], registry=r
        )
        self._settled = Counter("relay_settled_events", "Events settled", ["act"], registry=r)
        self.fenced_settlements = Counter(
            "relay_fenced_settlements", "Settlements that came after their lease was gone", registry=r
        )
        self.lost_leases = Counter(
            "relay_lost_leases", "Leases taken back from workers that vanished or were late", registry=r
        )
        self.reaped_events = Counter("relay_reaped_events", "Events of lost leases taken back", registry=r)
        self.out_of_order = Counter(
            "relay_out_of_order_events", "Events delivered ahead of one of their key", registry=r
        )
        self.short_settlements = Counter(
            "relay_short_settlements", "Settlements that did not find all of their events", registry=r
        )
        self._incidents = Counter(
            "relay_publisher_incidents",
            "What a publisher met that an operator should know",
            ["kind"],
            registry=r,
        )
        self.claim_seconds = Histogram("relay_claim_seconds", "Time of a claim", buckets=_FAST, registry=r)
        self.publish_seconds = Histogram(
            "relay_publish_seconds", "Time to publish a batch", buckets=_FAST, registry=r
        )
        self.commit_to_confirm = BulkHistogram(
            "relay_commit_to_confirm_seconds", "From the row's created_at to the broker's confirmation", _SLOW
        )
        r.register(self.commit_to_confirm)
        self._gauges = {
            "pending": Gauge("relay_pending_events", "Events that wait to be published", registry=r),
            "processing": Gauge("relay_processing_events", "Events under a lease", registry=r),
            "dead_letter": Gauge("relay_dead_letter_events", "Events given up", registry=r),
            "failed": Gauge("relay_failed_events", "Events that hold their key", registry=r),
            "oldest_pending_seconds": Gauge(
                "relay_oldest_pending_age_seconds",
                "Age of the oldest event that could be published",
                registry=r,
            ),
            "workers": Gauge("relay_workers", "Workers that are not dead", registry=r),
        }
        build = Gauge("relay_build_info", "The version that runs", ["version"], registry=r)
        build.labels(_version()).set(1)
        ProcessCollector(registry=r)
        self._destinations = BoundedLabels(DESTINATION_LABELS)
        self._incidents_seen: dict[str, int] = {}

    def published(self, events: Sequence[Event], outcomes: Sequence[Outcome]) -> None:
        """Count one batch by destination and outcome, and time its confirmed events."""
        pairs = zip(events, outcomes, strict=True)
        named = [(event, outcome_name(outcome)) for event, outcome in pairs]
        for (destination, name), number in Tally((event.destination, name) for event, name in named).items():
            self._published.labels(self._destinations.label(destination), name).inc(number)
        now = datetime.now(UTC)
        # Rows of one transaction share their created_at.
        created = Tally(event.created_at for event, name in named if name == "delivered")
        ages: Tally[float] = Tally()
        for at, number in created.items():
            # Never negative: the database's clock may be ahead of this one.
            ages[max((now - at).total_seconds(), 0.0)] += number
        self.commit_to_confirm.observe(ages)

    def incidents(self, counts: Mapping[str, int]) -> None:
        """Show what the publisher has counted since it was made."""
        for kind, number in counts.items():
            counter = self._incidents.labels(kind)
            counter.inc(number - self._incidents_seen.get(kind, 0))
            self._incidents_seen[kind] = number

    def settled(self, act: str, number: int) -> None:
        self._settled.labels(act).inc(number)

    def reaped(self, leases: int, events: int) -> None:
        self.lost_leases.inc(leases)
        self.reaped_events.inc(events)

    def gauges(self, reading: Reading) -> None:
        """Show what the database said; what it did not say stays as it was."""
        for name, gauge in self._gauges.items():
            value = getattr(reading, name)
            if value is not None:
                gauge.set(value)


def outcome_name(outcome: Outcome) -> str:
    match outcome:
        case Delivered():
            return "delivered"
        case Unconfirmed():
            return "unconfirmed"
        case Refused():
            return "refused"
        case _:
            assert_never(outcome)


class BoundedLabels:
    """The first values as they are, without passwords; all further ones as `other`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, str] = {}

    def label(self, value: str) -> str:
        known = self._known.get(value)
        if known is None:
            if len(self._known) >= self._limit:
                return OTHER
            known = self._known[value] = shown(value)
        return known


class BulkHistogram(Collector):
    """A histogram that takes a whole batch at once, because the relay would otherwise observe each event."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = list(bounds)
        self._lock = threading.Lock()
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, values: Mapping[float, int]) -> None:
        """Add each value as often as its number says."""
        with self._lock:
            for value, number in values.items():
                self._counts[bisect_left(self._bounds, value)] += number
                self._sum += value * number

    def collect(self) -> Iterable[HistogramMetricFamily]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets, seen = [], 0
        for bound, count in zip([*map(str, self._bounds), "+Inf"], counts, strict=True):
            seen += count
            buckets.append((bound, seen))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=total)


def _version() -> str:
    try:
        return version("outbox-relay")
    except PackageNotFoundError:
        return "unknown"
