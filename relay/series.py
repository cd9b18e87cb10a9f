"""What metrics are made of: a catalogue of names, bounded labels, histograms that take batches. No I/O."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from relay.destination import shown

OTHER = "other"
# Below so many values, sorting them costs more than it saves.
FEW = 40

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Source: TypeAlias = Literal["worker", "housekeeper"]


class Series(NamedTuple):
    """One family of series. Of the housekeeper: one worker at a time exposes it, for the whole outbox."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    source: Source = "worker"

    def samples(self) -> list[str]:
        """The names that a query may use."""
        match self.kind:
            case "counter":
                return [f"{self.name}_total"]
            case "gauge":
                return [self.name]
            case "histogram":
                return [f"{self.name}_{part}" for part in ("bucket", "sum", "count")]


class Catalogue:
    """Makes metrics and remembers what they are."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.series: list[Series] = []

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        self.series.append(Series(name, "counter", text, labels))
        return Counter(name, text, labels, registry=self._registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        self.series.append(Series(name, "gauge", text, labels))
        return Gauge(name, text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, bounds: Sequence[float]) -> Histogram:
        self.series.append(Series(name, "histogram", text))
        return Histogram(name, text, buckets=bounds, registry=self._registry)

    def ages(self, name: str, text: str, label: str, bounds: Sequence[float]) -> "Ages":
        self.series.append(Series(name, "histogram", text, (label,)))
        ages = Ages(name, text, label, bounds)
        self._registry.register(ages)
        return ages


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


class Ages(Collector):
    """A histogram of how long ago things were, by one label. Takes a whole batch at once."""

    def __init__(self, name: str, text: str, label: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._bounds = list(bounds)
        self._spans = [timedelta(seconds=bound) for bound in bounds]
        self._lock = threading.Lock()
        self._counts: dict[str, list[int]] = {}  # not cumulative
        self._sums: dict[str, float] = {}

    def observe(self, label: str, moments: list[datetime], now: datetime) -> None:
        """Add the age of each moment; one that is still to come counts as no time."""
        counts, total = self._spread(moments, now)
        with self._lock:
            known = self._counts.get(label)
            self._counts[label] = counts if known is None else list(map(int.__add__, known, counts))
            self._sums[label] = self._sums.get(label, 0.0) + total

    def _spread(self, moments: list[datetime], now: datetime) -> tuple[list[int], float]:
        """How many fall between any two bounds, and the sum of the ages."""
        counts, total = [0] * (len(self._bounds) + 1), 0.0
        if len(moments) < FEW:
            for moment in moments:
                age = max((now - moment).total_seconds(), 0.0)
                counts[bisect_left(self._bounds, age)] += 1
                total += age
            return counts, total
        moments = sorted(moments)
        if moments[-1] > now:
            moments = [min(moment, now) for moment in moments]
        older = len(moments)
        for index, span in enumerate(self._spans):
            beyond = bisect_left(moments, now - span, 0, older)
            counts[index] = older - beyond
            older = beyond
            if not older:
                break
        counts[-1] = older
        return counts, sum(map(timedelta.total_seconds, map(now.__sub__, moments)))

    def collect(self) -> Iterable[HistogramMetricFamily]:
        with self._lock:
            found = {label: (list(counts), self._sums[label]) for label, counts in self._counts.items()}
        (family,) = self.describe()
        for label, (counts, total) in found.items():
            buckets, seen = [], 0
            for bound, count in zip([*map(str, self._bounds), "+Inf"], counts, strict=True):
                seen += count
                buckets.append((bound, seen))
            family.add_metric([label], buckets, total)
        yield family

    def describe(self) -> Iterable[HistogramMetricFamily]:
        return [HistogramMetricFamily(self._name, self._text, labels=[self._label])]
