"""Whatever a publisher answers, what is settled keeps each key in order and leaves nothing out."""

from datetime import UTC, datetime
from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.event import Event
from relay.outcome import LONGEST_RETRY_AFTER, Delivered, Outcome, Refused, Unconfirmed
from relay.settlement import OnExhausted, judge

NOW = datetime(2026, 1, 1, tzinfo=UTC)

outcomes = st.one_of(
    st.builds(Delivered, st.none() | st.text(max_size=3)),
    st.builds(
        Unconfirmed,
        st.just("x"),
        st.sampled_from(["event", "destination", "broker", "settings"]),
        st.none() | st.floats(),
        st.sampled_from(["destination", "host", "route", None]),
    ),
    st.builds(Refused, st.just("x")),
)
answers = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), outcomes), max_size=20)


@given(answers, st.sampled_from(["dead_letter", "block"]))
def test_behind_an_event_that_was_not_completed_its_key_stands_still(
    answered: list[tuple[str, int, Outcome]], on_exhausted: OnExhausted
) -> None:
    events = [
        Event(n, key, f"e{n}", "T", "d", b"{}", None, NOW, 1, attempt, 3)
        for n, (key, attempt, _) in enumerate(answered)
    ]
    verdict = judge(events, [outcome for _, _, outcome in answered], on_exhausted)
    assert len(verdict.settlements) == len(events)
    stopped: set[str] = set()
    for event, settlement, (_, _, outcome) in zip(events, verdict.settlements, answered, strict=True):
        if event.key in stopped:
            assert settlement.act == "release", "it was held up, not tried"
        elif isinstance(outcome, Delivered):
            assert settlement.act == "complete"
        else:
            assert settlement.act != "complete"
            stopped.add(event.key)
        assert isfinite(settlement.delay)
        assert 0 <= settlement.delay <= LONGEST_RETRY_AFTER
    overtook = sum(
        isinstance(outcome, Delivered) and settlement.act != "complete"
        for settlement, (_, _, outcome) in zip(verdict.settlements, answered, strict=True)
    )
    assert verdict.overtook == overtook


@pytest.mark.parametrize(
    "asked, granted",
    [
        (None, None),
        (5.0, 5.0),
        (-1.0, 0.0),
        (nan, 0.0),
        (inf, LONGEST_RETRY_AFTER),
        (1e300, LONGEST_RETRY_AFTER),
    ],
)
def test_no_answer_of_a_broker_makes_an_event_wait_for_ever(
    asked: float | None, granted: float | None
) -> None:
    assert Unconfirmed("x", retry_after=asked).retry_after == granted
