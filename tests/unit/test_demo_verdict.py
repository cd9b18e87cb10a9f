"""Each kind of fault turns the verdict of the demo, and nothing else does."""

import pytest

from relay.demo.verdict import FAULTS, Emitted, Received, Verdict, judge

EMITTED = {
    "a1": Emitted("order:1", 1, 10.0),
    "a2": Emitted("order:1", 2, 10.1),
    "b1": Emitted("order:2", 1, 10.2),
    "a3": Emitted("order:1", 3, 10.3),
}
ROLLED_BACK = {"undone"}


def verdict(arrivals: str, applied: dict[str, int] | None = None) -> Verdict:
    """Judge what arrived in this order, one message every 100 ms from 11.0 on; each is applied once."""
    ids = arrivals.split()
    received = [Received(event_id, 11.0 + index / 10) for index, event_id in enumerate(ids)]
    return judge(EMITTED, ROLLED_BACK, received, dict.fromkeys(ids, 1) if applied is None else applied)


def test_each_event_once_and_in_order_is_clean() -> None:
    clean = verdict("a1 b1 a2 a3")
    assert clean.clean
    assert clean.faults == {}
    assert (clean.emitted, clean.rolled_back, clean.delivered) == (4, 1, 4)


def test_duplicates_that_were_not_applied_again_are_clean() -> None:
    repeated = verdict("a1 a2 a1 a2 a3 b1 b1 b1")
    assert repeated.clean
    assert repeated.duplicates_seen == 4
    assert repeated.delivered == 4


def test_a_duplicate_behind_later_events_is_not_out_of_order() -> None:
    assert verdict("a1 a2 a3 a1 b1").out_of_order == 0


def test_keys_have_no_order_among_each_other() -> None:
    assert verdict("a1 a2 a3 b1").clean


@pytest.mark.parametrize(
    "fault, count, bad",
    [
        ("lost", 1, verdict("a1 b1 a2")),
        ("out_of_order", 1, verdict("a1 a3 a2 b1")),
        ("out_of_order", 2, verdict("a3 a1 a2 b1")),
        ("rolled_back_published", 1, verdict("a1 undone a2 a3 b1")),
        ("never_emitted", 1, verdict("a1 a2 a3 b1 stranger")),
        ("duplicates_applied", 2, verdict("a1 a2 a3 b1", {"a1": 3, "a2": 1, "a3": 1, "b1": 1})),
        ("not_applied", 1, verdict("a1 a2 a3 b1", {"a1": 1, "a2": 1, "a3": 1})),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_one_fault_of_any_kind_is_enough(fault: str, count: int, bad: Verdict) -> None:
    assert bad.faults == {fault: count}
    assert not bad.clean
    assert bad.as_dict()["clean"] is False


def test_every_fault_that_counts_has_words_for_it() -> None:
    assert set(FAULTS) < set(verdict("a1").as_dict())


def test_an_applied_event_that_was_rolled_back_or_never_emitted_counts_even_if_no_message_was_seen() -> None:
    once = {"a1": 1, "a2": 1, "a3": 1, "b1": 1}
    assert verdict("a1 a2 a3 b1", once | {"undone": 1}).faults == {"rolled_back_published": 1}
    assert verdict("a1 a2 a3 b1", once | {"stranger": 1}).faults == {"never_emitted": 1}


def test_a_run_in_which_nothing_happened_proves_nothing() -> None:
    nothing = judge({}, set(), [], {})
    assert not nothing.clean
    assert nothing.latency_p50_ms is None
    assert nothing.events_per_second == 0.0


def test_latency_runs_from_the_commit_to_the_first_arrival() -> None:
    measured = verdict("a1 a2 b1 a3 a1 a2")
    # 1.0, 1.0, 1.0, 1.0 s: the repeated arrivals, later by half a second, do not count.
    assert measured.latency_p50_ms == pytest.approx(1000.0, abs=0.2)
    assert measured.latency_p99_ms == pytest.approx(1000.0, abs=0.2)


def test_percentiles_are_nearest_ranks() -> None:
    emitted = {str(n): Emitted("k", n, 0.0) for n in range(1, 101)}
    received = [Received(str(n), n / 1000) for n in range(1, 101)]
    measured = judge(emitted, set(), received, dict.fromkeys(emitted, 1))
    assert (measured.latency_p50_ms, measured.latency_p99_ms) == (50.0, 99.0)


def test_the_rate_runs_from_the_first_commit_to_the_last_first_arrival() -> None:
    # 4 events between 10.0 and 11.3
    assert verdict("a1 a2 b1 a3 a1 a1").events_per_second == pytest.approx(4 / 1.3, abs=0.05)
