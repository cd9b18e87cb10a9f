"""Judges a demo by what its two ends saw: the orders domain and the billing consumer.

Pure: the relay itself is never asked. Every kind of fault has a count of its own, and one of any kind,
or a run in which nothing happened, is enough for the verdict to be bad.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class Emitted(NamedTuple):
    """An event whose transaction committed; its id is kept beside it."""

    key: str
    number: int  # the place among the committed events of its key, from 1
    committed_at: float  # when the commit was sent


class Received(NamedTuple):
    """A message as the consumer got it."""

    event_id: str
    received_at: float


FAULTS = {
    "duplicates_applied": "applied more than once",
    "lost": "committed, never delivered",
    "not_applied": "delivered, never applied",
    "rolled_back_published": "rolled back, delivered all the same",
    "never_emitted": "delivered, emitted by nobody",
    "out_of_order": "delivered first behind a later event of its key",
}


@dataclass(frozen=True)
class Verdict:
    emitted: int
    rolled_back: int
    delivered: int
    duplicates_seen: int
    duplicates_applied: int
    lost: int
    not_applied: int
    rolled_back_published: int
    never_emitted: int
    out_of_order: int
    events_per_second: float
    latency_p50_ms: float | None
    latency_p99_ms: float | None

    @property
    def faults(self) -> dict[str, int]:
        """The faults that occurred, with their counts."""
        return {name: count for name in FAULTS if (count := getattr(self, name))}

    @property
    def clean(self) -> bool:
        return self.delivered > 0 and not self.faults

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"clean": self.clean}


def judge(
    emitted: Mapping[str, Emitted],
    rolled_back: Collection[str],
    received: Sequence[Received],
    applied: Mapping[str, int],
) -> Verdict:
    """The verdict; `received` in the order of arrival, `applied` how often each event was applied."""
    counts = Counter(message.event_id for message in received)
    first = _first_arrivals(received)
    delivered = [event_id for event_id in first if event_id in emitted]
    undone = set(rolled_back)
    latencies = sorted(first[event_id] - emitted[event_id].committed_at for event_id in delivered)
    return Verdict(
        emitted=len(emitted),
        rolled_back=len(undone),
        delivered=len(delivered),
        duplicates_seen=counts.total() - len(counts),
        duplicates_applied=sum(times - 1 for times in applied.values() if times > 1),
        lost=len(emitted) - len(delivered),
        not_applied=sum(1 for event_id in delivered if not applied.get(event_id)),
        rolled_back_published=len(undone & (set(counts) | set(applied))),
        never_emitted=len((set(counts) | set(applied)) - set(emitted) - undone),
        out_of_order=_out_of_order(emitted[event_id] for event_id in delivered),
        events_per_second=_rate(emitted, first, delivered),
        latency_p50_ms=_percentile_ms(latencies, 0.50),
        latency_p99_ms=_percentile_ms(latencies, 0.99),
    )


def _first_arrivals(received: Sequence[Received]) -> dict[str, float]:
    first: dict[str, float] = {}
    for message in received:
        first.setdefault(message.event_id, message.received_at)
    return first


def _out_of_order(arrivals: Iterable[Emitted]) -> int:
    latest: dict[str, int] = {}
    behind = 0
    for event in arrivals:
        if event.number < latest.get(event.key, 0):
            behind += 1
        else:
            latest[event.key] = event.number
    return behind


def _rate(emitted: Mapping[str, Emitted], first: Mapping[str, float], delivered: Sequence[str]) -> float:
    if not delivered:
        return 0.0
    began = min(emitted[event_id].committed_at for event_id in delivered)
    ended = max(first[event_id] for event_id in delivered)
    return round(len(delivered) / max(ended - began, 0.001), 1)


def _percentile_ms(ordered: Sequence[float], share: float) -> float | None:
    """The nearest rank: the smallest value that at least this share of all values does not exceed."""
    if not ordered:
        return None
    return round(ordered[max(math.ceil(share * len(ordered)) - 1, 0)] * 1000, 1)
