"""How a relay ends: drained, at once, or cut off from its database."""

import signal
from collections.abc import Callable

import psycopg

from tests.system.relays import RelayProcess, insert, statuses, wait_until

Start = Callable[..., RelayProcess]


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
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
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
