"""The commands that act, as processes: beside a relay that runs, at a terminal, and interrupted."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay import Inbox
from tests.conftest import Kafka
from tests.integration.store_kit import Stage
from tests.servers.kafka_rig import KafkaRig
from tests.system.relays import ROOT, insert, relays, statuses, wait_until


def start(
    database: str, *arguments: str, variables: Mapping[str, str] | None = None, **streams: Any
) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    own = {"PYTHONPATH": str(ROOT), "RELAY_DATABASE_URL": database, "TERM": "xterm"}
    return subprocess.Popen(
        [sys.executable, "-m", "relay", *arguments],
        text=True,
        env=inherited | own | dict(variables or {}),
        cwd="/",
        **streams,
    )


def park(database: str, statement: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute(f"UPDATE outbox SET {statement}")


DEAD = "status = 'dead_letter', completed_at = now(), parked_at = now(), attempts = 5"


def test_a_redriven_dead_letter_is_published_by_a_relay_that_runs_and_says_so(
    database: str, tmp_path: Path
) -> None:
    insert(database, 1, 1, "dead")
    park(database, DEAD)
    insert(database, 1, 1, "live")
    with relays(tmp_path) as run:
        relay = run(database)
        wait_until(lambda: len(relay.lines) == 1, what="the successor is published")
        command = start(database, "retry", "dead-1", stdout=subprocess.PIPE)
        assert command.communicate(timeout=60)[0] == "1 event was redriven\n"
        wait_until(lambda: len(relay.lines) == 2, what="the dead letter is published")
        first, second = (line["headers"] for line in relay.lines)
    assert (first["event_id"], second["event_id"]) == ("live-1", "dead-1")
    assert "redriven_at" not in first
    assert second["redriven_at"] > second["created_at"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_replay_that_is_interrupted_says_how_to_go_on_and_goes_on(
    database: str, tmp_path: Path, number: signal.Signals
) -> None:
    insert(database, 600, 20)
    with relays(tmp_path) as run:
        assert run(database, "--until-empty").wait() == 0
    out, err = tmp_path / "replay.out", tmp_path / "replay.err"
    arguments = ("replay", "--all", "--yes", "--publisher", "stdout", "--replay-id", "r-1")
    with out.open("w") as stdout, err.open("w") as stderr:
        replay = start(database, *arguments, "--rate", "100", stdout=stdout, stderr=stderr)
        wait_until(lambda: out.read_text().count("\n") > 10, what="it publishes")
        replay.send_signal(number)
        assert replay.wait(60) == 130
    assert err.read_text().splitlines()[-1] == "stopped; to go on: relay replay --replay-id r-1"
    printed = out.read_text().splitlines()
    assert 10 < len(printed) < 600
    rest = start(database, *arguments, "--rate", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    printed += rest.communicate(timeout=60)[0].splitlines()
    assert rest.returncode == 0
    headers = [json.loads(line)["headers"] for line in printed]
    assert sorted(header["event_id"] for header in headers) == sorted(f"evt-{n}" for n in range(1, 601))
    for key in {header["partition_key"] for header in headers}:
        positions = [int(header["position"]) for header in headers if header["partition_key"] == key]
        assert positions == sorted(positions)
    assert statuses(database) == {"completed": 600}


def test_a_replay_through_kafka_lands_beside_the_first_copies_and_is_applied_once_per_replay(
    database: str, kafka: Kafka
) -> None:
    rig = KafkaRig(kafka.address)
    insert(database, 30, 5)
    settings = ("--publisher", "kafka", "--destination", rig.destination)
    servers = {"RELAY_KAFKA__BOOTSTRAP_SERVERS": kafka.address, "RELAY_HTTP": "off"}
    for arguments in (("run", "--until-empty"), ("replay", "--all", "--replay-id", "r-1")):
        command = start(database, *arguments, *settings, stderr=subprocess.PIPE, variables=servers)
        _, said = command.communicate(timeout=120)
        assert command.returncode == 0, said
    received = rig.received(60)
    first = [message for message in received if "replay_id" not in message.headers]
    again = [message for message in received if message.headers.get("replay_id") == "r-1"]
    assert len(first) == len(again) == 30
    marks = ("replay_id", "replayed_at")
    plain = [{n: v for n, v in message.headers.items() if n not in marks} for message in again]
    by_id = {message.event_id: message for message in first}
    assert plain == [by_id[message.event_id].headers for message in again]
    assert [message.payload for message in again] == [by_id[message.event_id].payload for message in again]
    inbox = Inbox("billing")
    with psycopg.connect(database) as conn:
        applied = [
            inbox.accept(conn, message.event_id, replay_id=message.headers.get("replay_id"))
            for message in [*first, *again, *first, *again]
        ]
    assert applied == [True] * 60 + [False] * 60


def at_a_terminal(database: str, answer: str, *arguments: str) -> tuple[int, str]:
    """Run a command whose user sits at a terminal, and answers its question; its code and what was shown."""
    ours, theirs = pty.openpty()
    command = start(database, *arguments, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = ""
    try:
        while True:
            shown += os.read(ours, 4096).decode()
            if answer and "Go on?" in shown:
                os.write(ours, f"{answer}\n".encode())
                answer = ""
    except OSError:  # its end is closed
        pass
    finally:
        os.close(ours)
    return command.wait(60), shown


def test_at_a_terminal_it_asks_first_and_shows_how_far_it_is(database: str) -> None:
    insert(database, 2000, 500)
    park(database, DEAD)
    code, shown = at_a_terminal(database, "n", "retry", "--all")
    assert code == 1
    assert "to redrive: 2,000 events. Go on?" in shown
    assert "nothing was changed" in shown
    assert statuses(database) == {"dead_letter": 2000}
    code, shown = at_a_terminal(database, "y", "retry", "--all")
    assert code == 0
    assert "/2000" in shown, "there was no progress bar"
    assert "2,000 events were redriven" in shown
    assert statuses(database) == {"pending": 2000}


def test_a_second_interrupt_rolls_back_what_is_in_hand(database: str) -> None:
    """The batch waits for a bucket that somebody holds."""
    insert(database, 10, 1)
    park(database, DEAD)
    stage = Stage(database)
    holder = stage.actor("holder")
    with holder.conn.transaction():
        bucket = stage.value("SELECT partition_bucket FROM outbox LIMIT 1")
        holder.conn.execute("SELECT pg_advisory_xact_lock(%s, %s)", [holder.table.bucket_locks, bucket])
        command = start(database, "retry", "--all", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = ("
        waiting += "SELECT oid FROM pg_database WHERE datname = current_database())"
        wait_until(lambda: stage.value(waiting) == 1, what="the command waits for the lock")
        command.send_signal(signal.SIGINT)
        assert command.stderr
        assert "again to stop at once" in command.stderr.readline()
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 130
        command.communicate()
    assert statuses(database) == {"dead_letter": 10}
    assert stage.value("SELECT count(*) FROM outbox_audit") == 0
    stage.close()
