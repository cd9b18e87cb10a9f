"""What the relay tells Prometheus. Names and labels are part of the public surface; labels are bounded.

Everything here is cheap enough for the hot path: batches are counted in bulk, no database is asked.
"""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from operator import itemgetter

from prometheus_client import CollectorRegistry, ProcessCollector

from relay.event import Event
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed
from relay.series import BoundedLabels, Catalogue
from relay.table_gauges import TableGauges

DESTINATION_LABELS = 100
# Each is a histogram of two dozen series.
EVENT_TYPE_LABELS = 40

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SLOW = (*_FAST, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)

_event_type = itemgetter(Event._fields.index("event_type"))
_destination = itemgetter(Event._fields.index("destination"))
_created_at = itemgetter(Event._fields.index("created_at"))


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        c = self._catalogue = Catalogue(self.registry)
        self.claimed = c.counter("relay_claimed_events", "Events claimed")
        self._published = c.counter(
            "relay_published_events", "Events handed to the publisher", "destination", "outcome"
        )
        self._settled = c.counter("relay_settled_events", "Events settled", "act")
        self.fenced_settlements = c.counter(
            "relay_fenced_settlements", "Settlements that came after their lease was gone"
        )
        self.lost_leases = c.counter(
            "relay_lost_leases", "Leases taken back from workers that vanished or were late"
        )
        self.reaped_events = c.counter("relay_reaped_events", "Events of lost leases taken back")
        self.out_of_order = c.counter(
            "relay_out_of_order_events", "Events delivered ahead of one of their key"
        )
        self.short_settlements = c.counter(
            "relay_short_settlements", "Settlements that did not find all of their events"
        )
        self._incidents = c.counter(
            "relay_publisher_incidents", "What a publisher met that an operator should know", "kind"
        )
        self.claim_seconds = c.histogram("relay_claim_seconds", "Time of a claim", _FAST)
        self.batch_events = c.histogram("relay_batch_events", "Events in a claim that found any", _SIZES)
        self.publish_seconds = c.histogram("relay_publish_seconds", "Time to publish a batch", _FAST)
        self.commit_to_confirm = c.ages(
            "relay_commit_to_confirm_seconds",
            "From the row's created_at to the broker's confirmation",
            "event_type",
            _SLOW,
        )
        self.owned_buckets = c.gauge("relay_owned_buckets", "Buckets that this worker watches, of 1024")
        self._ready = c.gauge("relay_ready", "1: this worker relays; 0: /readyz says why not")
        self._overdue = c.gauge(
            "relay_publish_overdue_seconds",
            "How long the publisher has not returned after its deadline; 0: it is in time",
        )
        build = c.gauge("relay_build_info", "The version that runs", "version")
        build.labels(_version()).set(1)
        self.table = TableGauges()
        self.registry.register(self.table)
        ProcessCollector(registry=self.registry)
        self.series = [*self._catalogue.series, *self.table.series()]
        self._destinations = BoundedLabels(DESTINATION_LABELS)
        self._event_types = BoundedLabels(EVENT_TYPE_LABELS)
        self._incidents_seen: dict[str, int] = {}

    def watch(self, readiness: Callable[[], str | None], overdue: Callable[[], float]) -> None:
        """Ask these whenever somebody looks."""
        self._ready.set_function(lambda: float(readiness() is None))
        self._overdue.set_function(overdue)

    def took(self, events: int) -> None:
        """Count a claim that found something."""
        self.claimed.inc(events)
        self.batch_events.observe(events)

    def published(self, events: Sequence[Event], outcomes: Sequence[Outcome]) -> None:
        """Count one batch by destination and outcome, and time its confirmed events."""
        kinds = list(map(type, outcomes))
        for (destination, kind), number in Tally(zip(map(_destination, events), kinds, strict=True)).items():
            self._published.labels(self._destinations.label(destination), outcome_name(kind)).inc(number)
        confirmed = events
        if kinds.count(Delivered) < len(kinds):
            confirmed = [
                event
                for event, outcome in zip(events, outcomes, strict=True)
                if isinstance(outcome, Delivered)
            ]
        now = datetime.now(UTC)
        for event_type, created in self._created(confirmed).items():
            self.commit_to_confirm.observe(event_type, created, now)

    def _created(self, events: Sequence[Event]) -> Mapping[str, list[datetime]]:
        """When the events were created, by the label of their type."""
        types = list(map(_event_type, events))
        created = list(map(_created_at, events))
        if types and types.count(types[0]) == len(types):
            return {self._event_types.label(types[0]): created}
        found: defaultdict[str, list[datetime]] = defaultdict(list)
        for event_type, at in zip(types, created, strict=True):
            found[event_type].append(at)
        labelled: defaultdict[str, list[datetime]] = defaultdict(list)
        for event_type, moments in found.items():
            labelled[self._event_types.label(event_type)] += moments
        return labelled

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


@cache
def outcome_name(kind: type[Outcome]) -> str:
    for known, name in ((Delivered, "delivered"), (Unconfirmed, "unconfirmed"), (Refused, "refused")):
        if issubclass(kind, known):
            return name
    raise TypeError(f"{kind.__name__} is no outcome")


def _version() -> str:
    try:
        return version("outbox-relay")
    except PackageNotFoundError:
        return "unknown"
