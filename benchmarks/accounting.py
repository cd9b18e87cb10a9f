"""Who used how much CPU and memory, moment by moment.

A thread looks at /proc ten times a second; what was used between any two moments is interpolated. Others are
whatever else the machine did, and what its host took from it.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from relay.bench.local_processes import family_cpu, peak_rss

STEP = 0.1
TICKS = 100.0
OWN = "benchmark"


@dataclass
class Usage:
    """CPU seconds between two moments, by who used them."""

    seconds: float
    cpu: dict[str, float]
    others: float

    @property
    def noise(self) -> float:
        """The share of the machine's CPU that went to others."""
        return self.others / max(self.seconds * (os.cpu_count() or 1), 1e-9)


@dataclass
class Accounting:
    """Watches families of processes by their leaders' ids. Moments are time.time()."""

    families: Mapping[str, Sequence[int]]
    _moments: list[float] = field(default_factory=list)
    _readings: list[dict[str, float]] = field(default_factory=list)
    peak: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def between(self, start: float, end: float) -> Usage:
        first, last = self._at(start), self._at(end)
        used = {name: last[name] - first[name] for name in last}
        machine = used.pop("machine")
        return Usage(end - start, used, max(0.0, machine - sum(used.values())))

    def _run(self) -> None:
        while not self._ended.wait(STEP):
            self._look()

    def _look(self) -> None:
        reading = {"machine": _machine_cpu(), OWN: sum(os.times()[:2])}
        before = self._readings[-1] if self._readings else {}
        for name, leaders in self.families.items():
            # A process that has ended keeps what it had used.
            total = sum(family_cpu(leader) or 0.0 for leader in leaders)
            reading[name] = max(total, before.get(name, 0.0))
            memory = sum(peak_rss(leader) or 0 for leader in leaders)
            self.peak[name] = max(memory, self.peak.get(name, 0))
        self._moments.append(time.time())
        self._readings.append(reading)

    def _at(self, moment: float) -> dict[str, float]:
        moments, readings = self._moments, self._readings
        after = next((i for i, each in enumerate(moments) if each >= moment), len(moments) - 1)
        before = max(after - 1, 0)
        span = moments[after] - moments[before]
        share = min(max((moment - moments[before]) / span, 0.0), 1.0) if span > 0 else 1.0
        low, high = readings[before], readings[after]
        return {name: low[name] + (high[name] - low[name]) * share for name in high}


def _machine_cpu() -> float:
    fields = Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    user, nice, system, _idle, _wait, _irq, _softirq, stolen = map(int, fields)
    return (user + nice + system + stolen) / TICKS
