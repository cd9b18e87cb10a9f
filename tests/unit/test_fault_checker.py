"""The fault suite's checker finds each kind of violation, and explains each duplicate."""

from typing import Any

import pytest

from tests.faults.checker import Change, Evidence, Message, Row, check

A, B = "host-1-aaaa", "host-2-bbbb"


def row(number: int, status: str = "completed", **fields: Any) -> Row:
    return Row(f"evt-{number}", "order:1", number, status, False)._replace(**fields)


def message(number: int, generation: int = 1) -> Message:
    return Message(f"evt-{number}", "order:1", number, generation)


def claimed(number: int, generation: int = 1, worker: str = A, **fields: Any) -> Change:
    of = worker.partition("-")[2]
    change = Change(
        f"evt-{number}",
        "order:1",
        number,
        "pending",
        "processing",
        generation,
        worker,
        "claimer",
        of,
        None,
        True,
        None,
    )
    return change._replace(**fields)


def settled(
    number: int, after: str = "completed", generation: int = 1, worker: str = A, **fields: Any
) -> Change:
    change = claimed(
        number, generation, worker, before="processing", after=after, by="settler", settles=generation
    )
    return change._replace(**fields)


def reaped(number: int, generation: int = 1, worker: str = A, *, in_time: bool = True) -> Change:
    return settled(
        number, "pending", generation, worker, by="keeper", of="2-bbbb", settles=None, in_time=in_time
    )


def well(numbers: int = 3) -> dict[str, Any]:
    """A run in which nothing happened."""
    return {
        "rows": [row(n) for n in range(1, numbers + 1)],
        "messages": [message(n) for n in range(1, numbers + 1)],
        "changes": [
            *(claimed(n) for n in range(1, numbers + 1)),
            *(settled(n) for n in range(1, numbers + 1)),
        ],
        "acknowledged": {"evt-1"},
    }


def test_a_run_in_which_nothing_happened_has_no_violation() -> None:
    verdict = check(Evidence(**well()))
    assert verdict.violations == {}
    assert verdict.duplicates == {}
    assert (verdict.events, verdict.messages) == (3, 3)


VIOLATIONS: dict[str, dict[str, Any]] = {
    "lost": {"messages": [message(1), message(3)]},
    "forgotten by the database": {"acknowledged": {"evt-9"}},
    "published but never committed": {"messages": [message(n) for n in (1, 2, 3, 4)]},
    "out of order": {"messages": [message(2), message(1), message(3)]},
    "dead letter without poison": {"rows": [row(1), row(2, "dead_letter"), row(3)]},
    "poison published": {"rows": [row(1), row(2, "dead_letter", poison=True), row(3)]},
    "left behind": {"rows": [row(1), row(2), row(3, "processing")]},
    "duplicate without a cause": {"messages": [message(n) for n in (1, 1, 2, 3)]},
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_found_and_no_other(name: str) -> None:
    verdict = check(Evidence(**(well() | VIOLATIONS[name])))
    assert list(verdict.violations) == [name]
    assert name in str(verdict)


def test_a_lease_that_is_left_is_work_left_behind() -> None:
    assert list(check(Evidence(**well(), leases_left=1)).violations) == ["left behind"]


def test_poison_that_is_completed_was_not_parked() -> None:
    run = well(1) | {"rows": [row(1, poison=True)], "messages": []}
    assert "poison not parked" in check(Evidence(**run)).violations


STALE = {
    "another's lease": settled(1, of="2-bbbb"),
    "another generation": settled(1, settles=7),
    "no generation": settled(1, settles=None),
    "too late": settled(1, in_time=False),
    "a row that is not leased": settled(1, before="pending"),
    "a completed row": settled(1, before="completed", after="pending"),
    "a deleted row": settled(1, after="deleted", by="someone"),
    "a claimer that settles": settled(1, by="claimer"),
    "a mark of another's lease": settled(1, "marked", of="2-bbbb"),
    "a keeper that marks": settled(1, "marked", by="keeper"),
}


@pytest.mark.parametrize("name", STALE)
def test_a_settlement_without_the_lease_is_found(name: str) -> None:
    run = well(1) | {"changes": [claimed(1), STALE[name]]}
    assert list(check(Evidence(**run)).violations) == ["stale settlement"]


def test_a_claim_by_a_settler_or_for_another_is_found() -> None:
    for change in (claimed(1, by="settler"), claimed(1, of="2-bbbb")):
        assert list(check(Evidence(**(well(1) | {"changes": [change]}))).violations) == ["stale settlement"]


def test_two_leases_of_a_key_at_once_are_found() -> None:
    changes = [claimed(1), claimed(2, 2, B), settled(1), settled(2, generation=2, worker=B)]
    assert list(check(Evidence(**(well(2) | {"changes": changes}))).violations) == ["two leases of a key"]


def test_generations_that_do_not_grow_along_a_key_are_found() -> None:
    changes = [claimed(1, 5), settled(1, generation=5), claimed(2, 4), settled(2, generation=4)]
    assert list(check(Evidence(**(well(2) | {"changes": changes}))).violations) == ["two leases of a key"]


def test_first_occurrences_of_different_keys_may_come_in_any_order() -> None:
    rows = [row(1), row(2, key="order:2")]
    messages = [message(2)._replace(key="order:2"), message(1)]
    assert check(Evidence(rows, messages, [])).violations == {}


def test_a_duplicate_out_of_order_is_no_inversion() -> None:
    changes = [claimed(1), claimed(2), reaped(1), reaped(2)]
    changes += [claimed(n, 2, B) for n in (1, 2)] + [settled(n, generation=2, worker=B) for n in (1, 2)]
    messages = [message(1), message(2), message(1, 2), message(2, 2)]
    verdict = check(Evidence([row(1), row(2)], messages, changes, fates={A: "killed"}))
    assert verdict.violations == {}
    assert verdict.duplicates == {"lease lost: killed": 2}


def test_a_duplicate_of_a_lease_taken_from_one_whom_nothing_befell_has_no_cause() -> None:
    changes = [claimed(1), reaped(1), claimed(1, 2, B), settled(1, generation=2, worker=B)]
    verdict = check(Evidence([row(1)], [message(1), message(1, 2)], changes))
    assert list(verdict.violations) == ["duplicate without a cause"]


def test_a_duplicate_of_a_lease_that_ran_out_needs_no_other_cause() -> None:
    changes = [claimed(1), reaped(1, in_time=False), claimed(1, 2, B), settled(1, generation=2, worker=B)]
    verdict = check(Evidence([row(1)], [message(1), message(1, 2)], changes))
    assert verdict.violations == {}
    assert verdict.duplicates == {"the lease ran out": 1}


def test_those_held_up_behind_a_failure_are_duplicates_by_its_cause() -> None:
    changes = [
        claimed(1),
        claimed(2),
        settled(2, "pending", error="of another time"),
        settled(1, "pending", error="injected"),
        claimed(1, 2),
        claimed(2, 2),
        settled(1, generation=2),
        settled(2, generation=2),
    ]
    messages = [message(1), message(2), message(1, 2), message(2, 2)]
    verdict = check(Evidence([row(1), row(2)], messages, changes))
    assert verdict.violations == {}
    assert verdict.duplicates == {"injected": 2}


def test_a_second_message_under_a_lease_that_ended_in_a_completion_has_no_cause() -> None:
    changes = [claimed(1), settled(1), claimed(1, 2), settled(1, generation=2)]
    verdict = check(Evidence([row(1)], [message(1), message(1, 2)], changes))
    assert "duplicate without a cause" in verdict.violations
