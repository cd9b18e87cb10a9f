"""How a relay ends: drained, at once, or cut off from its database."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from publishers.memory import MemoryPublisher
from publishers.stdout import StdoutPublisher
from relay.metrics import Metrics
from relay.settings import Settings
from relay.worker import relay as process
from tests.system.hanging import PUBLISHER as HANGING
from tests.system.relays import RelayProcess, insert, statuses, wait_until

Start = Callable[..., RelayProcess]


class SlowToStart(StdoutPublisher):
    """Says that it is being made, and is so until a file is there."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        Path(os.environ["BEGUN"]).touch()
        while not Path(os.environ["GO_ON"]).exists():
            time.sleep(0.02)
        super().__init__(options)


def _cut_all_sessions(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def _workers(database: str) -> list[str]:
    with psycopg.connect(database) as conn:
        return [row[0] for row in conn.execute("SELECT id FROM outbox_workers WHERE status <> 'dead'")]


def test_sigterm_drains_deregisters_and_exits_0(relay: Start, database: str) -> None:
    insert(database, 20_000, 1_000)
    worker = relay(database, batch_size=100)
    wait_until(lambda: worker.lines, what="something was published")
    worker.terminate()
    assert worker.wait() == 0, worker.log
    published = [line["headers"]["event_id"] for line in worker.lines]
    assert len(published) == len(set(published))
    assert statuses(database).get("processing", 0) == 0
    assert statuses(database)["completed"] == len(published)
    assert _workers(database) == []


def test_a_rolling_restart_without_faults_publishes_no_duplicates(relay: Start, database: str) -> None:
    insert(database, 20_000, 1_000)
    old = [relay(database, batch_size=100) for _ in range(2)]
    wait_until(lambda: all(worker.lines for worker in old), what="both publish")
    new = []
    for worker in old:
        new.append(relay(database, batch_size=100))
        worker.terminate()
        assert worker.wait() == 0, worker.log
    wait_until(lambda: statuses(database) == {"completed": 20_000})
    published = [line["headers"]["event_id"] for worker in old + new for line in worker.lines]
    assert len(published) == len(set(published)) == 20_000


def test_a_killed_relay_is_replaced_within_seconds_and_nothing_is_lost(relay: Start, database: str) -> None:
    insert(database, 20_000, 1_000)
    victim = relay(database, batch_size=100, lease_seconds=90)
    wait_until(lambda: victim.lines, what="the victim publishes")
    victim.process.send_signal(signal.SIGKILL)
    heir = relay(database, batch_size=1000, lease_seconds=90)
    # Far sooner than the lease of 90 seconds: the victim's session is gone.
    wait_until(lambda: statuses(database) == {"completed": 20_000}, 60)
    ids = {line["headers"]["event_id"] for worker in (victim, heir) for line in worker.lines}
    assert len(ids) == 20_000


def test_a_relay_whose_sessions_are_cut_registers_anew_and_goes_on(relay: Start, database: str) -> None:
    worker = relay(database)
    wait_until(lambda: _workers(database), what="the worker registers")
    first = _workers(database)
    _cut_all_sessions(database)
    wait_until(lambda: _workers(database) not in ([], first), what="another registration")
    insert(database, 100, 10)
    wait_until(lambda: statuses(database) == {"completed": 100})
    assert worker.process.poll() is None


def test_an_event_committed_while_the_relay_sleeps_is_published(relay: Start, database: str) -> None:
    worker = relay(database)
    wait_until(lambda: _workers(database), what="the worker registers")
    for number in range(5):
        insert(database, 1, 1, f"late-{number}")
        wait_until(lambda: statuses(database).get("completed") == number + 1)  # noqa: B023
    assert [line["headers"]["event_id"] for line in worker.lines] == [f"late-{n}-1" for n in range(5)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_until_empty_that_is_stopped_before_all_is_published_exits_130(
    relay: Start, database: str, number: signal.Signals
) -> None:
    insert(database, 20_000, 1_000)
    worker = relay(database, "--until-empty", batch_size=10)
    wait_until(lambda: worker.lines, what="something was published")
    worker.process.send_signal(number)
    assert worker.wait() == 130, worker.log
    assert statuses(database)["pending"] > 0
    assert statuses(database)["completed"] == len(worker.lines)


@pytest.mark.parametrize("arguments", [(), ("--until-empty",)])
def test_a_relay_that_loses_its_database_while_it_drains_exits_1(
    relay: Start, database: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    hangs = tmp_path / "hangs"
    hangs.touch()
    insert(database, 10, 10)
    worker = relay(database, *arguments, publisher=HANGING, environment={"HANGS": str(hangs)})
    with psycopg.connect(database, autocommit=True) as conn:
        wait_until(lambda: conn.execute("SELECT 1 FROM outbox_leases").fetchone(), what="a claim")
    worker.terminate()
    wait_until(lambda: "draining" in worker.log, what="it drains")
    _cut_all_sessions(database)
    hangs.unlink()
    assert worker.wait() == 1, worker.log
    assert "what was in flight is dropped" in worker.log


@pytest.mark.parametrize("arguments, code", [((), 0), (("--until-empty",), 130)])
def test_sigterm_while_the_publisher_is_being_made_is_heard(
    relay: Start, database: str, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    insert(database, 10, 10)
    worker = relay(
        database,
        *arguments,
        publisher=f"{__name__}:SlowToStart",
        environment={"BEGUN": str(begun), "GO_ON": str(go_on)},
    )
    wait_until(begun.exists, what="the publisher is being made")
    worker.terminate()
    wait_until(lambda: "draining" in worker.log, what="it has heard")
    go_on.touch()
    assert worker.wait() == code, worker.log
    assert (worker.lines, statuses(database)) == ([], {"pending": 10})


def test_sigterm_while_modules_are_being_imported_is_heard(database: str) -> None:
    program = """
import os, signal, sys
from relay.cli import main

class Meanwhile:
    def find_spec(self, name, *rest):
        if name == "relay.worker":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Meanwhile())
main()
"""
    command = [sys.executable, "-c", program, "run", "--publisher", "stdout", "--database-url", database]
    environment = os.environ | {"RELAY_HTTP": "off"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "draining" in done.stderr
    assert _workers(database) == []


class Brief:
    """A registration that succeeds, and whose work fails after so many seconds."""

    worker = "w1"

    def __init__(self, clock: "Clock", seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    def run(self, until_empty: bool) -> None:
        self._clock.now += self._seconds
        raise psycopg.OperationalError("the server closed the connection")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def rests(monkeypatch: pytest.MonkeyPatch, lives: Iterable[float]) -> list[float]:
    """How long a relay waits after each of its lives, of which the last ends it."""
    clock = Clock()
    monkeypatch.setattr(process, "monotonic", clock, raising=False)
    settings = Settings(database_url="postgresql://nobody@127.0.0.1:1/none")  # type: ignore[arg-type]
    relay = process.Relay(settings, MemoryPublisher({}), Metrics())
    left = list(lives)
    waits: list[float] = []

    def register(takeover: bool, previous: str | None) -> Any:
        return Brief(clock, left.pop(0)) if left else None

    monkeypatch.setattr(relay, "_register", register)
    monkeypatch.setattr(relay, "_wait", waits.append)
    relay.run()
    return waits


def test_between_lives_that_end_at_once_a_relay_rests_longer_and_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = rests(monkeypatch, [0.0] * 9)
    assert waits[:6] == sorted(waits[:6])
    assert 0.1 < waits[0] < 0.3
    assert all(7 < wait <= 10 for wait in waits[6:])


def test_after_a_life_that_lasted_the_next_one_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, after = rests(monkeypatch, [0.0, 1.0, 3600.0, 0.0])
    assert second > first
    assert after < second
