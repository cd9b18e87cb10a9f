"""What must hold, in every state and for every step. Each says what is wrong, or nothing."""

from collections.abc import Callable
from typing import TypeAlias

from tests.model.state import OUT_OF_LANE, State, Step, World, lease_of

OfState: TypeAlias = Callable[[World, State], str | None]
OfStep: TypeAlias = Callable[[World, State, Step, State], str | None]


def no_loss(world: World, state: State) -> str | None:
    """What is completed was published. With NoDeadEnd: everything comes to be published or parked."""
    for event, row in enumerate(state.rows):
        if row.status == "completed" and event not in state.published:
            return f"{name(world, event)} is completed and was never published"
    return None


def one_owner_per_generation(world: World, state: State) -> str | None:
    """A key is in flight under one lease, and all that the lease names is its own."""
    owners: dict[str, int] = {}
    for lease in state.leases:
        for event in lease.events:
            row = state.rows[event]
            if row.status != "processing" or row.generation != lease.generation:
                return f"generation {lease.generation} still names {name(world, event)}, which is not its own"
            other = owners.setdefault(world.keys[event], lease.generation)
            if other != lease.generation:
                return (
                    f"key {world.keys[event]} is in flight under generations {other} and {lease.generation}"
                )
    return None


def first_occurrence_order(world: World, state: State) -> str | None:
    """What is published has all earlier events of its key before it, but for those that left their lane."""
    skipped: dict[str, int] = {}
    for event, key in enumerate(world.keys):
        if event not in state.published:
            if event not in state.excused:
                skipped.setdefault(key, event)
        elif key in skipped:
            return f"{name(world, event)} is published and {name(world, skipped[key])} is not"
    return None


def no_stuck(world: World, state: State) -> str | None:
    """What is processing has a lease, by which it can come back."""
    for event, row in enumerate(state.rows):
        if row.status == "processing" and lease_of(state, row.generation) is None:
            return f"{name(world, event)} is processing, and there is no lease of generation {row.generation}"
    return None


def stale_never_settles(world: World, before: State, step: Step, after: State) -> str | None:
    """A settle changes only what is its own, under its lease, which had not run out when it passed."""
    if step.verb not in ("settles", "commits") or before.rows == after.rows:
        return None
    for event, (old, new) in enumerate(zip(before.rows, after.rows, strict=True)):
        if old != new and old.generation != step.generation:
            return f"generation {step.generation} settled {name(world, event)} of generation {old.generation}"
    lease = lease_of(before, step.generation)
    if lease is None or (lease.expired and step.verb == "settles"):
        return f"generation {step.generation} settled its events when its lease was over"
    return None


STATES: dict[str, OfState] = {
    "NoLoss": no_loss,
    "OneOwnerPerGeneration": one_owner_per_generation,
    "FirstOccurrenceOrder": first_occurrence_order,
    "NoStuck": no_stuck,
}
STEPS: dict[str, OfStep] = {"StaleNeverSettles": stale_never_settles}
# The last one is about the whole: from every state some way leads to one that is `done`.
INVARIANTS = frozenset({*STATES, *STEPS, "NoDeadEnd"})


def done(world: World, state: State) -> bool:
    """Nothing is left to do: each event has left its lane, or stands at or behind a head that failed."""
    if state.leases or any(state.workers):
        return False
    held = set()
    for event, row in enumerate(state.rows):
        if row.status == "failed":
            held.add(world.keys[event])
        elif row.status not in OUT_OF_LANE and world.keys[event] not in held:
            return False
    return True


def name(world: World, event: int) -> str:
    return f"{world.keys[event]}{world.keys[: event + 1].count(world.keys[event])}"
