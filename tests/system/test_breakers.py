"""What a failing broker or destination does to the events: they wait, nothing is held against them."""

import os
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.system.relays import RelayProcess, insert, statuses, wait_until

Start = Callable[..., RelayProcess]
FLAKY = "tests.system.flaky:FlakyPublisher"


@pytest.fixture
def down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(os.environ, "FLAKY_DOWN", str(tmp_path / "down"))
    monkeypatch.setitem(os.environ, "FLAKY_CALLS", str(tmp_path / "calls"))
    (tmp_path / "down").write_text("*")
    (tmp_path / "calls").touch()
    return tmp_path / "down"


def _breakers(database: str) -> list[tuple[str, str, int]]:
    with psycopg.connect(database) as conn:
        return conn.execute(
            "SELECT scope, value, failures FROM outbox_pauses WHERE origin = 'breaker'"
        ).fetchall()


def test_an_outage_costs_no_attempts_and_ends_in_full_delivery(
    relay: Start, database: str, down: Path
) -> None:
    insert(database, 2_000, 100)
    with psycopg.connect(database) as conn:
        conn.execute("UPDATE outbox SET max_attempts = 1")
    relays = [relay(database, publisher=FLAKY) for _ in range(2)]
    wait_until(lambda: [b for b in _breakers(database) if b[2] >= 3], what="the breaker fails three times")
    with psycopg.connect(database) as conn:
        untouched = conn.execute("SELECT count(*) FROM outbox WHERE attempts = 0 OR status = 'processing'")
        assert untouched.fetchone() == (2_000,)
    calls = (down.parent / "calls").read_text().splitlines()
    # After the first batches of the two relays, only probes of one event each.
    assert calls[-1] == "outbox.events 1"
    down.write_text("")
    wait_until(lambda: statuses(database) == {"completed": 2_000})
    assert _breakers(database) == []
    published = [line["headers"]["event_id"] for worker in relays for line in worker.lines]
    assert len(set(published)) == 2_000


def test_a_failing_destination_holds_its_events_and_their_keys_but_no_others(
    relay: Start, database: str, down: Path
) -> None:
    down.write_text("bad")
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload, destination)"
            " SELECT 'order:' || (i % 20), 'OrderPaid', '{}', CASE WHEN i = 25 THEN 'bad' ELSE 'good' END"
            " FROM generate_series(1, 200) i"
        )
    worker = relay(database, publisher=FLAKY)
    # Key order:5 stops at its second event, which goes to the bad destination.
    wait_until(lambda: statuses(database).get("completed") == 191)
    assert [(scope, value) for scope, value, _ in _breakers(database)] == [("destination", "bad")]
    down.write_text("")
    wait_until(lambda: statuses(database) == {"completed": 200})
    lane = [
        int(line["headers"]["position"])
        for line in worker.lines
        if line["headers"]["partition_key"] == "order:5"
    ]
    assert lane == sorted(lane)
    assert len(lane) == 10


def test_until_empty_waits_for_a_broker_that_is_down(relay: Start, database: str, down: Path) -> None:
    insert(database, 10, 10)
    worker = relay(database, "--until-empty", publisher=FLAKY)
    wait_until(lambda: [b for b in _breakers(database) if b[2] >= 2], what="the breaker opens")
    assert worker.process.poll() is None
    down.write_text("")
    assert worker.wait() == 0
    assert statuses(database) == {"completed": 10}


@pytest.mark.parametrize(
    "scope,value,left",
    [
        ("all", "", 30),
        ("destination", "outbox.events", 30),
        ("event_type", "OrderPaid", 30),
        ("key", "order:1", 10),
    ],
)
def test_a_pause_of_an_operator_holds_what_it_names(
    relay: Start, database: str, down: Path, scope: str, value: str, left: int
) -> None:
    down.write_text("")
    insert(database, 30, 3)
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by)"
            " VALUES (%s, %s, 'operator', 'maintenance', 'me')",
            [scope, value],
        )
    assert relay(database, "--until-empty", publisher=FLAKY).wait() == 0
    assert statuses(database).get("pending") == left
    with psycopg.connect(database) as conn:
        conn.execute("DELETE FROM outbox_pauses")
    assert relay(database, "--until-empty", publisher=FLAKY).wait() == 0
    assert statuses(database) == {"completed": 30}


def test_a_limited_destination_gets_its_rate_and_holds_up_no_other(
    relay: Start, database: str, down: Path
) -> None:
    down.write_text("")
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload, destination)"
            " SELECT 'order:' || i, 'OrderPaid', '{}', CASE WHEN i % 2 = 0 THEN 'slow' ELSE 'quick' END"
            " FROM generate_series(1, 2000) i"
        )
    worker = relay(database, publisher=FLAKY, rate_limits='{"slow": 20}')
    wait_until(lambda: sum(line["destination"] == "quick" for line in worker.lines) == 1_000)
    slow = sum(line["destination"] == "slow" for line in worker.lines)
    assert slow < 1_000
    wait_until(lambda: sum(line["destination"] == "slow" for line in worker.lines) > slow)


def test_until_empty_waits_for_a_limited_destination(relay: Start, database: str, down: Path) -> None:
    down.write_text("")
    insert(database, 30, 30)
    worker = relay(database, "--until-empty", publisher=FLAKY, rate_limits='{"outbox.events": 20}')
    assert worker.wait() == 0
    assert statuses(database) == {"completed": 30}
