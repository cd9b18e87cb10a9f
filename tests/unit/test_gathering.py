"""How long a relay lets events gather before it claims again."""

import pytest

from relay.worker.claimer import gathering


@pytest.mark.parametrize(
    "events, milliseconds", [(0, 0), (1, 0.5), (2, 1), (8, 4), (63, 4), (64, 0), (2000, 0)]
)
def test_few_events_are_followed_by_a_moment_many_by_none(events: int, milliseconds: float) -> None:
    assert gathering(events) * 1000 == pytest.approx(milliseconds)
