"""How a chore is spread over time: by what a lap costs and by what it finds."""

from datetime import timedelta
from time import monotonic
from typing import Any

import pytest

from relay.store.sweep import BLOCKS_AT_ONCE, LONGEST_REST, STEP_BLOCKS, Chore


class Table:
    """Of so many blocks; `old` are those that hold something old."""

    def __init__(self, blocks: int, old: range = range(0)) -> None:
        self.blocks = blocks
        self.old = old
        self.at = self.steps = 0

    def step(self, conn: Any) -> int:
        self.steps += 1
        found = len(range(max(self.at, self.old.start), min(self.at + STEP_BLOCKS, self.old.stop)))
        self.at = self.at + STEP_BLOCKS if self.at + STEP_BLOCKS < self.blocks else 0
        return found

    @property
    def came_around(self) -> bool:
        return self.at == 0


def run(table: Table, days: float = 7.0, seconds: float = 60.0) -> tuple[int, float]:
    """Rows that one run of the chore deletes, and how long it rests then."""
    chore = Chore(table, timedelta(days=days))  # type: ignore[arg-type]
    assert chore.due(monotonic())
    gone = chore.run(None, seconds)  # type: ignore[arg-type]
    now, rest = monotonic(), 0.0
    while not chore.due(now + rest):
        rest += 0.125
    return gone, rest


def test_a_small_table_is_swept_at_once_and_again_a_minute_later() -> None:
    table = Table(blocks=3)
    gone, rest = run(table)
    assert (gone, table.steps) == (0, 1)
    assert rest == pytest.approx(LONGEST_REST, abs=0.5)


def test_an_empty_table_costs_one_step() -> None:
    table = Table(blocks=0)
    assert run(table)[0] == 0
    assert table.steps == 1


def test_of_a_large_table_a_part_is_read_at_a_time_so_that_a_lap_takes_a_part_of_the_age() -> None:
    table = Table(blocks=10_000_000)
    gone, rest = run(table)
    assert (gone, table.at) == (0, BLOCKS_AT_ONCE)
    lap = rest * table.blocks / BLOCKS_AT_ONCE
    assert lap == pytest.approx(7 * 86_400 / 24, rel=0.1)


def test_as_long_as_something_is_found_it_goes_on_without_a_rest() -> None:
    table = Table(blocks=10_000_000, old=range(20 * BLOCKS_AT_ONCE))
    assert run(table) == (20 * BLOCKS_AT_ONCE, 0.0)


def test_no_longer_than_it_may() -> None:
    table = Table(blocks=10_000_000, old=range(10_000_000))
    gone, rest = run(table, seconds=0.0)
    assert (gone, rest) == (STEP_BLOCKS, 0.0)
