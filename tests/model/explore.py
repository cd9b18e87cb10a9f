"""Visits every state of a world, breadth first, and finds the shortest way to whatever is wrong.

States that differ only in which worker or generation is which are one state: `fingerprint`. A worker that can
no longer settle, nor bring anything to the broker that is not there, is as good as gone: `reduced` lets it go
at once, which a test justifies.
"""

from array import array
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from time import process_time

from tests.model.invariants import INVARIANTS, STATES, STEPS, OfStep, done, name
from tests.model.protocol import drop, steps
from tests.model.state import Batch, Lease, State, Step, World, initial, lease_of

Observer = Callable[[State, Step, State], None]


@dataclass
class Exploration:
    """What was found. `trace` leads to the first state in which `broken` does not hold."""

    world: World
    fingerprints: dict[Hashable, int] = field(default_factory=dict)
    edges: int = 0
    depth: int = 0
    seconds: float = 0.0
    broken: str | None = None
    reason: str = ""
    trace: tuple[Step, ...] = ()

    @property
    def states(self) -> int:
        return len(self.fingerprints)

    def __str__(self) -> str:
        world, missing = self.world, ", ".join(sorted(self.world.without))
        events = " ".join(names(world, range(len(world.keys))))
        lines = [
            f"{world.workers} workers, {events}{f', without {missing}' if missing else ''}:",
            f"  {self.states:,} states, {self.edges:,} steps, depth {self.depth}, CPU {self.seconds:.1f} s",
        ]
        if self.broken:
            lines += [f"  {n:2}. {described(world, step)}" for n, step in enumerate(self.trace, 1)]
            lines += [f"  {self.broken}: {self.reason}"]
        return "\n".join(lines)


def explore(
    world: World,
    watched: Collection[str] = INVARIANTS,
    *,
    also: Mapping[str, OfStep] | None = None,
    reduce: bool = True,
    observe: Observer | None = None,
) -> Exploration:
    """Visit all states, or stop at the first that breaks one of the `watched` invariants or one of `also`."""
    found = Exploration(world)
    started = process_time()
    search = _Search(world, watched, also or {}, reduce, observe)
    while search.frontier and found.broken is None:
        found.depth += 1
        search.deepen(found)
    if found.broken is None and "NoDeadEnd" in watched:
        search.look_for_dead_ends(found)
    found.fingerprints, found.edges = search.seen, len(search.sources)
    found.seconds = process_time() - started
    return found


class _Search:
    def __init__(
        self,
        world: World,
        watched: Collection[str],
        also: Mapping[str, OfStep],
        reduce: bool,
        observe: Observer | None,
    ) -> None:
        self.world = world
        self.of_states = {title: wrong for title, wrong in STATES.items() if title in watched}
        self.of_steps = {title: wrong for title, wrong in STEPS.items() if title in watched} | dict(also)
        self.reduce = reduce
        self.observe = observe
        start = initial(world)
        self.seen: dict[Hashable, int] = {fingerprint(start): 0}
        self.frontier = [(0, start)]
        self.ways: list[tuple[int, Step]] = [(0, Step("begins"))]  # to each state: from which, by what
        self.ends = [0] if done(world, start) else []
        self.sources, self.targets = array("L"), array("L")

    def deepen(self, found: Exploration) -> None:
        """One step more from everything that was new in the last round."""
        frontier, self.frontier = self.frontier, []
        for number, state in frontier:
            for step, after in steps(self.world, state):
                self._visit(found, number, state, step, after)
                if found.broken:
                    return

    def _visit(self, found: Exploration, number: int, before: State, step: Step, after: State) -> None:
        if self.observe:
            self.observe(before, step, after)
        for title, wrong_with in self.of_steps.items():
            if reason := wrong_with(self.world, before, step, after):
                self._report(found, title, reason, number, step)
        if self.reduce:
            after = reduced(self.world, after)
        target = self.seen.setdefault(fingerprint(after), len(self.seen))
        self.sources.append(number)
        self.targets.append(target)
        if target < len(self.ways):
            return
        self.ways.append((number, step))
        self.frontier.append((target, after))
        if done(self.world, after):
            self.ends.append(target)
        for title, wrong_in in self.of_states.items():
            if reason := wrong_in(self.world, after):
                self._report(found, title, reason, number, step)

    def look_for_dead_ends(self, found: Exploration) -> None:
        """A state from which no way leads to the end."""
        before: list[list[int]] = [[] for _ in self.seen]
        for source, target in zip(self.sources, self.targets, strict=True):
            before[target].append(source)
        alive = bytearray(len(self.seen))
        reached = list(self.ends)
        while reached:
            number = reached.pop()
            if not alive[number]:
                alive[number] = 1
                reached += before[number]
        if (dead := alive.find(0)) >= 0:
            self._report(found, "NoDeadEnd", "from here nothing leads to the end", *self.ways[dead])

    def _report(self, found: Exploration, title: str, reason: str, number: int, last: Step) -> None:
        found.broken, found.reason = title, reason
        found.trace = (*reversed(list(self._way_back(number))), last)

    def _way_back(self, number: int) -> Iterator[Step]:
        while number:
            number, step = self.ways[number]
            yield step


def fingerprint(state: State) -> Hashable:
    """Equal for states that differ in the names of workers and generations only."""
    owners: dict[int, tuple[object, ...]] = {}
    for lease in state.leases:
        owners[lease.generation] = (lease.events, lease.expired)
    for batch in state.workers:
        if batch:
            owners[batch.generation] = (*owners.get(batch.generation, ()), batch[1:])
    places = {}
    if owners:
        # Those that look alike stay in their order: two fingerprints for one state cost time, nothing else.
        ordered = sorted(owners, key=lambda generation: hash(owners[generation]))
        places = {generation: place for place, generation in enumerate(ordered)}
    return (
        tuple([(*row[:4], places.get(row.generation)) for row in state.rows]),  # type: ignore[arg-type]
        tuple([owners[generation] for generation in places]),
        state.published,
        state.adrift,
        state.excused,
    )


def reduced(world: World, state: State) -> State:
    """A state with the same future, from which less that is idle can happen."""
    if not world.has("fence"):
        return state
    for worker, batch in enumerate(state.workers):
        if batch and batch.settling is None:
            lease = lease_of(state, batch.generation)
            if lease is None or lease.expired:
                state = _without_what_is_idle(world, state, worker, batch)
    if world.early_takeover and not all(lease.expired for lease in state.leases):
        state = state._replace(leases=_where_expiry_matters(state))
    if not state.excused.isdisjoint(state.published):
        state = state._replace(excused=state.excused - state.published)
    return state


def _where_expiry_matters(state: State) -> tuple[Lease, ...]:
    """Whether a lease has run out is of no interest if nobody holds it and it can be reaped anyway."""
    held = {batch.generation for batch in state.workers if batch}
    return tuple(
        lease if lease.generation in held else lease._replace(expired=True) for lease in state.leases
    )


def _without_what_is_idle(world: World, state: State, worker: int, batch: Batch) -> State:
    """Of a batch that can no longer be settled only what the broker does not have matters."""
    new = [event for event in batch.events[batch.handed :] if event not in state.published]
    if not new or (batch.late and world.has("publish deadline")):
        return drop(world, state, worker)
    gone = state.published | batch.accepted
    wire = [event for event in batch.events[: batch.handed] if event not in gone]
    rest = Batch(batch.generation, (*wire, *new), len(wire), late=batch.late)
    if rest == batch:
        return state
    return state._replace(workers=(*state.workers[:worker], rest, *state.workers[worker + 1 :]))


def names(world: World, events: Collection[int]) -> list[str]:
    return [name(world, event) for event in events]


def described(world: World, step: Step) -> str:
    who = f"worker {(step.worker or 0) + 1}"
    events = ", ".join(names(world, step.events))
    acts = ", ".join(f"{n} {act}" for n, act in zip(names(world, step.events), step.acts, strict=False))
    lease = f"generation {step.generation}"
    return {
        "claims": f"{who} claims {events} as {lease}",
        "claims what a settle leaves": f"the settle commits; {who}, whose claim of expired rows had to wait"
        f" for it, goes on with {events} as {lease}",
        "hands over": f"{who} hands {events} to the broker ({lease})",
        "is accepted": f"the broker accepts {events} ({lease})",
        "is accepted late": f"the broker accepts {events}, which was on its way",
        "passes the fence": f"{who}'s settle of {lease} passes the fence: {acts}",
        "commits": f"{who}'s settle of {lease} commits: {acts or 'nothing'}",
        "settles": f"{who} settles {lease}: {acts}",
        "settles too late": f"{who} finds the lease of {lease} gone and drops its batch",
        "ends": f"{who} crashes, or registers anew: {lease} is dropped",
        "expires": f"the lease of {lease} runs out: its worker is slow or frozen",
        "runs out of time": f"the publish deadline of {lease} passes",
        "is reaped": f"{lease} is reaped: {acts}",
        "is reaped early": f"the worker of {lease} is declared dead, its lease reaped: {acts}",
        "becomes due": f"the wait of {events} is over",
        "is redriven": f"an operator redrives {events}",
        "is skipped": f"an operator skips {events}",
    }[step.verb]
