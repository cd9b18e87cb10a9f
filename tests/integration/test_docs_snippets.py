"""What the documents show works: snippets of Python and SQL run, and commands that need only a database.

tests/unit/test_docs.py holds the rest against the command line's own definition.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Kafka
from tests.docs.pages import ROOT, SHELL, Page, pages_with
from tests.docs.shell import Command, commands, program
from tests.docs.stage import SHOP
from tests.integration.cli_kit import invoke, nowhere, relay

__all__ = ["nowhere"]

# Commands that are only parsed, and why.
PARSED = {
    "bench": "takes minutes, and a broker; tests/integration/test_bench.py",
    "dashboard": "serves until it is stopped; tests/web",
    "demo": "tests/system/test_demo.py",
    "doctor": "asks for the broker of the settings; tests/integration/test_doctor.py",
}
# What a page writes where a reader fills in their own.
PLACES = {
    "EVENT_ID": "evt-order-9182-paid-v1",
    "DESTINATION": "orders",
    "TYPE": "OrderPaid",
    "KEY": "order:9182",
    "ID": "12",
}
# An outbox in which all that the commands name is there.
SEED = """
DELETE FROM outbox; DELETE FROM outbox_pauses; DELETE FROM outbox_audit;
DELETE FROM inbox_dedupe_dead_letters;
INSERT INTO outbox (partition_key, event_type, payload, idempotency_key, destination, created_at, status,
                    attempts, completed_at, parked_at, last_error, available_at)
VALUES
  ('order:9182', 'OrderPaid', '{}', 'evt-order-9182-paid-v1', NULL, now() - interval '1 hour', :status, 5,
   :completed, now(), 'timeout', now()),
  ('order:9182', 'OrderPaid', '{}', 'behind', NULL, now(), 'pending', 0, NULL, NULL, NULL, now()),
  ('order:1', 'OrderPaid', '{}', 'done', NULL, now() - interval '40 days', 'completed', 1,
   now() - interval '40 days', NULL, NULL, now()),
  ('order:2', 'OrderPaid', '{}', 'held', 'orders', now(), 'pending', 0, NULL, NULL, NULL, now());
INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by, until) VALUES
  ('destination', 'orders', 'operator', 'upgrade', 'ann@desk', NULL),
  ('destination', 'orders', 'breaker', 'no answer', 'relay', now() + interval '1 hour'),
  ('all', '', 'operator', 'upgrade', 'ann@desk', NULL);
INSERT INTO inbox_dedupe_dead_letters (id, consumer, reason, event_id, source, error, attempts)
OVERRIDING SYSTEM VALUE VALUES (12, 'billing', 'failed', 'evt-1', 'orders[3]@1207', 'no such account', 5),
  (13, 'billing', 'stale', 'evt-2', 'orders[3]@1208', 'late', 1);
"""
RUNS: set[tuple[str, ...]] = set()  # of `relay run`: a process, so once for all pages
DEAD = {"status": "'dead_letter'", "completed": "now()"}
FAILED = {"status": "'failed'", "completed": "NULL"}


def parameters(*languages: str) -> pytest.MarkDecorator:
    found = pages_with(*languages)
    return pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in found])


@parameters("python")
def test_the_python_of_a_page_runs(
    page: Page, database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    servers: dict[str, str] = {}
    if "KafkaConsumer(" in page.text:
        kafka: Kafka = request.getfixturevalue("kafka")
        servers = {"DOCS_KAFKA": kafka.address, "DOCS_TOPIC": kafka.create_topic()}
    run_python(page, database, tmp_path, **servers)


def run_python(page: Page, database: str, folder: Path, **servers: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.docs.stage", page.name],
        cwd=folder,
        env=os.environ | {"DOCS_DATABASE_URL": database, "PYTHONPATH": str(ROOT)} | servers,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@parameters("sql")
def test_the_sql_of_a_page_runs(page: Page, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(SHOP)
        for block in page.of("sql"):
            try:
                conn.execute(block.text.encode())
            except psycopg.Error as error:
                pytest.fail(f"{page.name}:{block.line}: {error}")


@pytest.mark.usefixtures("nowhere")
@parameters(*SHELL)
def test_the_commands_of_a_page_run(page: Page, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_DATABASE_URL", database)
    monkeypatch.setenv("RELAY_PUBLISHER", "stdout")
    ran: set[tuple[str, ...]] = set()
    with psycopg.connect(database, autocommit=True) as conn:
        for command in commands(page):
            words = program(command)
            if words and words not in ran:
                ran.add(words)
                seed = SEED
                for name, value in (FAILED if {"failed", "skip"} & set(words) else DEAD).items():
                    seed = seed.replace(f":{name}", value)
                conn.execute(seed.encode())
                run(command, conn)


def run(command: Command, conn: psycopg.Connection) -> None:
    """What only the database is needed for; a replay that goes on (`--replay-id`) is a reader's own."""
    match program(command):
        case ("psql", *arguments) if "-c" in arguments:
            conn.execute(arguments[arguments.index("-c") + 1].encode())
        case ("relay", name, *_) if name in PARSED:
            pass
        case ("relay", "run", *arguments) if tuple(arguments) not in RUNS:
            RUNS.add(tuple(arguments))
            conn.execute("DELETE FROM outbox_pauses")
            done = relay("run", *arguments, *({"--until-empty"} - set(arguments)))
            assert done.returncode == 0, f"{command.where}: {done.stderr}"
        case ("relay", name, *_) if name != "run" and "--replay-id" not in command.words:
            result = invoke(*(PLACES.get(word, word) for word in program(command)[1:]))
            assert result.exit_code == 0, f"{command.where}: {result.stderr}"


def test_the_steps_of_the_readme_lead_from_an_empty_database_to_published_events(
    empty_database: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = Page("README.md")
    shown = [program(command) for command in commands(readme)]
    monkeypatch.setenv("RELAY_DATABASE_URL", empty_database)
    assert ("relay", "migrate") in shown
    assert invoke("migrate").exit_code == 0
    run_python(readme, empty_database, nowhere)
    with psycopg.connect(empty_database) as conn:
        for block in readme.of("sql"):
            conn.execute(block.text.encode())
    words = ("relay", "run", "--publisher", "stdout", "--until-empty")
    assert words in shown
    published = [json.loads(line) for line in relay(*words[1:]).stdout.splitlines()]
    assert [event["payload"]["order_id"] for event in published] == [9182, 9182]
    assert published[1]["headers"]["event_id"] == "evt-order-9182-paid-v1"


def test_every_place_that_a_command_leaves_to_the_reader_is_filled_in_here() -> None:
    for page in pages_with(*SHELL):
        for command in commands(page):
            words = program(command)
            if words[:1] == ("relay",) and words[1] not in PARSED:
                places = {word for word in words if re.fullmatch("[A-Z][A-Z_]+", word)}
                assert places <= set(PLACES), f"{command.where}: {shlex.join(places)}"
