"""What a claim may take of the lanes of a state."""

from functools import partial
from itertools import dropwhile, product, takewhile

from tests.model.state import OUT_OF_LANE, Row, State, World, lease_of


def choices(world: World, state: State) -> set[tuple[int, ...]]:
    """What one claim may take: runs of some keys or parts of them, never mixing different losses."""
    in_flight = {
        world.keys[event]
        for lease in state.leases
        if world.has("reaper") or not lease.expired
        for event in lease.events
    }
    keys = sorted(set(world.keys) - (in_flight if world.has("busy keys") else set()))
    found = [run_of(world, state, key) for key in keys]
    runs = [run for run in found if run]
    return {
        tuple(sorted(event for run, length in zip(alike, lengths, strict=True) for event in run[:length]))
        for losses in {state.rows[run[0]].losses for run in runs}
        for alike in [[run for run in runs if state.rows[run[0]].losses == losses]]
        for lengths in product(*(range(len(run) + 1) for run in alike))
        if (sum(lengths) == 1 if losses > 1 else sum(lengths) > 0)
    }


def run_of(world: World, state: State, key: str) -> list[int]:
    """The head of a lane and the due rows directly behind it that lost as many leases."""
    rows = state.rows
    due = partial(is_due, world, state)
    lane = [event for event, k in enumerate(world.keys) if k == key and rows[event].status not in OUT_OF_LANE]
    if not world.has("head of the key") and all(rows[event].status != "processing" for event in lane):
        lane = list(dropwhile(lambda event: not due(event), lane))
    run = list(takewhile(due, lane))
    if run and not world.has("cut at what is not due"):
        run = list(filter(due, lane))
    alike = list(takewhile(lambda event: rows[event].losses == rows[run[0]].losses, run))
    if alike and _goes_alone(world, rows[alike[0]]):
        return alike[:1]
    return alike


def _goes_alone(world: World, head: Row) -> bool:
    return head.losses > 1 or (head.attempts > 0 and world.has("tried heads alone"))


def is_due(world: World, state: State, event: int) -> bool:
    row = state.rows[event]
    if row.status == "processing" and not world.has("reaper"):
        lease = lease_of(state, row.generation)
        return lease is not None and lease.expired
    return row.status == "pending" and row.due
