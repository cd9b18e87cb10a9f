"""The fault suite in its short form: every kind of fault once, dealt to runs with 1, 4 and 8 relays.

The seed is printed. RELAY_TEST_FAULTS_SEED brings a run back; `make test-faults` is the long form.
"""

import os
from collections.abc import Callable, Iterator
from random import Random

import pytest

from relay.demo.postgres import ServerError
from tests.conftest import missing
from tests.faults.arena import Arena, BrokerName
from tests.faults.failpoints import ACTIONS, STEPS
from tests.faults.faults import AtStep, Fault
from tests.faults.report import Plan, every_fault
from tests.faults.suite import run
from tests.servers.supervisor import run_directory

pytestmark = [pytest.mark.slow, pytest.mark.server]

# One for all test processes of a run: only with the same seed do the runs have every fault between them.
SEED = int(os.environ.get("RELAY_TEST_FAULTS_SEED") or Random(run_directory().name).randrange(1_000_000))
RUNS: list[tuple[BrokerName, int]] = [("kafka", 1), ("rabbitmq", 4), ("kafka", 8)]


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    try:
        with Arena() as arena:
            yield arena
    except ServerError as error:
        missing(str(error))


def dealt(number: int) -> dict[str, list[Fault]]:
    """The share of one run: together the runs have every fault, and every step of a relay's work."""
    dice = Random(SEED)
    actions = {step: dice.choice(ACTIONS) for step in STEPS}
    actions["before a settle"] = "dawdle"  # so that a settle comes too late in every round
    lanes = every_fault() | {"steps": [AtStep(step, action) for step, action in actions.items()]}
    return {lane: dice.sample(faults, len(faults))[number :: len(RUNS)] for lane, faults in lanes.items()}


@pytest.mark.parametrize("number", range(len(RUNS)), ids=[f"{relays}-{broker}" for broker, relays in RUNS])
def test_faults_lose_nothing_reorder_nothing_and_every_duplicate_has_a_cause(
    arena: Arena, number: int, record_property: Callable[[str, object], None]
) -> None:
    broker, relays = RUNS[number]
    report = run(arena, Plan(broker, relays, SEED, dealt(number)))
    record_property("tells", str(report))
    assert report.problems == []
