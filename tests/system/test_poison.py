"""An event that kills its process ends in dead_letter; those that were claimed with it do not."""

from collections.abc import Callable

import psycopg

from tests.system.relays import RelayProcess, insert, statuses, wait_until

Start = Callable[..., RelayProcess]


def test_an_event_that_kills_its_worker_is_dead_lettered_and_takes_nobody_with_it(
    relay: Start, database: str
) -> None:
    insert(database, 400, 80)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload, idempotency_key, max_attempts)"
            " VALUES ('order:poison', 'OrderPaid', '{}', 'poison', 2)"
        )
        insert(database, 400, 80, "after")
        crashes = 0

        def parked() -> bool:
            nonlocal crashes
            # The supervisor of a real deployment: start another one when it died.
            worker = relay(database, "--until-empty", publisher="tests.system.crashing:CrashingPublisher")
            crashes += worker.wait() == 139
            return "dead_letter" in statuses(database)

        # The last crash leaves the poison to the next relay's reaper.
        wait_until(parked, 120, "the poison is parked")
        relay(database, publisher="tests.system.crashing:CrashingPublisher")
        wait_until(lambda: statuses(database) == {"completed": 800, "dead_letter": 1}, 60)
        assert crashes >= 3
        row = conn.execute(
            "SELECT idempotency_key, last_error FROM outbox WHERE status = 'dead_letter'"
        ).fetchone()
        assert row is not None
        assert row[0] == "poison"
        assert "lease lost" in row[1]
