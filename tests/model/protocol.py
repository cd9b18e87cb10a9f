"""The protocol of claim, publish, settle and reap as a model: its states, and what can happen in each.

A step is what the real protocol does at once: a claim's transaction, one event handed to the broker, the
broker taking it, a settle passing its fence, its commit, a reap's transaction. Between any two steps
anything else may happen. A worker that is slow or frozen takes no steps while its lease runs out. One that
crashes, loses a connection or learns that it was declared dead drops its batch and registers anew.

A worker here holds one batch; a real one that holds several is like several of these. A claim may take any
part of a run from its head on, as if the rest had not been written yet.

What a lease names is processing here. In the table it says so only where it lasts (settle.MARK), and nothing
depends on that: test_rows.py puts both to the real statements. So no step here looks at a row's generation.

Not in the model: snapshots older than another's commit (tests/integration/test_mutants.py stops transactions
there), pauses, and sizes. Guards can be left out, to see what each is for.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias, TypeVar

from relay.settlement import Act
from tests.model.lanes import choices, is_due
from tests.model.outcomes import possible_acts
from tests.model.state import Batch, Lease, Row, State, Step, World, lease_of

Next: TypeAlias = Iterator[tuple[Step, State]]
Item = TypeVar("Item")


def steps(world: World, state: State) -> Next:
    """Everything that can happen next."""
    yield from _claim(world, state)
    for worker, batch in enumerate(state.workers):
        if batch:
            yield from _publish(world, state, worker, batch)
            yield from _settle(world, state, worker, batch)
            yield Step("ends", batch.generation, worker), drop(world, state, worker)
    for wire in state.adrift:
        yield Step("is accepted late", events=wire[:1]), _published(state, wire[0])
    yield from _pass_time(state)
    yield from _reap(world, state)
    if world.operators:
        yield from _operate(state)


# Claim


def _claim(world: World, state: State) -> Next:
    if None in state.workers:
        worker = state.workers.index(None)
        locked = _locked(state)
        for events in sorted(choices(world, state)):
            if locked.isdisjoint(events):
                step = Step("claims", state.generation + 1, worker, events)
                yield step, _granted(state, worker, events)


def _granted(state: State, worker: int, events: tuple[int, ...]) -> State:
    generation = state.generation + 1
    rows = list(state.rows)
    for event in events:
        row = rows[event]
        attempts = row.attempts + (row.status == "pending")
        rows[event] = Row("processing", True, attempts, row.losses, generation)
    # Only a claim that takes over expired rows finds another lease that names them.
    others = [
        lease._replace(events=tuple(e for e in lease.events if e not in events)) for lease in state.leases
    ]
    return state._replace(
        rows=tuple(rows),
        leases=(*(lease for lease in others if lease.events), Lease(generation, events)),
        workers=_with(state.workers, worker, Batch(generation, events)),
        generation=generation,
    )


# Publish


def _publish(world: World, state: State, worker: int, batch: Batch) -> Next:
    late = batch.late and world.has("publish deadline")
    if batch.handed < len(batch.events) and batch.settling is None and not late:
        event = batch.events[batch.handed]
        handed = batch._replace(handed=batch.handed + 1)
        step = Step("hands over", batch.generation, worker, (event,))
        yield step, state._replace(workers=_with(state.workers, worker, handed))
    for wire in _wires(world, batch):
        for event in wire[:1] if world.has("order on the wire") else wire:
            accepted = batch._replace(accepted=batch.accepted | {event})
            after = state._replace(workers=_with(state.workers, worker, accepted))
            yield Step("is accepted", batch.generation, worker, (event,)), _published(after, event)


def _wires(world: World, batch: Batch) -> list[tuple[int, ...]]:
    """What was handed over and not accepted, by key: each key's messages arrive in their order."""
    waiting = [event for event in batch.events[: batch.handed] if event not in batch.accepted]
    keys = dict.fromkeys(world.keys[event] for event in waiting)
    return [tuple(event for event in waiting if world.keys[event] == key) for key in keys]


def _published(state: State, event: int) -> State:
    published = state.published | {event}
    return state._replace(published=published, adrift=_news(state.adrift, published))


def _news(adrift: frozenset[tuple[int, ...]], published: frozenset[int]) -> frozenset[tuple[int, ...]]:
    """Without what the broker has: another copy of that changes nothing."""
    if not adrift:
        return adrift
    wires = (tuple(event for event in wire if event not in published) for wire in adrift)
    return frozenset(wire for wire in wires if wire)


def drop(world: World, state: State, worker: int) -> State:
    """The worker forgets its batch. What it handed over may still arrive."""
    batch = state.workers[worker]
    assert batch is not None
    adrift = state.adrift.union(_wires(world, batch)) if batch.handed else state.adrift
    return state._replace(workers=_with(state.workers, worker, None), adrift=_news(adrift, state.published))


# Settle


def _settle(world: World, state: State, worker: int, batch: Batch) -> Next:
    if batch.settling is not None:
        yield from _commit(world, state, worker, batch, batch.settling)
        return
    lease = lease_of(state, batch.generation)
    if world.has("fence") and (lease is None or lease.expired):
        yield Step("settles too late", batch.generation, worker), drop(world, state, worker)
        return
    for acts in _possible_acts(world, state, batch):
        step = Step("passes the fence", batch.generation, worker, batch.events, acts)
        if not world.open_settles:
            settled = _settled(world, state, worker, batch.generation, zip(batch.events, acts, strict=True))
            yield step._replace(verb="settles"), settled
            continue
        passed = state._replace(workers=_with(state.workers, worker, batch._replace(settling=acts)))
        if not world.has("lease and rows at once"):
            passed = passed._replace(leases=_without(state, batch.generation))
        yield step, passed


def _possible_acts(world: World, state: State, batch: Batch) -> list[tuple[Act, ...]]:
    return possible_acts(
        tuple(world.keys[event] for event in batch.events),
        tuple(state.rows[event].attempts for event in batch.events),
        tuple(event in batch.accepted for event in batch.events),
        batch.handed,
        world.max_attempts,
        world.on_exhausted,
    )


def _commit(world: World, state: State, worker: int, batch: Batch, acts: tuple[Act, ...]) -> Next:
    changes = list(zip(batch.events, acts, strict=True))
    step = Step("commits", batch.generation, worker, batch.events, acts)
    committed = _settled(world, state, worker, batch.generation, changes)
    yield step, committed
    if batch.late and not world.has("one expiry for all rows"):
        for length in range(len(changes)):
            some = Step("commits", batch.generation, worker, batch.events[:length], acts[:length])
            yield some, _settled(world, state, worker, batch.generation, changes[:length])
    if batch.late and not world.has("reaper"):
        yield from _claim_over_a_settle(world, state, committed, batch)


def _settled(
    world: World, state: State, worker: int, generation: int, changes: Iterable[tuple[int, Act]]
) -> State:
    rows, excused = list(state.rows), set(state.excused)
    for event, act in changes:
        row = rows[event]
        if row.status != "processing":
            continue
        rows[event] = settled_row(row, act)
        if act == "dead_letter" and event not in state.published:
            excused.add(event)
    after = state._replace(rows=tuple(rows), leases=_without(state, generation), excused=frozenset(excused))
    return drop(world, after, worker)


def settled_row(row: Row, act: Act) -> Row:
    match act:
        case "complete":
            return Row("completed")
        case "dead_letter":
            return Row("dead_letter")
        case "block":
            return Row("failed")
        case "retry":
            return Row("pending", False, row.attempts)
        case "release":
            return Row("pending", True, row.attempts - 1, row.losses)


def _claim_over_a_settle(world: World, state: State, committed: State, batch: Batch) -> Next:
    """A claim that takes over expired rows finds them locked, waits, and goes on with those still fit."""
    if None in state.workers:
        worker = state.workers.index(None)
        for chosen in sorted(choices(world, state)):
            left = tuple(event for event in chosen if is_due(world, committed, event))
            if left and not set(chosen).isdisjoint(batch.events):
                step = Step("claims what a settle leaves", state.generation + 1, worker, left)
                yield step, _granted(committed, worker, left)


# Time and the reaper


def _pass_time(state: State) -> Next:
    for lease in state.leases:
        if not lease.expired:
            leases = tuple(one._replace(expired=True) if one is lease else one for one in state.leases)
            yield Step("expires", lease.generation), _late(state._replace(leases=leases), lease.generation)
    for worker, batch in enumerate(state.workers):
        if batch and not batch.late and lease_of(state, batch.generation) is None:
            yield Step("runs out of time", batch.generation, worker), _late(state, batch.generation)
    for event, row in enumerate(state.rows):
        if not row.due:
            rows = _with(state.rows, event, row._replace(due=True))
            yield Step("becomes due", events=(event,)), state._replace(rows=rows)


def _late(state: State, generation: int) -> State:
    """The publish deadline was taken before the lease was given: it is over when the lease is."""
    workers = (
        batch._replace(late=True) if batch and batch.generation == generation else batch
        for batch in state.workers
    )
    return state._replace(workers=tuple(workers))


def _reap(world: World, state: State) -> Next:
    """Leases that a settle holds at this moment are skipped."""
    if not world.has("reaper"):
        return
    locked = _locked(state)
    for lease in state.leases:
        if locked.isdisjoint(lease.events) and (lease.expired or world.early_takeover):
            verb = "is reaped" if lease.expired else "is reaped early"
            after = _reaped(world, state, lease)
            became = tuple(after.rows[event].status for event in lease.events)
            yield Step(verb, lease.generation, events=lease.events, acts=became), after


def _reaped(world: World, state: State, lease: Lease) -> State:
    rows, excused = list(state.rows), set(state.excused)
    for event in lease.events:
        if rows[event].status == "processing":
            rows[event] = reaped_row(world, rows[event], alone=len(lease.events) == 1)
            if rows[event].status == "dead_letter" and event not in state.published:
                excused.add(event)
    return state._replace(
        rows=tuple(rows), leases=_without(state, lease.generation), excused=frozenset(excused)
    )


def reaped_row(world: World, row: Row, alone: bool) -> Row:
    if not alone:
        return Row("pending", row.losses == 0, row.attempts - 1, min(row.losses + 1, world.losses))
    if row.attempts < world.max_attempts:
        return Row("pending", row.losses == 0, row.attempts, min(row.losses + 1, world.losses))
    return settled_row(row, world.on_exhausted)


def _operate(state: State) -> Next:
    for event, row in enumerate(state.rows):
        if row.status in ("dead_letter", "failed"):
            redriven = state._replace(rows=_with(state.rows, event, Row()))
            yield Step("is redriven", events=(event,)), redriven
        if row.status in ("pending", "failed"):
            skipped = state._replace(rows=_with(state.rows, event, Row("dead_letter")))
            excused = state.excused if event in state.published else state.excused | {event}
            yield Step("is skipped", events=(event,)), skipped._replace(excused=excused)


def _locked(state: State) -> set[int]:
    """Events whose lease and rows an uncommitted settle holds."""
    return {
        event for batch in state.workers if batch and batch.settling is not None for event in batch.events
    }


def _without(state: State, generation: int) -> tuple[Lease, ...]:
    return tuple(lease for lease in state.leases if lease.generation != generation)


def _with(items: tuple[Item, ...], place: int, item: Item) -> tuple[Item, ...]:
    return (*items[:place], item, *items[place + 1 :])
