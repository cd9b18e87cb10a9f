"""Rates and latencies of all workers, worked out from what each tells of itself. Pure.

A worker tells its counts every few seconds with the database's time; two of them make a rate. Twice the
same count says that it rests; one that is dead or silent counts as resting.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

SILENT_SECONDS = 15.0
LATENCY_SECONDS = 15.0
OUTCOMES = ("delivered", "unconfirmed", "refused")


@dataclass(frozen=True)
class Flow:
    """What goes through now. Latencies are None while nothing is confirmed."""

    rates: dict[str, float]  # events per second by outcome, all workers together
    workers: dict[str, float]  # delivered per second by worker
    latency: dict[str, float | None] = field(default_factory=dict)  # seconds by quantile


class Trend:
    def __init__(self) -> None:
        self._told: dict[str, deque[dict[str, Any]]] = {}

    def add(self, workers: Iterable[dict[str, Any]]) -> Flow:
        """Take what all workers tell now."""
        rates: Counter[str] = Counter()
        by_worker: dict[str, float] = {}
        confirmed: Counter[str] = Counter()
        known = {}
        for worker in workers:
            tally = worker["tally"]
            if not tally or worker["status"] == "dead":
                continue
            told = known[worker["id"]] = self._told.get(worker["id"], deque())
            if not told or told[-1]["at"] != tally["at"]:
                told.append(tally)
            while len(told) > 2 and told[1]["at"] < worker["now"] - LATENCY_SECONDS:
                told.popleft()
            resting = worker["now"] - tally["at"] > SILENT_SECONDS or len(told) < 2
            by_worker[worker["id"]] = 0.0
            if not resting:
                speeds = _speeds(told[-2], told[-1])
                rates.update(speeds)
                by_worker[worker["id"]] = speeds.get("delivered", 0.0)
                confirmed.update(_gained(told[0]["confirmed"], told[-1]["confirmed"]))
        self._told = known
        quantiles = {f"p{share}": quantile(confirmed, share / 100) for share in (50, 95, 99)}
        return Flow({name: rates[name] for name in OUTCOMES}, by_worker, quantiles)


def _speeds(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    seconds = max(after["at"] - before["at"], 0.001)
    return {name: n / seconds for name, n in _gained(before["published"], after["published"]).items()}


def _gained(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: max(number - before.get(name, 0), 0) for name, number in after.items()}


def quantile(cumulative: dict[str, int], share: float) -> float | None:
    """From the counts of a histogram, as Prometheus does it: straight between two bounds."""
    bounds = sorted((float(bound), number) for bound, number in cumulative.items())
    total = bounds[-1][1] if bounds else 0
    if not total:
        return None
    wanted = share * total
    low, below = 0.0, 0
    for bound, number in bounds:
        if number >= wanted:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (wanted - below) / max(number - below, 1)
        low, below = bound, number
    return low
