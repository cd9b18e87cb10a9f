"""Redrive and skip beside claims: each form that is known to be wrong is caught, the right form is not."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

import relay.store.redrive as right
from relay.store.redrive import Filter, Progress
from tests.integration.operator_kit import last, park
from tests.integration.store_kit import Stage, overtaken
from tests.integration.test_mutants import Edit, mutate

Scenario = Callable[[Stage, ModuleType], list[Any]]


def a_redrive_meets_an_uncommitted_claim(stage: Stage, redrive: ModuleType) -> list[Any]:
    """The claim has passed the dead letter by; it commits while the redrive is at work."""
    park(stage, "a", "dead_letter")
    stage.insert("a", 2)
    worker, operator = stage.actor(), stage.actor("operator")
    with stage.uncommitted_claim(worker):
        racing = stage.in_background(
            operator, lambda: last(redrive.retry(operator.conn, operator.table, Filter(), actor="ann"))
        )
    racing.result()
    return overtaken(stage.sql)


def a_key_is_in_flight(stage: Stage, redrive: ModuleType) -> list[Any]:
    park(stage, "a", "dead_letter")
    stage.insert("a", 2)
    stage.actor().must_claim()
    operator = stage.actor("operator")
    last(redrive.retry(operator.conn, operator.table, Filter(), actor="ann"))
    return overtaken(stage.sql)


def a_claim_meets_an_uncommitted_skip(stage: Stage, redrive: ModuleType) -> list[Any]:
    stage.insert("a", 3)
    worker, operator = stage.actor(), stage.actor("operator")
    with operator.conn.transaction():
        last(redrive.skip(operator.conn, operator.table, Filter(limit=1), actor="ann", reason="x"))
        racing = stage.in_background(worker, worker.claim)
    claim = racing.result()
    return [claim] if claim else []


def somebody_claims_what_was_found(stage: Stage, redrive: ModuleType) -> list[Any]:
    """Between the search and the locks; what is skipped then goes out although it was given up."""
    stage.insert("a", 1)
    worker, operator = stage.actor(), stage.actor("operator")

    def claim_first(query: str) -> None:
        if "UPDATE" in query or "advisory" in query:
            operator.gate.before = None
            worker.must_claim()

    operator.gate.before = claim_first
    done = last(redrive.skip(operator.conn, operator.table, Filter(), actor="ann", reason="x"))
    return [] if done == Progress(in_flight=1) else [done, stage.rows()]


@dataclass(frozen=True)
class Mutant:
    name: str
    scenario: Scenario
    edits: tuple[Edit, ...]


NO_LOCK: Edit = ("SELECT pg_advisory_xact_lock(%(namespace)s, b) FROM", "SELECT %(namespace)s, b FROM")
LOCK_INSIDE: Edit = (
    "busy AS MATERIALIZED ( SELECT {RUN_IN_FLIGHT} FROM {leases} l",
    """locked AS MATERIALIZED (
         SELECT count(pg_advisory_xact_lock(%(namespace)s, b)) FROM unnest(%(buckets)s::int[]) b),
       busy AS MATERIALIZED (SELECT {RUN_IN_FLIGHT} FROM locked CROSS JOIN {leases} l""",
)
MUTANTS = [
    Mutant("a redrive takes no lock", a_redrive_meets_an_uncommitted_claim, (NO_LOCK,)),
    Mutant(
        "a redrive locks in the statement that changes",
        a_redrive_meets_an_uncommitted_claim,
        (
            NO_LOCK,
            LOCK_INSIDE,
            (
                '"buckets": buckets}).fetchone()',
                '"buckets": buckets, "namespace": table.bucket_locks}).fetchone()',
            ),
        ),
    ),
    Mutant("a redrive does not look at the leases", a_key_is_in_flight, (("AND NOT f.in_flight", ""),)),
    Mutant("a skip takes no lock", a_claim_meets_an_uncommitted_skip, (NO_LOCK,)),
    Mutant(
        "a skip trusts what was found",
        somebody_claims_what_was_found,
        (
            ("AND NOT f.in_flight", ""),
            (
                "status = 'dead_letter', completed_at",
                "status = 'dead_letter', lease_expires_at = NULL, completed_at",
            ),
        ),
    ),
]
SCENARIOS = list(dict.fromkeys(mutant.scenario for mutant in MUTANTS))

pytestmark = pytest.mark.usefixtures("any_postgres")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_nothing_goes_wrong_when(stage: Stage, scenario: Scenario) -> None:
    assert scenario(stage, right) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "_"))
def test_a_wrong_form_is_caught(stage: Stage, mutant: Mutant) -> None:
    assert mutant.scenario(stage, mutate(["redrive"], *mutant.edits)) != []
