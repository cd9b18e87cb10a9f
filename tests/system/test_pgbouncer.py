"""Everything works through PgBouncer in transaction mode, and leaves its sessions as they were.

The database itself is set up to be unkind: what the relay does not ask for in each transaction is wrong.
"""

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql

from relay import Outbox
from tests.servers.pgbouncer import SESSIONS
from tests.system.relays import ROOT, RelayProcess, insert, statuses, wait_until

Start = Callable[..., RelayProcess]
TIMING = {"heartbeat_seconds": 1, "stale_seconds": 4, "lease_seconds": 90}


@pytest.fixture(autouse=True)
def unkind(database: str) -> None:
    defaults = {
        "default_transaction_isolation": "serializable",
        "timezone": "Asia/Tokyo",
        "plan_cache_mode": "force_generic_plan",
    }
    with psycopg.connect(database, autocommit=True) as conn:
        name = sql.Identifier(conn.info.dbname)
        for setting, value in defaults.items():
            conn.execute(
                sql.SQL("ALTER DATABASE {} SET {} = {}").format(name, sql.Identifier(setting), value)
            )


def _client(url: str) -> "psycopg.Connection[Any]":
    return psycopg.connect(url, prepare_threshold=None)


def _in_every_session(url: str, query: str) -> list[list[tuple[Any, ...]]]:
    """The rows of the query in each of the pooler's sessions: in transactions open at the same time."""
    with ExitStack() as stack:
        clients = [stack.enter_context(_client(url)) for _ in range(SESSIONS)]
        answers = [client.execute(query).fetchall() for client in clients]
        pids = {client.execute("SELECT pg_backend_pid()").fetchone() for client in clients}
        assert len(pids) == SESSIONS
    return answers


def _rows(database: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as conn:
        return conn.execute(query).fetchall()


def _relay(url: str, *arguments: str) -> str:
    environment = os.environ | {"RELAY_DATABASE_URL": url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "relay", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _positions(workers: Sequence[RelayProcess]) -> dict[str, list[int]]:
    """What each worker published of each key, in its order."""
    found: dict[str, list[int]] = defaultdict(list)
    for number, worker in enumerate(workers):
        for line in worker.lines:
            headers = line["headers"]
            found[f"{number} {headers['partition_key']}"].append(int(headers["position"]))
    return found


def test_two_relays_publish_a_backlog_once_and_in_order_and_leave_no_trace_in_the_sessions(
    relay: Start, database: str, pgbouncer: str
) -> None:
    before = _in_every_session(pgbouncer, "SELECT name, setting FROM pg_settings ORDER BY name")
    insert(database, 6_000, 300)
    workers = [relay(pgbouncer, batch_size=100) for _ in range(2)]
    wait_until(lambda: statuses(database) == {"completed": 6_000})
    assert all(worker.lines for worker in workers)
    assert _rows(database, "SELECT DISTINCT metadata ->> 'has_session' FROM outbox_workers") == [("false",)]
    shared = _rows(
        database,
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'outbox-relay%'",
    )
    assert shared[0][0] <= SESSIONS, "two relays have six connections"
    for worker in workers:
        assert "polls instead of listening" in worker.log
        worker.terminate()
        assert worker.wait() == 0, worker.log

    published = [line["headers"]["event_id"] for worker in workers for line in worker.lines]
    assert len(published) == len(set(published)) == 6_000
    for positions in _positions(workers).values():
        assert positions == sorted(positions)
    created = datetime.fromisoformat(workers[0].lines[0]["headers"]["created_at"])
    assert created.utcoffset() == UTC.utcoffset(None)

    changed = ("application_name", "transaction_isolation", "transaction_read_only")
    after = _in_every_session(pgbouncer, "SELECT name, setting FROM pg_settings ORDER BY name")
    for was, now in zip(before, after, strict=True):
        assert [row for row in was if row[0] not in changed] == [row for row in now if row[0] not in changed]
    nothing: list[list[tuple[Any, ...]]] = [[]] * SESSIONS
    assert _in_every_session(pgbouncer, "SELECT name FROM pg_prepared_statements") == nothing
    assert _in_every_session(pgbouncer, "SELECT * FROM pg_listening_channels()") == nothing
    locks = (
        "SELECT objid FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
        " WHERE locktype = 'advisory' AND datname = current_database()"
    )
    assert _rows(database, locks) == []


def test_a_killed_relay_is_replaced_once_it_is_stale(relay: Start, database: str, pgbouncer: str) -> None:
    insert(database, 6_000, 300)
    victim = relay(pgbouncer, batch_size=50, **TIMING)
    leases = "SELECT claimed_by FROM outbox_leases"

    def stopped_with_a_lease() -> bool:
        if not victim.lines:
            return False
        victim.process.send_signal(signal.SIGSTOP)
        if _rows(database, leases):
            return True
        victim.process.send_signal(signal.SIGCONT)
        return False

    wait_until(stopped_with_a_lease, what="the victim holds a lease")
    ((dead, last_seen),) = _rows(database, "SELECT id, last_seen_at FROM outbox_workers")
    victim.kill()
    heir = relay(pgbouncer, batch_size=500, **TIMING)
    wait_until(lambda: statuses(database) == {"completed": 6_000}, 40, what="far sooner than the lease")
    ids = {line["headers"]["event_id"] for worker in (victim, heir) for line in worker.lines}
    assert len(ids) == 6_000
    with psycopg.connect(database) as conn:
        taken_over = conn.execute(
            "SELECT count(*), min(claimed_at) FROM outbox WHERE last_error LIKE %s AND claimed_by <> %s",
            [f"lease lost: {dead}%", dead],
        ).fetchone()
    assert taken_over is not None
    number, first = taken_over
    assert number > 0
    assert (first - last_seen).total_seconds() >= TIMING["stale_seconds"]
    for positions in _positions([victim, heir]).values():
        assert positions == sorted(positions)


def test_a_relay_whose_pooled_sessions_are_cut_registers_anew_and_goes_on(
    relay: Start, database: str, pgbouncer: str
) -> None:
    worker = relay(pgbouncer, stale_seconds=600)
    alive = "SELECT id FROM outbox_workers WHERE status = 'alive'"
    wait_until(lambda: _rows(database, alive), what="the worker registers")
    first = _rows(database, alive)

    def registered_anew() -> bool:
        _rows(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'outbox-relay%'"
            " AND pid <> pg_backend_pid()",
        )
        return bool(set(_rows(database, alive)) - set(first))

    wait_until(registered_anew, what="another registration")
    assert first[0] not in _rows(database, alive), "the others would wait for its heartbeats"
    insert(database, 100, 10)
    wait_until(lambda: statuses(database) == {"completed": 100})
    assert worker.process.poll() is None


def test_commands_and_emit_work_through_the_pooler(relay: Start, database: str, pgbouncer: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("DROP SCHEMA public CASCADE")
        conn.execute("CREATE SCHEMA public")
    _relay(pgbouncer, "migrate", "--dry-run")
    assert _rows(database, "SELECT to_regclass('outbox')") == [(None,)]
    _relay(pgbouncer, "migrate")

    outbox = Outbox()
    with _client(pgbouncer) as conn:
        for number in range(20):
            with conn.transaction():
                assert outbox.emit(
                    conn,
                    "OrderPaid",
                    key=f"order:{number % 3}",
                    payload={"n": number},
                    event_id=f"evt-{number}",
                    serialize=True,
                )
    status = json.loads(_relay(pgbouncer, "status", "--json"))
    assert status["counts"]["pending"]["value"] == 20

    _relay(pgbouncer, "pause", "--all")
    assert len(json.loads(_relay(pgbouncer, "status", "--json"))["pauses"]) == 1
    _relay(pgbouncer, "resume", "--all")

    worker = relay(pgbouncer, "--until-empty")
    assert worker.wait() == 0, worker.log
    assert len(worker.lines) == 20
    _relay(pgbouncer, "workers")
    listed = json.loads(_relay(pgbouncer, "events", "--status", "completed", "--json"))
    assert len(listed) == 20
    shown = json.loads(_relay(pgbouncer, "show", "evt-7", "--json"))
    assert shown["status"] == "completed"
    assert datetime.fromisoformat(shown["created_at"]).utcoffset() == UTC.utcoffset(None)
