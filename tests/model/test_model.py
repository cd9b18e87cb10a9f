"""Every interleaving of a few workers and events keeps the promises, and each guard is needed for that.

The worlds are small enough for one busy core; RELAY_MODEL=large explores larger ones too (minutes).
Run with -s to see the counts, and for each missing guard the shortest way to what it prevents.
"""

import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import pytest

from tests.model.explore import Exploration, explore, fingerprint, reduced
from tests.model.invariants import name
from tests.model.state import Guard, State, Step, World, initial, lease_of

TINY = World("aa", max_attempts=1, losses=0)
RETRIED = World("aa", max_attempts=2, losses=0)
DELAYED = World("aaa", max_attempts=1, losses=0, delayed=frozenset({1}), open_settles=False)
OPERATED = World("aa", max_attempts=1, losses=0, operators=True)
WORLDS = {
    "three workers, one key": World("aa", workers=3),
    "two keys": World("ab", open_settles=False),
    "two keys, one of two events": World("aab", max_attempts=1, losses=0, open_settles=False),
    "three events, one delayed": DELAYED,
    "a failed event blocks its key": World("aa", on_exhausted="block"),
    "operators redrive and skip": OPERATED,
}
LARGE_WORLDS = {
    "three workers, one key, three attempts": World("aa", workers=3, max_attempts=3),
    "three workers, one key, operators": World("aa", workers=3, max_attempts=1, operators=True),
    "three workers, three events": World("aaa", workers=3, max_attempts=1, losses=0, open_settles=False),
    "three workers, two keys": World("aab", workers=3, max_attempts=1, losses=0, open_settles=False),
    "two keys, open settles": World("ab"),
    "two keys, one of two events, retries": World("aab", losses=0, open_settles=False),
    "two keys, one of two events, everything": World("aab", open_settles=False),
}
if os.environ.get("RELAY_MODEL") == "large":
    WORLDS |= LARGE_WORLDS


def show(exploration: Exploration) -> Exploration:
    print(f"\n{exploration}")  # noqa: T201
    return exploration


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
def test_every_interleaving_keeps_the_promises(world: World) -> None:
    assert show(explore(world)).broken is None


@dataclass(frozen=True)
class Mutant:
    """A world without a guard, and without others that would hide what it is for."""

    breaks: str
    world: World
    guard: Guard
    others: frozenset[Guard] = frozenset()


MUTANTS = [
    Mutant("FirstOccurrenceOrder", RETRIED, "head of the key"),
    Mutant("FirstOccurrenceOrder", DELAYED, "cut at what is not due"),
    Mutant("OneOwnerPerGeneration", OPERATED, "busy keys"),
    Mutant("FirstOccurrenceOrder", RETRIED, "reaper", frozenset({"tried heads alone"})),
    Mutant("OneOwnerPerGeneration", TINY, "reaper"),
    Mutant("FirstOccurrenceOrder", TINY, "order on the wire"),
    Mutant("StaleNeverSettles", World("a"), "fence"),
    Mutant("NoStuck", World("a"), "one expiry for all rows"),
    Mutant("NoDeadEnd", World("a"), "one expiry for all rows"),
    Mutant("NoStuck", World("a"), "lease and rows at once"),
    Mutant("NoDeadEnd", World("a"), "lease and rows at once"),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.breaks} {m.guard}".replace(" ", "_"))
def test_without_a_guard_a_promise_is_broken(mutant: Mutant) -> None:
    world = replace(mutant.world, without=mutant.others | {mutant.guard})
    assert show(explore(world, {mutant.breaks}, reduce=False)).broken == mutant.breaks


@pytest.mark.parametrize("world", [TINY, RETRIED, World("a")], ids=["tiny", "retried", "one event"])
def test_what_breaks_without_a_guard_holds_with_it(world: World) -> None:
    assert explore(world).broken is None


def test_what_was_tried_before_goes_alone_to_find_the_culprit_not_to_keep_the_promises() -> None:
    assert show(explore(replace(RETRIED, without=frozenset({"tried heads alone"})))).broken is None


def test_each_guard_is_left_out_somewhere() -> None:
    kept = {"tried heads alone", "publish deadline"}
    assert {mutant.guard for mutant in MUTANTS} | kept == set(get_args(Guard))


def handed_over_again(world: World, before: State, step: Step, after: State) -> str | None:
    if step.verb == "hands over" and before.rows[step.events[0]].status == "completed":
        return f"{name(world, step.events[0])} is handed over although it was published and completed"
    return None


def test_without_the_publish_deadline_there_are_more_duplicates_and_nothing_else() -> None:
    """The same states, and the only new steps are events handed over by those who lost their lease."""
    world = replace(TINY, early_takeover=False)
    endless = replace(world, without=frozenset({"publish deadline"}))
    late = Counter[World]()

    def count(each: World, before: State, step: Step, after: State) -> None:
        lease = lease_of(before, step.generation)
        late[each] += step.verb == "hands over" and (lease is None or lease.expired)

    ending = show(explore(world, reduce=False, observe=partial(count, world)))
    unending = show(explore(endless, reduce=False, observe=partial(count, endless)))
    assert (ending.broken, unending.broken) == (None, None)
    assert unending.fingerprints.keys() == ending.fingerprints.keys()
    assert late[world] == 0
    assert late[endless] == unending.edges - ending.edges > 0

    never = {"NotHandedOverAgain": handed_over_again}
    assert explore(world, (), also=never, reduce=False).broken is None
    assert show(explore(endless, (), also=never, reduce=False)).broken == "NotHandedOverAgain"


def inverted(world: World, before: State, step: Step, after: State) -> str | None:
    """For worlds of one key: whether or not the event had left its lane."""
    for event in after.published - before.published:
        if any(later > event for later in before.published):
            return f"{name(world, event)} is published for the first time behind its successor"
    return None


def test_an_event_that_left_its_lane_unpublished_can_appear_behind_its_successor() -> None:
    assert show(explore(TINY, (), also={"NoInversion": inverted}, reduce=False)).broken == "NoInversion"


def test_where_failed_events_block_their_key_there_is_no_exception_to_the_order() -> None:
    world = replace(RETRIED, on_exhausted="block")
    assert show(explore(world, also={"NoInversion": inverted})).broken is None


@pytest.mark.parametrize("early_takeover", [True, False])
def test_the_reduced_states_are_those_of_the_whole_exploration(early_takeover: bool) -> None:
    world = replace(TINY, early_takeover=early_takeover)
    seen = {fingerprint(initial(world))}

    def collect(before: State, step: Step, after: State) -> None:
        seen.add(fingerprint(reduced(world, after)))

    whole = show(explore(world, reduce=False, observe=collect))
    part = show(explore(world))
    assert whole.broken is None
    assert part.broken is None
    assert seen == part.fingerprints.keys()
    assert part.states < whole.states / 2
