"""Waits double, are spread out, and end."""

import pytest

from relay.backoff import LONGEST, Rising, retry_delay


@pytest.mark.parametrize("attempts, longest", [(1, 2), (2, 4), (5, 32), (11, 2048), (12, LONGEST)])
def test_a_retry_waits_twice_as_long_as_the_one_before(attempts: int, longest: float) -> None:
    assert retry_delay(attempts, jitter=1.0) == longest
    assert retry_delay(attempts, jitter=0.0) == longest / 2


@pytest.mark.parametrize("attempts", [13, 31, 63, 10_000, 2**31 - 1])
def test_no_number_of_attempts_waits_longer_than_an_hour(attempts: int) -> None:
    assert LONGEST / 2 <= retry_delay(attempts) <= LONGEST


def test_retries_of_many_events_are_spread_over_the_upper_half() -> None:
    delays = {retry_delay(4) for _ in range(100)}
    assert len(delays) > 90
    assert all(8 <= delay <= 16 for delay in delays)


def test_a_rising_wait_doubles_to_its_longest_and_starts_over() -> None:
    rising = Rising(1.0, 6.0)
    bounds = [1.0, 2.0, 4.0, 6.0, 6.0]
    assert all(bound * 0.75 <= rising.step() <= bound for bound in bounds)
    rising.reset()
    assert 0.75 <= rising.step() <= 1.0
