"""How soon the keys of a relay flow again that was killed or froze, and what a rolling restart costs.

What was measured is printed; the limits here are what a busy machine is allowed.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import psycopg
import pytest

from tests.faults.child import PUBLISHER
from tests.faults.failpoints import Action, Failpoints
from tests.system import journal
from tests.system.journal import Journal
from tests.system.relays import RelayProcess, insert, wait_until
from tests.system.writers import writing

Start = Callable[..., RelayProcess]
Tell = Callable[[str, object], None]

SLACK_SECONDS = 15.0
STALE_SECONDS = 3.0


@pytest.fixture
def failpoints(tmp_path: Path) -> Failpoints:
    (tmp_path / "failpoints").mkdir()
    return Failpoints(tmp_path / "failpoints")


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    return Journal(tmp_path / "journal")


def _number(database: str, query: str) -> int:
    with psycopg.connect(database) as conn:
        row = conn.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _three(relay: Start, database: str, failpoints: Path, **settings: float) -> list[RelayProcess]:
    options = {"kind": "journal", "failures": 0.0, "failpoints": str(failpoints)}
    relays = [
        relay(database, publisher=PUBLISHER, publisher_options=json.dumps(options), **settings)
        for _ in range(3)
    ]
    wait_until(lambda: all("3 workers" in r.log for r in relays), what="each sees the others")
    return relays


def _strand(database: str, failpoints: Failpoints, action: Action) -> int:
    """Have one relay stop with a lease in its hands while the others go on; its process id."""
    failpoints.arm("after a claim", action, 600)
    insert(database, 300, 300)
    wait_until(failpoints.suffered, what="one stops after its claim")
    wait_until(
        lambda: _number(database, "SELECT count(DISTINCT claimed_by) FROM outbox_leases") <= 1,
        what="the others are done",
    )
    assert _number(database, "SELECT coalesce(sum(size), 0) FROM outbox_leases") > 0
    return failpoints.suffered()[0].pid


def _seconds_until_all_flow(database: str, since: float, limit: float) -> float:
    unfinished = "SELECT count(*) FROM outbox WHERE status <> 'completed'"
    wait_until(lambda: _number(database, unfinished) == 0, limit, "the keys flow again")
    return monotonic() - since


def test_keys_of_a_killed_relay_flow_again_within_seconds(
    relay: Start,
    database: str,
    failpoints: Failpoints,
    published: Journal,
    tmp_path: Path,
    record_property: Tell,
) -> None:
    _three(relay, database, tmp_path / "failpoints")
    victim = _strand(database, failpoints, "dawdle")
    os.kill(victim, signal.SIGKILL)
    seconds = _seconds_until_all_flow(database, monotonic(), SLACK_SECONDS)
    record_property("tells", f"keys of a killed relay flow again after {seconds:.1f} s (default settings)")
    assert len({entry.event_id for entry in published.entries()}) == 300


def test_keys_of_a_frozen_relay_flow_again_once_it_is_stale(
    relay: Start,
    database: str,
    failpoints: Failpoints,
    published: Journal,
    tmp_path: Path,
    record_property: Tell,
) -> None:
    timing = {"heartbeat_seconds": 1.0, "stale_seconds": STALE_SECONDS, "lease_seconds": 90.0}
    _three(relay, database, tmp_path / "failpoints", **timing)
    started = monotonic()
    _strand(database, failpoints, "freeze")
    seconds = _seconds_until_all_flow(database, started, STALE_SECONDS + SLACK_SECONDS)
    told = f"keys of a frozen relay flow again after {seconds:.1f} s (stale_seconds = {STALE_SECONDS:g})"
    record_property("tells", told)
    assert len({entry.event_id for entry in published.entries()}) == 300


def test_a_rolling_restart_of_three_relays_under_load_publishes_no_duplicates(
    relay: Start, database: str, published: Journal, record_property: Tell
) -> None:
    def start() -> RelayProcess:
        return relay(database, publisher=journal.PUBLISHER, batch_size=50)

    old = [start() for _ in range(3)]
    wait_until(lambda: len(published.pids()) == 0 and all("relays" in r.log for r in old), what="all relay")
    with writing(database) as writers:
        for worker in old:
            new = start()
            wait_until(lambda: new.process.pid in published.pids(), what="the new one publishes")  # noqa: B023
            worker.terminate()
            assert worker.wait() == 0, worker.log
    committed = {event_id for writer in writers for event_id in writer.committed}
    wait_until(
        lambda: {entry.event_id for entry in published.entries()} >= committed, what="all is published"
    )
    record_property("tells", f"rolling restart: {len(committed)} events, {published.duplicates()} duplicates")
    assert published.duplicates() == 0
    assert not any(writer.in_doubt for writer in writers)
