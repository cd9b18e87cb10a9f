"""What a run of the fault suite is made of, and what it reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.arena import BrokerName
from tests.faults.checker import Verdict
from tests.faults.faults import LANES, Fault


def every_fault() -> dict[str, list[Fault]]:
    return {lane: make() for lane, make in LANES.items()}


@dataclass(frozen=True)
class Plan:
    """The faults of a lane strike one after another: for so many seconds, or once each."""

    broker: BrokerName
    relays: int
    seed: int
    faults: Mapping[str, Sequence[Fault]] = field(default_factory=every_fault)
    seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.relays} relays, {self.broker}, seed {self.seed}"


@dataclass(frozen=True)
class Report:
    plan: Plan
    verdict: Verdict
    struck: Mapping[str, int]  # by kind of fault
    missed: Sequence[str]  # kinds that were planned and never struck
    injected: int  # publications that were made to fail
    fenced: int  # settlements that came too late and changed nothing
    clock_off: float  # seconds, of the relay whose clock is furthest off
    exits: Mapping[int, int]  # relays that ended under way, by exit code
    drained: Sequence[int]  # exit codes in the end
    tracebacks: Sequence[str]
    seconds: float
    logs: Path

    @property
    def problems(self) -> list[str]:
        found = [f"{name}: {len(what)}" for name, what in self.verdict.violations.items()]
        found += [f"never struck: {kind}" for kind in self.missed]
        found += [f"traceback: {line}" for line in self.tracebacks]
        if any(self.drained):
            found.append(f"exit codes in the end: {self.drained}")
        if not self.injected:
            found.append("no publication was made to fail")
        if abs(self.clock_off) < 3500:
            found.append("no clock was off")
        return found

    def __str__(self) -> str:
        faults = "".join(f"\n  {number:6} x {kind}" for kind, number in sorted(self.struck.items()))
        problems = "".join(f"\n  PROBLEM {problem}" for problem in self.problems)
        kept = f"\n  The relays' logs are in {self.logs}" if problems else ""
        return (
            f"{self.plan}: {self.verdict}{faults}\n  {self.injected:6} x failed publication"
            f"\n  {self.fenced:6} x settlement refused because the lease was gone"
            f"\n  clock of one relay off by {self.clock_off:+.0f} s; relays ended {dict(self.exits)};"
            f" took {self.seconds:.0f} s{problems}{kept}"
        )
