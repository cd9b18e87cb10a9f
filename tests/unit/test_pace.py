"""Rate limits: what they let through, and how workers share them."""

from relay.pace import Pace, Paces
from relay.pause import Subject


def test_a_limit_lets_its_rate_through_and_no_more() -> None:
    pace = Pace(10.0, now=0.0)
    sent = 0
    for tenth in range(101):
        allowed = pace.available(tenth / 10)
        pace.take(allowed)
        sent += allowed
    assert 99 <= sent <= 101


def test_idle_time_saves_up_at_most_a_second() -> None:
    pace = Pace(10.0, now=0.0)
    assert pace.available(1_000.0) == 10


def test_a_slow_limit_still_lets_single_events_through() -> None:
    pace = Pace(0.5, now=0.0)
    pace.take(pace.available(0.0))
    assert pace.available(1.9) == 0
    assert pace.available(2.0) == 1


def test_workers_share_a_limit() -> None:
    pace = Pace(10.0, now=0.0)
    pace.share(5)
    assert pace.available(100.0) == 2


def test_only_limited_destinations_are_ready_and_only_when_they_may() -> None:
    paces = Paces({"slow": 1.0, "fast": 100.0}, now=0.0)
    assert paces.subjects == (Subject("destination", "slow"), Subject("destination", "fast"))
    paces.take(Subject("destination", "slow"), 1)
    assert paces.ready(0.5) == {Subject("destination", "fast"): 51}
