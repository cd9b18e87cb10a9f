"""Sixteen relays on twenty keys, killed, frozen, stalled, lied to and taken for dead.

RELAY_RACE_SECONDS sets how long each race lasts before it calms down.
"""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from relay.store.redrive import Filter
from tests.integration import race_kit
from tests.integration.race_kit import INSTRUMENTS, Race
from tests.integration.store_kit import Stage, wait_until

SECONDS = float(os.environ.get("RELAY_RACE_SECONDS", "5"))
RELAYS = 16
# Processes that share nothing with this one, without the second each that a fresh interpreter takes.
SERVED = multiprocessing.get_context("forkserver")
SERVED.set_forkserver_preload(["tests.integration.race_kit"])


class Field:
    """The processes of one race."""

    def __init__(self, stage: Stage, race: Race, dice: random.Random) -> None:
        self._stage = stage
        self._race = race
        self._dice = dice
        self._relays: dict[str, BaseProcess] = {}
        self._others: list[BaseProcess] = []
        self._started = 0
        self.killed = 0
        self.frozen = 0

    def start(self) -> None:
        for _ in range(RELAYS):
            self._start_relay()
        self._others = [
            self._process(race_kit.writer, "writer"),
            self._process(race_kit.operator, "operator"),
        ]

    def _start_relay(self) -> None:
        self._started += 1
        name = f"relay-{self._started}"
        self._relays[name] = self._process(race_kit.relay, name)

    def _process(self, target: object, name: str) -> BaseProcess:
        process = SERVED.Process(
            target=target,  # type: ignore[arg-type]
            args=(self._race, name, self._dice.randrange(1 << 30)),
            daemon=True,
        )
        process.start()
        return process

    def trouble(self) -> None:
        """Kill a relay and start another; freeze one for longer than its lease."""
        name = self._dice.choice(list(self._relays))
        process = self._relays[name]
        assert process.pid is not None
        if self._dice.random() < 0.5:
            process.kill()
            process.join()
            del self._relays[name]
            self.killed += 1
            if self._dice.random() < 0.5:  # else its leases run out by themselves
                self._stage.sql.execute("INSERT INTO gone VALUES (%s)", [name])
            self._start_relay()
        else:
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(self._dice.random() * 0.5)
            os.kill(process.pid, signal.SIGCONT)
            self.frozen += 1
        self.assert_alive()

    def assert_alive(self) -> None:
        dead = [name for name, process in self._relays.items() if not process.is_alive()]
        assert dead == [], "a relay ended by itself: see its traceback above"

    def join_others(self) -> None:
        for process in self._others:
            process.join(30)
            assert process.exitcode == 0

    def end(self) -> None:
        for process in [*self._relays.values(), *self._others]:
            process.kill()
            process.join()


@contextmanager
def racing(stage: Stage, folder: Path, completion: str, on_exhausted: str, seed: int) -> Iterator[Field]:
    race = Race(stage.url, completion, on_exhausted, folder / "calm", folder / "over")
    field = Field(stage, race, random.Random(seed))
    try:
        field.start()
        yield field
    finally:
        field.end()


def drained(stage: Stage) -> bool:
    """Nothing left alive; whatever waits or was parked as failed is sent on its way."""
    operator = stage.actor("parent")
    race_kit.hurried(operator, 1000)
    race_kit.redriven(operator, Filter(status="failed"))
    operator.close()
    left = stage.value("SELECT count(*) FROM outbox WHERE completed_at IS NULL")
    return left == 0 and stage.leases() == []


LOST = """
SELECT id, key FROM written w WHERE NOT EXISTS (SELECT FROM published p WHERE p.id = w.id)
  AND NOT EXISTS (SELECT FROM outbox o WHERE o.id = w.id AND o.status = 'dead_letter')
"""
# First occurrences, in the order of the broker. Left out are events whose order nobody promises: those
# that became visible after others of higher ids, and those that left their lane unpublished.
INVERSIONS = """
WITH first AS (
  SELECT p.key, p.id, min(p.seq) AS seq FROM published p JOIN written w USING (id)
  WHERE w.kind <> 'late' AND NOT EXISTS (SELECT FROM left_lane l WHERE l.id = p.id)
  GROUP BY p.key, p.id)
SELECT key, id, before FROM (
  SELECT key, id, max(id) OVER (PARTITION BY key ORDER BY seq
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM first) f
WHERE id < before
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "completion, on_exhausted", [("keep", "dead_letter"), ("delete", "block"), ("archive", "dead_letter")]
)
def test_a_race_loses_nothing_overtakes_nothing_and_leaves_nothing_behind(
    stage: Stage, tmp_path: Path, completion: str, on_exhausted: str
) -> None:
    stage.sql.execute(INSTRUMENTS)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201 - shown where the test fails
    with racing(stage, tmp_path, completion, on_exhausted, seed) as field:
        wait_until(lambda: stage.value("SELECT count(DISTINCT worker) > 8 FROM published"), "relays publish")
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            field.trouble()
        (tmp_path / "calm").touch()
        field.join_others()
        wait_until(lambda: drained(stage), "the outbox is empty", 60)
        field.assert_alive()
        (tmp_path / "over").touch()

    happened = dict(stage.sql.execute("SELECT what, sum(n)::int FROM happened GROUP BY what").fetchall())
    assert stage.sql.execute(LOST).fetchall() == []
    assert stage.sql.execute(INVERSIONS).fetchall() == []
    assert {what: n for what, n in happened.items() if what in ("overlap", "overtaken")} == {}
    assert stage.value("SELECT count(*) FROM held") == 0
    for fault in ("lease lost", "reaped", "retry", "redrive", "skip", "hurry"):
        assert happened.get(fault, 0) > 0, f"the race had no {fault}: it proves nothing"
    assert field.killed > 0
    assert field.frozen > 0
    assert stage.value("SELECT count(*) > count(DISTINCT id) FROM published"), "nothing was published twice"
    assert stage.value("SELECT count(*) FROM written WHERE kind = 'late'") > 0
