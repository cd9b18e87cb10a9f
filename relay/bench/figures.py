"""Rates, percentiles and ratios out of what was measured. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from relay.bench.journal import Entry
from relay.bench.measure import Cost

BINS = 40


@dataclass(frozen=True)
class Pace:
    """How a drain went along."""

    events: int
    seconds: float  # from the start to the last confirmation
    rate: float  # between the first confirmation and the last
    course: list[int]  # events per second, in equal parts of that time


def pace(entries: Sequence[Entry], started: float) -> Pace:
    """`entries` by time. One batch alone has no rate but the one that counts its way to it."""
    events = sum(len(entry.positions) for entry in entries)
    if not events:
        return Pace(0, 0.0, 0.0, [])
    first, last = entries[0].at, entries[-1].at
    within = events - len(entries[0].positions)
    seconds = last - started
    if last <= first or within < events / 2:
        return Pace(events, seconds, events / max(seconds, 1e-9), [])
    bins = [0] * min(BINS, max(1, len(entries) // 2))
    width = (last - first) / len(bins)
    for entry in entries[1:]:
        bins[min(int((entry.at - first) / width), len(bins) - 1)] += len(entry.positions)
    return Pace(events, seconds, within / (last - first), [round(number / width) for number in bins])


@dataclass(frozen=True)
class Figure:
    """One measured drain. `ratios`: its events per second as a share of others of the same run."""

    name: str
    pace: Pace
    cost: Cost
    workers: int = 1
    ratios: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.pace.rate

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "workers": self.workers,
            "events": self.pace.events,
            "seconds": round(self.pace.seconds, 3),
            "events_per_second": round(self.rate),
            "ratio_of_raw_loop": self.ratios.get("raw_loop"),
            "ratio_of_client": self.ratios.get("client"),
            "ratio_of_plain": self.ratios.get("plain"),
            **costs(self.cost, self.pace.events),
            "course": self.pace.course,
        }


def costs(cost: Cost, events: int) -> dict[str, Any]:
    """What an event cost each of those involved."""
    micro = 1e6 / max(events, 1)
    parts = {
        "relay_cpu_us_per_event": cost.relay_cpu,
        "database_cpu_us_per_event": cost.database_cpu,
        "broker_cpu_us_per_event": cost.broker_cpu,
    }
    return {
        **{name: None if seconds is None else round(seconds * micro, 1) for name, seconds in parts.items()},
        "wal_bytes_per_event": round(cost.wal_bytes / max(events, 1)),
        "dead_tuples_per_event": round(cost.dead_rows / max(events, 1), 3),
        "hot_update_share": None if cost.hot_share is None else round(cost.hot_share, 3),
        "peak_rss_mib": None if cost.peak_rss is None else round(cost.peak_rss / 2**20, 1),
        "other_processes_cpu_share": None if cost.other_share is None else round(cost.other_share, 3),
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank: the smallest value that at least this share of all values does not exceed."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def latency(seconds: Sequence[float]) -> dict[str, float] | None:
    """In milliseconds."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    shares = {"p50": 0.5, "p99": 0.99, "p99_9": 0.999, "max": 1.0}
    return {name: round(percentile(ordered, share) * 1000, 2) for name, share in shares.items()}


def histogram(seconds: Sequence[float]) -> list[tuple[float, int]]:
    """Upper bounds in milliseconds, five to a tenfold, and how many values fall under each."""
    bounds = [0.1 * 10 ** (step / 5) for step in range(26)]
    counts = [0] * len(bounds)
    for value in seconds:
        index = next((i for i, bound in enumerate(bounds) if value * 1000 <= bound), len(bounds) - 1)
        counts[index] += 1
    used = [i for i, count in enumerate(counts) if count]
    if not used:
        return []
    return [(round(bounds[i], 2), counts[i]) for i in range(used[0], used[-1] + 1)]


def ratio(rate: float, ceiling: float | None) -> float | None:
    return round(rate / ceiling, 2) if ceiling else None
