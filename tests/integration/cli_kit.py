"""The command `relay` in tests: run, and what it said when it failed."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

from relay.cli import make_app


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder and an environment without settings."""
    for name in list(os.environ):
        if name.startswith("RELAY_") and not name.startswith("RELAY_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("RELAY_HTTP", "off")
    return tmp_path


def relay(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real command, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "relay", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
        check=False,
    )


def invoke(*arguments: str) -> Result:
    """The command in this process: faster."""
    return CliRunner().invoke(make_app(), list(arguments))


def either(command: str, *arguments: str) -> Result | subprocess.CompletedProcess[str]:
    """`relay run` changes its process (logging, signals), so it gets one of its own."""
    return relay(command, *arguments) if command == "run" else invoke(command, *arguments)


def failure(result: Result | subprocess.CompletedProcess[str], code: int = 1) -> str:
    """What a failed command said: one sentence on stderr, nothing on stdout."""
    returned = result.exit_code if isinstance(result, Result) else result.returncode
    assert returned == code, (result.stdout, result.stderr)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")
    return result.stderr.removeprefix("error: ").rstrip("\n")


def add(url: str, *event_ids: str, key: str = "order:1") -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for event_id in event_ids:
            conn.execute(
                "INSERT INTO outbox (partition_key, event_type, payload, idempotency_key)"
                " VALUES (%s, %s, %s, %s)",
                [key, "OrderPaid", '{"amount": 10.00}', event_id],
            )
