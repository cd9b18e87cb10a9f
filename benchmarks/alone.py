"""Figures of Outbox Relay alone that a comparison does not give.

  .venv/bin/python benchmarks/alone.py writers             what an outbox costs those who write to it
  .venv/bin/python benchmarks/alone.py idle --seconds 3600  what an idle relay costs, and how it wakes up

Drains, latencies, trials and growth are `relay bench`'s. Both print JSON.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

import psycopg

from benchmarks.accounting import Accounting
from benchmarks.contenders import KEYS, PAYLOAD, OutboxRelay, Scene, environment, sql
from benchmarks.measuring import scene_of
from benchmarks.servers import Broker, postgres
from relay.bench.figures import latency
from relay.bench.local_processes import family_cpu
from relay.demo.processes import ServerError

# What an application would have without a relay: a primary key and one unique index.
PLAIN = """
CREATE TABLE plain (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, idempotency_key text COLLATE "C" NOT NULL UNIQUE,
  partition_key text COLLATE "C" NOT NULL, event_type text COLLATE "C" NOT NULL, payload jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now())
"""
BULK = f"""
INSERT INTO {{table}} (partition_key, event_type, payload, idempotency_key)
SELECT 'order:' || (i % {KEYS}), 'OrderPaid', {PAYLOAD}, '{{prefix}}-' || i FROM generate_series(1, 1000) i
"""
SINGLE = f"""
INSERT INTO {{table}} (partition_key, event_type, payload, idempotency_key)
SELECT 'order:' || (i % {KEYS}), 'OrderPaid', {PAYLOAD}, '{{prefix}}' FROM (VALUES ({{number}})) v(i)
"""
TABLES = ("plain", "outbox")
ROUNDS = 5
STATEMENTS = 50
COMMITS = 300


def writers(version: int) -> dict[str, Any]:
    """Each figure for a plain table and for the outbox, in turns, and their ratio."""
    with ExitStack() as stack:
        server = stack.enter_context(postgres(version, logical=False))
        scene = Scene(server, "", "unused", stack)
        OutboxRelay().prepare(scene)
        sql(scene.url, PLAIN)
        conn = stack.enter_context(psycopg.connect(scene.url, autocommit=True))
        bulk = _bulk(conn, server.pid)
        alone = _commits(conn, "alone")
        relay = _relay_to_nowhere(scene)
        _wait(lambda: _published(conn), "the relay to publish what is there")
        asleep = _commits(conn, "asleep")
        sql(scene.url, *(BULK.format(table="outbox", prefix=f"backlog-{n}") for n in range(1000)))
        busy = _commits(conn, "busy")
        if _published(conn):
            raise ServerError("The relay was done before the commits were: it was not busy.")
        relay.terminate()
    return {
        "rows_per_statement": 1000,
        "bulk": bulk,
        "single_commit_ms": {
            "no relay": alone,
            "a relay that sleeps between them": asleep,
            "a relay that works off a backlog": busy,
        },
    }


def _bulk(conn: psycopg.Connection[Any], postmaster: int) -> dict[str, Any]:
    cpu: dict[str, list[float]] = {table: [] for table in TABLES}
    wal: dict[str, list[float]] = {table: [] for table in TABLES}
    for number in range(ROUNDS):
        for table in TABLES:
            conn.execute("CHECKPOINT")
            before, lsn = family_cpu(postmaster) or 0.0, _lsn(conn)
            for statement in range(STATEMENTS):
                conn.execute(BULK.format(table=table, prefix=f"{number}-{statement}").encode())
            rows = STATEMENTS * 1000
            cpu[table].append(((family_cpu(postmaster) or 0.0) - before) * 1e6 / rows)
            wal[table].append((_lsn(conn) - lsn) / rows)
    return {"cpu_us_per_row": _compared(cpu), "wal_bytes_per_row": _compared(wal)}


def _commits(conn: psycopg.Connection[Any], prefix: str) -> dict[str, Any]:
    times: dict[str, list[float]] = {table: [] for table in TABLES}
    for number in range(ROUNDS):
        for table in TABLES:
            for commit in range(COMMITS):
                statement = SINGLE.format(table=table, prefix=f"{prefix}-{number}-{commit}", number=commit)
                started = time.perf_counter()
                conn.execute(statement.encode())
                times[table].append(time.perf_counter() - started)
    told: dict[str, Any] = {table: latency(each) for table, each in times.items()}
    return told | {"ratio_of_medians": round(median(times["outbox"]) / median(times["plain"]), 2)}


def _compared(values: dict[str, list[float]]) -> dict[str, float]:
    middle = {table: round(median(each), 2) for table, each in values.items()}
    return middle | {"ratio": round(middle["outbox"] / max(middle["plain"], 1e-9), 2)}


def _relay_to_nowhere(scene: Scene) -> "subprocess.Popen[bytes]":
    return scene.run(
        [sys.executable, "-m", "relay", "run", "--publisher", "stdout"],
        "relay",
        environment({"RELAY_DATABASE_URL": scene.url, "RELAY_COMPLETION": "delete", "RELAY_HTTP": "off"}),
    )


def _published(conn: psycopg.Connection[Any]) -> bool:
    return conn.execute("SELECT EXISTS (SELECT FROM outbox WHERE completed_at IS NULL)").fetchone() == (
        False,
    )


def _lsn(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return int(row[0])


def idle(version: int, seconds: float) -> dict[str, Any]:
    """CPU of a relay that has nothing to do and of its database; then how soon one event is in the broker."""
    contender = OutboxRelay()
    with Broker() as broker, scene_of(contender, version, broker) as (scene, topic, postmaster):
        (relay,) = contender.start(scene)
        conn = scene.stack.enter_context(psycopg.connect(scene.url, autocommit=True))
        sent = [_send(conn, contender)]
        topic.wait_for(1, 60, lambda: None)
        time.sleep(5)
        with Accounting({"relay": [relay.pid], "database": [postmaster]}) as accounting:
            began = time.time()
            time.sleep(seconds)
            ended = time.time()
        for _ in range(10):
            sent.append(_send(conn, contender))
            topic.wait_for(len(sent), 60, lambda: None)
            time.sleep(3)
        arrivals = topic.read()
    usage = accounting.between(began, ended)
    arrived = {found.position: at for found, at in zip(arrivals.found, arrivals.at, strict=True)}
    # The end of the millisecond in which the broker appended it.
    waits = [round((arrived[position] + 0.001 - at) * 1000, 1) for position, at in sent]
    share = {name: round(100 * cpu / usage.seconds, 2) for name, cpu in usage.cpu.items()}
    return {
        "seconds": round(usage.seconds),
        "percent_of_a_core": {name: share[name] for name in ("relay", "database")},
        "first_event_after_it_ms": waits[1],
        "events_after_3_s_ms": waits[2:],
    }


def _send(conn: psycopg.Connection[Any], contender: OutboxRelay) -> tuple[int, float]:
    row = conn.execute(contender.insert.encode(), ["order:1", "OrderPaid", "{}"]).fetchone()
    assert row is not None
    return row[0], time.time()


def _wait(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(f"Waited {seconds:g} s for {what}.")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["writers", "idle"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of idleness (default 60)")
    parser.add_argument("--postgres", type=int, default=18, help="18 (default) or the distribution's, as 15")
    options = parser.parse_args()
    found = (
        writers(options.postgres) if options.what == "writers" else idle(options.postgres, options.seconds)
    )
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except ServerError as error:
        sys.exit(f"error: {error}")
