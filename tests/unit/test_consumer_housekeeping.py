"""What a consumer does beside consuming, when it is time for it."""

from datetime import timedelta
from typing import Any

import pytest

from relay.consumers import housekeeping
from relay.consumers.housekeeping import Housekeeping
from relay.names import TableName


class Busy:
    """A chore that finds something to do whenever it is asked."""

    def __init__(self) -> None:
        self.runs = 0

    def due(self, now: float) -> bool:
        return True

    def run(self, conn: Any, seconds: float) -> int:
        self.runs += 1
        return 1


def test_a_chore_that_is_never_done_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "PRUNE_SECONDS", 0.0)
    keeping = Housekeeping("billing", TableName(None, "inbox_dedupe"), timedelta(days=7), lambda _: False)
    chores = [Busy(), Busy(), Busy()]
    keeping._chores = list(chores)  # type: ignore[arg-type]
    for _ in range(10):  # the first is for what operators ask
        keeping.tick(None)  # type: ignore[arg-type]
    assert [chore.runs for chore in chores] == [3, 3, 3]
