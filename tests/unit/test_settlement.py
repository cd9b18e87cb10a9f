"""From outcomes to what is written on the rows."""

from datetime import UTC, datetime

import pytest

from relay.event import Event
from relay.outcome import Delivered, Outcome, Refused, Scope, Unconfirmed
from relay.pause import Subject
from relay.settlement import OnExhausted, Settlement, judge


def event(position: int, key: str = "a", attempt: int = 1, max_attempts: int = 5) -> Event:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Event(position, key, f"e{position}", "Tested", "there", b"{}", None, now, 7, attempt, max_attempts)


def acts(
    events: list[Event], outcomes: list[Outcome], on_exhausted: OnExhausted = "dead_letter"
) -> list[str]:
    return [settlement.act for settlement in judge(events, outcomes, on_exhausted).settlements]


def test_what_was_delivered_is_completed_with_its_receipt() -> None:
    verdict = judge([event(1)], [Delivered("there[3]@7")], "dead_letter")
    assert verdict.settlements == [Settlement("complete", receipt="there[3]@7")]
    assert not verdict.held
    assert verdict.settings is None


def test_only_the_first_failure_of_a_key_is_judged_and_the_rest_is_released() -> None:
    outcomes: list[Outcome] = [Delivered(), Unconfirmed("x"), Unconfirmed("y"), Refused("z"), Delivered()]
    events = [event(1), event(2), event(3), event(4), event(5, "b")]
    assert acts(events, outcomes) == ["complete", "retry", "release", "release", "complete"]


def test_an_event_delivered_behind_a_failed_one_of_its_key_is_counted_and_goes_out_again() -> None:
    verdict = judge([event(1), event(2), event(3, "b")], [Refused("x"), Delivered(), Delivered()], "block")
    assert [s.act for s in verdict.settlements] == ["block", "release", "complete"]
    assert verdict.overtook == 1


@pytest.mark.parametrize("on_exhausted", ["dead_letter", "block"])
def test_the_last_attempt_ends_as_the_policy_says(on_exhausted: OnExhausted) -> None:
    assert acts([event(1, attempt=4)], [Unconfirmed("x")], on_exhausted) == ["retry"]
    assert acts([event(1, attempt=5)], [Unconfirmed("x")], on_exhausted) == [on_exhausted]
    assert acts([event(1, attempt=6)], [Unconfirmed("x")], on_exhausted) == [on_exhausted]


@pytest.mark.parametrize("on_exhausted", ["dead_letter", "block"])
def test_what_is_refused_is_not_tried_again(on_exhausted: OnExhausted) -> None:
    (settlement,) = judge([event(1)], [Refused("too large")], on_exhausted).settlements
    assert settlement == Settlement(on_exhausted, "too large")


@pytest.mark.parametrize("scope", ["destination", "broker", "settings"])
def test_what_is_not_the_events_fault_is_not_held_against_it(scope: Scope) -> None:
    verdict = judge([event(1, attempt=5)], [Unconfirmed("down", scope)], "dead_letter")
    assert [s.act for s in verdict.settlements] == ["release"]
    assert verdict.settlements[0].error == "down"
    assert (verdict.settings is not None) == (scope == "settings")
    assert list(verdict.held) == ([] if scope == "settings" else [Subject("destination", "there")])


def test_an_events_own_failure_holds_nothing_else() -> None:
    verdict = judge([event(1)], [Unconfirmed("x")], "dead_letter")
    assert not verdict.held
    assert verdict.settings is None


def test_a_retry_waits_as_long_as_the_broker_asks_or_as_the_attempts_say() -> None:
    asked, own = judge(
        [event(1, "a"), event(2, "b", attempt=3)],
        [Unconfirmed("x", retry_after=42.0), Unconfirmed("x")],
        "block",
    ).settlements
    assert asked.delay == 42.0
    assert 4.0 <= own.delay <= 8.0


def test_every_event_needs_an_outcome() -> None:
    with pytest.raises(ValueError, match="shorter"):
        judge([event(1), event(2)], [Delivered()], "block")
