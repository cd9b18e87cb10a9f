"""The verdict on a run: what the brokers hold and what the table went through, against what was promised.

Pure. Violations are lost events, events that were published although nobody committed them, first occurrences
out of order, settlements by someone who no longer held the lease, innocent dead letters, poison that went
out, and work that was left behind. A duplicate is allowed but must have a cause: the lease under which
the event went out the time before ended otherwise than in a completion, and somebody knows why.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

REAPER = "keeper"
SETTLER = "settler"
MARKED = "marked"
LEASE_LOST = "lease lost"
RAN_OUT = "the lease ran out"


class Row(NamedTuple):
    """An event as the table has it in the end."""

    event_id: str
    key: str
    position: int
    status: str
    poison: bool


class Message(NamedTuple):
    """What a broker holds, each key's messages in the broker's order."""

    event_id: str
    key: str
    position: int
    generation: int


class Change(NamedTuple):
    """A lease that an event came under (`after`: processing), or a change of its row, as triggers saw them.

    In the order in which they were made. What was under a lease was `processing` before, whatever it said.
    """

    event_id: str
    key: str
    position: int
    before: str
    after: str
    generation: int  # of the lease that begins or ends here
    worker: str  # whose lease it is
    by: str  # what the session is for: claimer, settler, keeper
    of: str  # the end of the id of the worker that the session belongs to
    settles: int | None  # the generation that a settle believes to settle
    in_time: bool  # whether its statement began before the lease ran out
    error: str | None


@dataclass(frozen=True)
class Evidence:
    rows: Sequence[Row]
    messages: Sequence[Message]
    changes: Sequence[Change]
    acknowledged: Collection[str] = ()  # events whose commit the server has acknowledged
    leases_left: int = 0
    fates: Mapping[str, str] = field(default_factory=dict)  # what befell workers, by their id


@dataclass(frozen=True)
class Verdict:
    events: int
    messages: int
    violations: Mapping[str, Sequence[str]]
    duplicates: Mapping[str, int]  # by cause

    def __str__(self) -> str:
        duplicated = sum(self.duplicates.values())
        lines = [f"{self.events} events, {self.messages} messages, {duplicated} duplicates"]
        lines += [
            f"  {number:6} duplicates: {cause}" for cause, number in Counter(self.duplicates).most_common()
        ]
        for name, found in self.violations.items():
            lines.append(f"  VIOLATION {name}: {len(found)}, e.g. {'; '.join(found[:5])}")
        return "\n".join(lines)


def check(evidence: Evidence) -> Verdict:
    known = {row.event_id: row for row in evidence.rows}
    published = {message.event_id for message in evidence.messages}
    causes, unexplained = _duplicates(evidence)
    found = {
        "lost": [r.event_id for r in evidence.rows if not r.poison and r.event_id not in published],
        "forgotten by the database": sorted(set(evidence.acknowledged) - known.keys()),
        "published but never committed": sorted(published - known.keys()),
        "out of order": list(_inversions(evidence.messages)),
        "stale settlement": list(_stale(evidence.changes)),
        "two leases of a key": list(_overlaps(evidence.changes)),
        "dead letter without poison": [
            r.event_id for r in evidence.rows if r.status in ("dead_letter", "failed") and not r.poison
        ],
        "poison published": [r.event_id for r in evidence.rows if r.poison and r.event_id in published],
        "left behind": [
            f"{r.event_id} is {r.status}" for r in evidence.rows if r.status in ("pending", "processing")
        ]
        + [f"{evidence.leases_left} leases"] * (evidence.leases_left > 0),
        "poison not parked": [r.event_id for r in evidence.rows if r.poison and r.status == "completed"],
        "duplicate without a cause": unexplained,
    }
    violations = {name: what for name, what in found.items() if what}
    return Verdict(len(evidence.rows), len(evidence.messages), violations, causes)


def _inversions(messages: Iterable[Message]) -> Iterator[str]:
    """First occurrences that came behind a later one of their key."""
    highest: dict[str, Message] = {}
    seen: set[str] = set()
    for message in messages:
        if message.event_id in seen:
            continue
        seen.add(message.event_id)
        before = highest.setdefault(message.key, message)
        if before.position > message.position:
            yield f"{message.event_id} of {message.key} behind {before.event_id}"
        else:
            highest[message.key] = message


def _stale(changes: Iterable[Change]) -> Iterator[str]:
    """Changes that only somebody without the lease can have made."""
    for change in changes:
        step = f"{change.event_id} {change.before} → {change.after} by {change.by} {change.of}"
        if (change.before, change.after) == ("pending", "processing"):
            if change.by != "claimer" or not change.worker.endswith(change.of):
                yield f"{step}: claimed for {change.worker}"
        elif change.before != "processing":
            yield f"{step}: not a change that a relay makes"
        elif change.by == SETTLER:
            if not change.worker.endswith(change.of):
                yield f"{step}: the lease is {change.worker}'s"
            elif change.settles != change.generation and change.after != MARKED:
                yield f"{step}: settles generation {change.settles}, the lease is of {change.generation}"
            elif not change.in_time:
                yield f"{step}: generation {change.generation} had run out"
        elif change.by != REAPER or change.after == MARKED:
            yield f"{step}: not its business"


def _overlaps(changes: Iterable[Change]) -> Iterator[str]:
    """Claims of a key that had a lease, and generations that do not grow along a key."""
    held: dict[str, dict[str, int]] = defaultdict(dict)
    newest: dict[str, int] = {}
    for change in changes:
        lane = held[change.key]
        if change.after == MARKED:
            continue
        if change.after != "processing":
            lane.pop(change.event_id, None)
            continue
        others = {generation for generation in lane.values() if generation != change.generation}
        if others:
            yield f"{change.key} under {change.generation} and {others}"
        if change.generation < newest.get(change.key, 0):
            yield f"{change.key} under {change.generation} after {newest[change.key]}"
        newest[change.key] = change.generation
        lane[change.event_id] = change.generation


def _duplicates(evidence: Evidence) -> tuple[Counter[str], list[str]]:
    """How many duplicates each cause has made, and those without one."""
    causes: Counter[str] = Counter()
    unexplained: list[str] = []
    ends = _Ends(evidence.changes, evidence.fates)
    occurrences: dict[str, list[int]] = defaultdict(list)
    for message in evidence.messages:
        occurrences[message.event_id].append(message.generation)
    for event_id, generations in occurrences.items():
        # All but the last lease must have ended without a completion.
        for generation, times in groupby(sorted(generations)[:-1]):
            number = len(list(times))
            cause = ends.cause(event_id, generation)
            if cause is None:
                unexplained.append(f"{event_id} under {generation} of {sorted(generations)}")
            else:
                causes[cause] += number
    return causes, unexplained


class _Ends:
    """How leases ended without a completion, and why."""

    def __init__(self, changes: Iterable[Change], fates: Mapping[str, str]) -> None:
        self._fates = fates
        self._of: dict[tuple[str, int], Change] = {}
        # The first event of a key that was not delivered says why; those behind it were held up.
        self._first: dict[tuple[str, int], Change] = {}
        for change in changes:
            if change.before != "processing" or change.after in ("completed", MARKED):
                continue
            self._of[change.event_id, change.generation] = change
            first = self._first.setdefault((change.key, change.generation), change)
            if change.position < first.position:
                self._first[change.key, change.generation] = change

    def cause(self, event_id: str, generation: int) -> str | None:
        end = self._of.get((event_id, generation))
        if end is None:
            return None
        if end.by == REAPER:
            if fate := self._fates.get(end.worker):
                return f"{LEASE_LOST}: {fate}"
            return None if end.in_time else RAN_OUT
        return self._first[end.key, generation].error
