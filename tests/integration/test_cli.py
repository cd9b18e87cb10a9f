"""The command `relay`: each command as a user runs it, and every failure as one sentence."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from relay.cli.output import ago, printable
from tests.integration.cli_kit import add, either, failure, invoke, nowhere, relay

__all__ = ["nowhere"]
pytestmark = pytest.mark.usefixtures("nowhere")
COMMANDS = ["migrate", "sql", "status", "events", "show", "version", "run", "pause", "resume", "workers"]


# The commands, as processes.


def test_migrate_run_status_events_and_show_tell_one_story(empty_database: str) -> None:
    environment = {"RELAY_DATABASE_URL": empty_database}
    made = relay("migrate", "--json", **environment)
    assert made.returncode == 0, made.stderr
    assert {step["component"] for step in json.loads(made.stdout)["applied"]} == {"outbox", "inbox"}
    add(empty_database, "evt-1", "evt-2")

    ran = relay("run", "--publisher", "stdout", "--until-empty", **environment)
    assert ran.returncode == 0, ran.stderr
    published = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [event["headers"]["event_id"] for event in published] == ["evt-1", "evt-2"]
    for line in ran.stderr.splitlines():
        assert json.loads(line)["level"] == "info"

    status = json.loads(relay("status", "--json", **environment).stdout)
    assert status["counts"]["completed"] == {"value": 2, "exact": True}
    assert status["counts"]["pending"]["value"] == 0
    listed = json.loads(relay("events", "--json", **environment).stdout)
    assert [(event["event_id"], event["status"]) for event in listed] == [
        ("evt-2", "completed"),
        ("evt-1", "completed"),
    ]
    shown = relay("show", "evt-1", "--json", **environment)
    assert '"payload": {"amount": 10.00}' in shown.stdout
    assert json.loads(shown.stdout)["receipt"] == "stdout"


def test_sql_and_version_need_no_database() -> None:
    text = relay("sql", "--table", "sales.outbox")
    assert text.returncode == 0
    assert 'CREATE TABLE "sales"."outbox" (' in text.stdout
    version = relay("version", "--json")
    assert set(json.loads(version.stdout)) == {"version", "schema", "python"}
    assert relay("version").stdout == f"outbox-relay {json.loads(version.stdout)['version']}\n"
    assert relay("--version").stdout == relay("version").stdout


def test_the_installed_command_is_the_same_program() -> None:
    command = Path(sys.executable).parent / "relay"
    found = subprocess.run([command, "version"], capture_output=True, text=True, check=True)
    assert found.stdout == relay("version").stdout


def test_help_does_not_load_what_only_commands_need() -> None:
    program = (
        "import sys; from relay.cli import make_app\n"
        "try: make_app()(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'psycopg', 'pydantic', 'rich', 'prometheus_client'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload)"
            " SELECT 'k', 'E', '{}' FROM generate_series(1, 5000)"
        )
    process = subprocess.Popen(
        [sys.executable, "-m", "relay", "events", "--limit", "5000", "--database-url", database],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"position")
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 141
    assert said == b""


def test_ctrl_c_ends_a_command_quietly(database: str) -> None:
    with psycopg.connect(database) as holder:
        holder.execute("LOCK TABLE outbox")
        process = subprocess.Popen(
            [sys.executable, "-m", "relay", "status", "--database-url", database],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with psycopg.connect(database, autocommit=True) as watcher:
            waiting = (
                "SELECT FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'outbox-relay status' AND wait_event_type = 'Lock'"
            )
            while watcher.execute(waiting).fetchone() is None:
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")


# What users are told.


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\n +.*relay {command}", result.stdout)


def test_help_lists_every_command_with_a_whole_sentence() -> None:
    text = invoke("--help").stdout
    for command in COMMANDS:
        assert re.search(rf"^  {command} +[A-Z].*[^.]\.$", text, re.MULTILINE)


@pytest.mark.parametrize(
    "arguments", [["statsu"], ["events", "--status", "lost"], ["show"], ["status", "--nope"]]
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["migrate", "status", "events", "run", "workers"])
def test_a_missing_database_url_is_wrong_settings(command: str) -> None:
    assert (
        failure(either(command), 2)
        == "database_url is missing: set RELAY_DATABASE_URL, or pass --database-url"
    )


def test_every_wrong_setting_gets_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_COMPLETION", "burn")
    monkeypatch.setenv("RELAY_TABEL", "x")
    result = invoke("status", "--database-url", "postgresql://u@h/d")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: RELAY_TABEL is not a setting: did you mean RELAY_TABLE?",
        "error: RELAY_COMPLETION = 'burn': input should be 'keep', 'delete' or 'archive'",
    ]


@pytest.mark.parametrize(
    "command", [["migrate"], ["status"], ["events"], ["show", "x"], ["run", "--publisher", "stdout"]]
)
def test_a_database_that_does_not_answer_is_one_sentence(command: list[str]) -> None:
    said = failure(either(*command, "--database-url", "postgresql://relay:hunter2@127.0.0.1:1/shop"))
    assert said.startswith("cannot connect to the database: ")
    assert "\n" not in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["events"],
        ["show", "x"],
        ["run", "--publisher", "stdout"],
        ["pause", "--all"],
        ["resume", "--all"],
        ["workers"],
    ],
)
def test_a_database_without_the_tables_asks_for_migrate(command: list[str], empty_database: str) -> None:
    said = failure(either(*command, "--database-url", empty_database))
    assert "run 'relay migrate'" in said
    assert "\n" not in said


def test_an_unknown_event_is_one_sentence(database: str) -> None:
    assert failure(invoke("show", "evt-9", "--database-url", database)) == (
        "there is no event evt-9 in outbox or its archive: look with 'relay events'"
    )


def test_an_unknown_publisher_is_wrong_settings(database: str) -> None:
    said = failure(relay("run", "--publisher", "kafak", "--database-url", database, RELAY_HTTP="off"), 2)
    assert said == "publisher = 'kafak' is not installed: did you mean 'kafka'?"


@pytest.mark.parametrize(
    "name, reason",
    [
        ("nosuch:Thing", "No module named 'nosuch'"),
        ("relay.plugins:Nothing", "module 'relay.plugins' has no attribute 'Nothing'"),
    ],
)
def test_a_publisher_that_cannot_be_loaded_is_wrong_settings(database: str, name: str, reason: str) -> None:
    said = failure(relay("run", "--publisher", name, "--database-url", database, RELAY_HTTP="off"), 2)
    assert said.startswith(f"publisher = '{name}' cannot be loaded: {reason} (")


def test_nobody_relays_into_the_memory_of_a_bench(database: str) -> None:
    said = failure(relay("run", "--publisher", "memory", "--database-url", database, RELAY_HTTP="off"), 2)
    assert said == "publisher = 'memory' is not installed: known are kafka, rabbitmq, stdout, webhook"


def test_a_port_that_was_chosen_and_is_busy_is_wrong_settings(database: str) -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        said = failure(
            relay("run", "--publisher", "stdout", "--database-url", database, RELAY_HTTP=address), 2
        )
    assert said == f"http = {address} is in use: choose another port or stop what listens there"


def test_a_bug_is_not_dressed_up_as_a_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.store.migrate.sql_text", lambda _: 1 / 0)
    result = invoke("sql")
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.fixture
def stranger(database: str) -> Iterator[str]:
    """The URL of a role that may connect and nothing else."""
    name = f"stranger_{os.getpid()}"
    role = sql.Identifier(name)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(role))
        try:
            parts = urlsplit(database)
            yield parts._replace(netloc=f"{name}:x@{parts.hostname}:{parts.port}").geturl()
        finally:
            conn.execute(sql.SQL("DROP OWNED BY {}").format(role))
            conn.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_missing_permission_names_the_grant_that_helps(stranger: str, database: str) -> None:
    name = urlsplit(stranger).username
    said = failure(invoke("status", "--database-url", stranger))
    assert said == (
        'permission denied for table outbox_versions: GRANT SELECT ON "outbox_versions" TO '
        f'"{name}", or GRANT "outbox_reader" TO "{name}" (\'relay sql --roles\' makes that role)'
    )
    with psycopg.connect(database, autocommit=True) as conn:
        user = sql.Identifier(str(name))
        conn.execute(sql.SQL("GRANT SELECT ON outbox_versions, inbox_dedupe_versions TO {}").format(user))
        said = failure(invoke("events", "--database-url", stranger))
        assert said.startswith('permission denied for table outbox: GRANT SELECT ON "outbox" TO')
        conn.execute(sql.SQL("GRANT SELECT ON outbox, outbox_leases TO {}").format(user))
    assert invoke("events", "--database-url", stranger).exit_code == 0


def test_a_reader_who_pauses_is_told_which_role_may(stranger: str, database: str) -> None:
    name = urlsplit(stranger).username
    with psycopg.connect(database, autocommit=True) as conn:
        user = sql.Identifier(str(name))
        conn.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}").format(user))
    assert invoke("pause", "--all", "--dry-run", "--database-url", stranger).exit_code == 0
    assert failure(invoke("pause", "--all", "--database-url", stranger)) == (
        'permission denied for table outbox_pauses: GRANT "outbox_operator" TO '
        f"\"{name}\" ('relay sql --roles' makes that role)"
    )


def test_a_relay_without_permission_is_told_which_role_it_needs(stranger: str) -> None:
    name = urlsplit(stranger).username
    said = failure(relay("run", "--publisher", "stdout", "--database-url", stranger))
    assert said.endswith(f"""GRANT "outbox_relay" TO "{name}" ('relay sql --roles' makes that role)""")


def test_a_migrate_without_permission_is_told_which_grant_it_needs(stranger: str) -> None:
    name = urlsplit(stranger).username
    said = failure(invoke("migrate", "--table", "public.another", "--database-url", stranger))
    assert said == f'permission denied for schema public: GRANT CREATE ON SCHEMA "public" TO "{name}"'


def test_a_standby_is_told_to_be_one(empty_database: str) -> None:
    url = f"{empty_database}?options=-cdefault_transaction_read_only%3Don"
    assert "target_session_attrs=read-write" in failure(invoke("migrate", "--database-url", url))


# What commands print.


def test_a_dry_run_prints_sql_that_works_and_changes_nothing(empty_database: str) -> None:
    result = invoke("migrate", "--dry-run", "--database-url", empty_database)
    assert result.exit_code == 0
    assert "would apply outbox 1" in result.stderr
    with psycopg.connect(empty_database, autocommit=True) as conn:
        assert conn.execute("SELECT to_regclass('outbox')").fetchone() == (None,)
        conn.execute(result.stdout)
        assert conn.execute("SELECT to_regclass('outbox') IS NOT NULL").fetchone() == (True,)
    again = invoke("migrate", "--dry-run", "--database-url", empty_database)
    assert (again.exit_code, again.stdout, again.stderr) == (0, "", "outbox is up to date\n")


def test_migrate_says_what_it_did(empty_database: str) -> None:
    first = invoke("migrate", "--database-url", empty_database)
    assert first.stderr == "applied outbox 1\napplied inbox 1\n"
    assert json.loads(invoke("migrate", "--json", "--database-url", empty_database).stdout) == {
        "table": "outbox",
        "dry_run": False,
        "applied": [],
    }


def test_the_table_may_come_from_a_file(empty_database: str, nowhere: Path) -> None:
    (nowhere / "shop.toml").write_text(f'database_url = "{empty_database}"\ntable = "sales"\n')
    assert invoke("migrate", "--config", "shop.toml").exit_code == 0
    assert invoke("status", "--config", "shop.toml").stdout.startswith("public.sales\n")


def test_roles_are_printed_for_the_table(database: str) -> None:
    result = invoke("sql", "--roles", "--table", "sales.outbox")
    assert 'TO "outbox_writer"' in result.stdout
    assert 'GRANT USAGE ON SCHEMA "sales"' in result.stdout
    assert json.loads(invoke("sql", "--json").stdout)["table"] == "outbox"


def test_status_shows_what_needs_attention(database: str) -> None:
    add(database, "evt-1", "evt-2", "evt-3")
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "UPDATE outbox SET status = 'failed', parked_at = now(), last_error = 'too large' WHERE id = 1"
        )
        conn.execute(
            "INSERT INTO outbox_workers (id, status, metadata) VALUES"
            """ ('w1', 'alive', '{"publisher": "kafka", "destination": "orders"}'), ('w0', 'dead', '{}')"""
        )
        conn.execute(
            "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by)"
            " VALUES ('key', 'order:7', 'operator', 'audit', 'ann')"
        )
    lines = invoke("status", "--database-url", database).stdout.splitlines()
    assert lines[0] == "public.outbox"
    assert re.fullmatch(r"  pending +2 +oldest \d+\.\d s", lines[1])
    text = "\n".join(lines)
    assert re.search(r"failed +1 +each holds its key: relay events --status failed", text)
    assert re.search(r"w1 +alive +seen .* ago +0 in flight +kafka → orders", text)
    assert "w0" not in text
    assert re.search(r"blocked keys\n  order:1 +evt-1 .* too large", text)
    assert re.search(r"pauses\n  key +order:7 +ann +- +audit", text)


def test_status_as_json_has_the_settings_without_secrets(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_OPERATOR_TOKEN", "hunter2hunter2")
    text = invoke("status", "--json", "--database-url", database).stdout
    assert json.loads(text)["settings"]["lease_seconds"] == 90
    assert "hunter2" not in text


def test_events_are_filtered_and_paged(database: str) -> None:
    add(database, "a-1", "a-2", "a-3", key="order:1")
    add(database, "b-1", key="order:2")

    def listed(*arguments: str) -> list[str]:
        result = invoke("events", "--json", "--database-url", database, *arguments)
        assert result.exit_code == 0, result.stderr
        found: list[dict[str, Any]] = json.loads(result.stdout)
        return [event["event_id"] for event in found]

    assert listed() == ["b-1", "a-3", "a-2", "a-1"]
    assert listed("--key", "order:2") == ["b-1"]
    assert listed("--status", "completed") == []
    assert listed("--type", "OrderPaid", "--since", "1h", "--limit", "1") == ["b-1"]
    assert listed("--since", "2099-01-01T00:00") == []
    first = invoke("events", "--limit", "3", "--database-url", database)
    (position,) = re.findall(r"--before (\d+)", first.stderr)
    assert listed("--before", position) == ["a-1"]


def test_an_empty_list_says_so(database: str) -> None:
    result = invoke("events", "--database-url", database)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no event matches\n")


def test_a_time_that_is_none_is_wrong_usage(database: str) -> None:
    assert failure(invoke("events", "--since", "yesterday", "--database-url", database), 2) == (
        "--since yesterday is no time: write '2h', '7 days' or 2026-07-01T12:00"
    )


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"])
def test_a_time_beyond_the_ends_of_time_is_wrong_usage(moment: str, database: str) -> None:
    assert "is no time" in failure(invoke("events", "--since", moment, "--database-url", database), 2)


@pytest.mark.parametrize(
    "arguments, name",
    [
        (["events", "--key", "k\udcff"], "key"),
        (["events", "--type", "k\udcff"], "event type"),
        (["events", "--error", "k\udcff"], "error"),
        (["show", "k\udcff"], "event id"),
        (["retry", "evt-1", "k\udcff"], "ids"),
        (["skip", "k\udcff", "--reason", "x"], "ids"),
    ],
)
def test_an_argument_that_is_not_utf8_is_wrong_usage(
    arguments: list[str], name: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_DATABASE_URL", database)
    assert failure(invoke(*arguments), 2) == f"what is given as {name} is not UTF-8: write it as UTF-8 text"


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["status", "--table", "k\udcff"], "--table is not UTF-8: write it as UTF-8 text"),
        (
            ["status", "--database-url", "host=k\udcff"],
            "--database-url is not UTF-8: write it as UTF-8 text",
        ),
    ],
)
def test_a_setting_that_is_not_utf8_is_wrong_usage(
    arguments: list[str], sentence: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_DATABASE_URL", database)
    assert failure(invoke(*arguments), 2) == sentence


def test_bytes_that_are_no_text_reach_a_command_as_such(database: str) -> None:
    assert "is not UTF-8" in failure(relay("show", os.fsdecode(b"evt-\xff"), "--database-url", database), 2)


def test_a_retention_that_no_clock_could_take_is_wrong_settings(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("1000000000 days", "9999999 days"):
        monkeypatch.setenv("RELAY_RETENTION", text)
        assert failure(invoke("prune", "--dry-run", "--database-url", database), 2) == (
            "RELAY_RETENTION: a duration is 100 years (36525 days) at most"
        )
    monkeypatch.setenv("RELAY_RETENTION", "36525 days")
    assert invoke("prune", "--dry-run", "--database-url", database).exit_code == 0


def test_a_user_without_a_name_gets_the_sentence_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.delenv("PGUSER", raising=False)
    said = failure(invoke("status", "--database-url", "postgresql://127.0.0.1:1/shop"))
    assert said.startswith("cannot connect to the database: ")


def test_an_event_cannot_write_to_the_terminal_that_shows_it(database: str) -> None:
    add(database, "evt-1", key="order:\x1b[2J\n1")
    for command in (["events"], ["show", "evt-1"]):
        text = invoke(*command, "--database-url", database).stdout
        assert "\x1b" not in text
        assert "order:\\x1b[2J\\n1" in text


@pytest.mark.parametrize(
    "seconds, text",
    [(None, "-"), (0.04, "0.0 s"), (90, "90.0 s"), (150, "2 min"), (7300, "2 h"), (200_000, "2 d")],
)
def test_spans_of_time_are_short(seconds: float | None, text: str) -> None:
    assert ago(seconds) == text


def test_what_is_printable_stays_as_it_is() -> None:
    assert printable("日本語 → é") == "日本語 → é"
    assert printable(None) == "-"
