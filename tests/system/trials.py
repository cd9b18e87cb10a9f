"""Randomised trials of a publisher on a broker that misbehaves, for any broker.

A trial publishes as the relay does: runs of several keys in one batch, and again from the first event of
each key that was not confirmed. Meanwhile one fault comes and goes. New events keep coming until it has
gone, so that it always meets traffic. Then the broker is read, and the verdict says whether anything was
lost or out of order. A trial in which nothing had to be published again did not bite, and proves nothing.
"""

import sys
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from time import monotonic
from typing import Protocol, TypeAlias

from relay.event import Event
from relay.outcome import Publisher
from relay.settlement import Settlement, judge
from relay.testing import Received, make_event

# Strikes, lasts for a while that depends on the deadline of a publish call, and heals before it returns.
Fault: TypeAlias = Callable[[Random, float], None]

PATIENCE = 90.0


class TrialRig(Protocol):
    """What a trial needs of a broker."""

    def fresh_destination(self) -> str:
        """A new, empty place to publish to."""

    def make(self) -> Publisher:
        """A new publisher, connected so that the faults reach it."""

    def received(self, destination: str) -> list[Received]:
        """Everything that is there, each key's messages in the broker's order. Called after the fault."""

    def faults(self) -> Mapping[str, Fault]: ...


@dataclass
class Verdict:
    number: int
    fault: str
    events: int = 0
    delivered: int = 0  # reported as such
    resent: int = 0  # events that were published again because they were not confirmed
    duplicates: int = 0  # messages beyond the first of each event
    lost: int = 0  # events that are not in the broker
    missing: int = 0  # of those: reported as delivered
    inversions: int = 0  # first occurrences behind a later event of their key
    reasons: list[str] = field(default_factory=list)

    @property
    def bit(self) -> bool:
        return self.resent > 0

    @property
    def kept_the_promise(self) -> bool:
        return self.delivered == self.events and not (self.lost or self.missing or self.inversions)

    def __str__(self) -> str:
        return (
            f"{self.number:4} {self.fault:<10} events={self.events:<5} resent={self.resent:<4}"
            f" duplicates={self.duplicates:<4} lost={self.lost} missing={self.missing}"
            f" inversions={self.inversions} {'bit' if self.bit else 'did not bite'}"
        )


def run_trials(
    rig: TrialRig, names: Iterable[str], *, seed: int, deadline_seconds: float = 1.0
) -> Iterator[Verdict]:
    """One trial for each name of a fault."""
    faults = rig.faults()
    for number, name in enumerate(names, 1):
        yield run_trial(
            rig, number, name, faults[name], Random(f"{seed}-{number}"), deadline_seconds=deadline_seconds
        )


def run_trial(
    rig: TrialRig, number: int, name: str, fault: Fault, rng: Random, *, deadline_seconds: float
) -> Verdict:
    verdict = Verdict(number, name)
    lanes = _Lanes(rig.fresh_destination(), rng)
    publisher = rig.make()
    striking = threading.Thread(target=fault, args=[rng, deadline_seconds])
    strike_at = rng.randint(2, 12)
    give_up = monotonic() + PATIENCE
    try:
        rounds = 0
        while (rounds <= strike_at or striking.is_alive() or lanes.waiting) and monotonic() < give_up:
            if rounds == strike_at:
                striking.start()
            if rounds <= strike_at or striking.is_alive():
                lanes.grow()
            batch = lanes.batch()
            outcomes = publisher.publish(batch, monotonic() + deadline_seconds)
            lanes.settle(batch, judge(batch, outcomes, "block").settlements, verdict)
            rounds += 1
    finally:
        if striking.ident is not None:
            striking.join()
        publisher.close()
    lanes.check(rig.received(lanes.destination), verdict)
    return verdict


class _Lanes:
    """The live events of each key, as the outbox would hold them."""

    def __init__(self, destination: str, rng: Random) -> None:
        self.destination = destination
        self._rng = rng
        self._waiting: dict[str, deque[Event]] = {f"order:{n}": deque() for n in range(rng.randint(3, 8))}
        self._all: list[Event] = []
        self._published: Counter[str] = Counter()
        self._confirmed: set[str] = set()

    @property
    def waiting(self) -> bool:
        return any(self._waiting.values())

    def grow(self) -> None:
        for key, lane in self._waiting.items():
            if len(lane) < 60:
                new = [make_event(key, destination=self.destination) for _ in range(self._rng.randint(0, 20))]
                lane.extend(new)
                self._all += new

    def batch(self) -> list[Event]:
        """A run from the head of each lane, shuffled together."""
        runs = [list(lane)[: self._rng.randint(1, 30)] for lane in self._waiting.values() if lane]
        runs = [run[::-1] for run in runs]
        batch = []
        while runs:
            run = self._rng.choice(runs)
            batch.append(run.pop())
            if not run:
                runs.remove(run)
        return batch

    def settle(self, batch: Sequence[Event], settlements: Sequence[Settlement], verdict: Verdict) -> None:
        for event, settlement in zip(batch, settlements, strict=True):
            self._published[event.event_id] += 1
            if settlement.act == "complete":
                head = self._waiting[event.key].popleft()
                assert head is event, "an event was confirmed ahead of its predecessor"
                self._confirmed.add(event.event_id)
            elif settlement.act == "block":
                raise AssertionError(f"an innocent event was given up: {settlement}")
            elif settlement.error is not None:
                verdict.reasons.append(settlement.error)

    def check(self, received: Sequence[Received], verdict: Verdict) -> None:
        first: dict[str, list[int]] = defaultdict(list)
        seen: Counter[str] = Counter()
        for message in received:
            seen[message.event_id] += 1
            if seen[message.event_id] == 1:
                first[message.headers["partition_key"]].append(int(message.headers["position"]))
        absent = {event.event_id for event in self._all} - seen.keys()
        verdict.events = len(self._all)
        verdict.delivered = len(self._confirmed)
        verdict.resent = sum(times > 1 for times in self._published.values())
        verdict.duplicates = seen.total() - len(seen)
        verdict.lost = len(absent)
        verdict.missing = len(absent & self._confirmed)
        verdict.inversions = sum(_inversions(positions) for positions in first.values())


def _inversions(positions: Sequence[int]) -> int:
    highest = accumulate(positions, max)
    return sum(position < high for position, high in zip(positions, highest, strict=True))


class CountingRig(TrialRig, Protocol):
    """A rig that says how its last trial was made, and what that left on its way."""

    setting: str

    @property
    def stranded(self) -> int:
        """Messages that were on their way when their connection was given up."""


@dataclass(frozen=True)
class Trial:
    verdict: Verdict
    setting: str
    stranded: int
    bit: bool

    def __str__(self) -> str:
        verdict = self.verdict
        return (
            f"{verdict.number:4} {verdict.fault:<15} {self.setting:<34} events={verdict.events:<5}"
            f" stranded={self.stranded:<4} resent={verdict.resent:<4} duplicates={verdict.duplicates:<4}"
            f" lost={verdict.lost} missing={verdict.missing} inversions={verdict.inversions}"
            f" {'bit' if self.bit else 'did not bite'}"
        )


def until_bitten(
    rig: CountingRig, verdicts: Iterable[Verdict], bites: int, *, by_duplicates: bool = False
) -> Iterator[Trial]:
    """Trials until so many of them bit or twice as many were run.

    They bite by what was stranded; by_duplicates: or is in the broker twice.
    """
    bit = 0
    for verdict in verdicts:
        teeth = rig.stranded + (verdict.duplicates if by_duplicates else 0)
        trial = Trial(verdict, rig.setting, rig.stranded, verdict.bit and teeth > 0)
        yield trial
        bit += trial.bit
        if bit == bites or verdict.number == 2 * bites:
            return


def tell(head: str, trials: Iterable[Trial]) -> None:
    """Prints a log of trials as they end, and what they come to."""

    def line(text: object) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    line(head)
    run: list[Trial] = []
    for trial in trials:
        run.append(trial)
        line(trial)
    kinds = Counter(trial.verdict.fault for trial in run if trial.bit)
    line(f"\n{len(run)} trials, of which {kinds.total()} bit: {dict(kinds)}")
    for what in ("events", "resent", "duplicates", "lost", "missing", "inversions"):
        line(f"{what:<10} {sum(getattr(trial.verdict, what) for trial in run)}")
