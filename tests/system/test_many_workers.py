"""Ownership, failover and pruning, as several relay processes show them."""

import signal
from collections.abc import Callable

import psycopg
import pytest

from tests.system.relays import RelayProcess, insert, statuses, wait_until

Start = Callable[..., RelayProcess]


def _rows(database: str, query: str) -> list[tuple]:
    with psycopg.connect(database) as conn:
        return conn.execute(query).fetchall()


def _alive(database: str) -> int:
    return len(_rows(database, "SELECT FROM outbox_workers WHERE status = 'alive'"))


def test_workers_share_the_keys_between_them(relay: Start, database: str) -> None:
    workers = [relay(database) for _ in range(3)]
    wait_until(lambda: all("3 workers" in worker.log for worker in workers), what="each sees the others")
    insert(database, 3_000, 3_000)
    wait_until(lambda: statuses(database) == {"completed": 3_000})
    shares = [len(worker.lines) for worker in workers]
    assert sum(shares) == 3_000
    assert min(shares) > 500


def test_keys_of_a_frozen_worker_flow_again_once_it_is_stale(relay: Start, database: str) -> None:
    timing = {"heartbeat_seconds": 1, "stale_seconds": 3, "lease_seconds": 60}
    frozen = relay(database, **timing)
    heir = relay(database, **timing)
    wait_until(lambda: _alive(database) == 2 and "2 workers" in frozen.log, what="two share")
    frozen.process.send_signal(signal.SIGSTOP)
    insert(database, 500, 500)
    wait_until(lambda: statuses(database) == {"completed": 500}, 30)
    assert len(heir.lines) >= 400
    frozen.process.send_signal(signal.SIGCONT)
    wait_until(lambda: _alive(database) == 2, what="the frozen one registers anew")
    assert frozen.process.poll() is None


@pytest.mark.parametrize("losses", [0, 1, 2])
def test_a_bucket_whose_owner_does_not_claim_is_swept_by_another(
    relay: Start, database: str, losses: int
) -> None:
    """Also of events that lost leases before, to an owner that hangs: those are claimed apart."""
    insert(database, 200, 200)
    with psycopg.connect(database) as conn:
        conn.execute("UPDATE outbox SET losses = %s", [losses])
    # A worker that only claims to live: it heartbeats from here and never claims.
    with psycopg.connect(database, autocommit=True) as idler:
        idler.execute("INSERT INTO outbox_workers (id, status) VALUES ('idler', 'alive')")
        worker = relay(database, "--takeover", stale_seconds=600)
        wait_until(lambda: "2 workers" in worker.log, what="the idler counts")
        wait_until(lambda: statuses(database) == {"completed": 200}, 30)


@pytest.mark.parametrize("completion", ["keep", "archive"])
def test_what_is_past_its_retention_is_pruned_but_no_dead_letter(
    relay: Start, database: str, completion: str
) -> None:
    insert(database, 50, 50)
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload, status, completed_at, parked_at)"
            " VALUES ('order:1', 'OrderPaid', '{}', 'dead_letter', now() - interval '1 year',"
            " now() - interval '1 year')"
        )
    assert relay(database, "--until-empty", completion=completion).wait() == 0
    relay(database, completion=completion, retention=0.1)
    left = "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM outbox_archive)"
    wait_until(lambda: _rows(database, left) == [(1, 0)], what="only the dead letter is left")
