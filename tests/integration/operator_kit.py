"""An operator at an outbox, for tests of the commands that act on events."""

import json
from collections.abc import Iterable
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from typer.testing import Result

from relay.settlement import Act
from relay.store.redrive import Progress
from tests.integration.cli_kit import invoke
from tests.integration.store_kit import Actor, Stage


@pytest.fixture
def url(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database that the commands of this test work with."""
    monkeypatch.setenv("RELAY_DATABASE_URL", database)
    return database


def done(result: Result) -> str:
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result.stdout


def answer(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done(invoke(*arguments, "--json")))
    return found


def rows(url: str, query: str) -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as conn:
        return conn.execute(query).fetchall()


def audit(url: str) -> list[tuple[str, str, str | None]]:
    found = rows(url, "SELECT actor, action, event_id FROM outbox_audit ORDER BY id")
    return [(row["actor"], row["action"], row["event_id"]) for row in found]


def last(steps: Iterable[Progress]) -> Progress:
    """How far an action has come at its end."""
    progress = Progress()
    for progress in steps:  # noqa: B007
        pass
    return progress


def park(stage: Stage, key: str, *acts: Act, worker: Actor | None = None, **columns: Any) -> list[int]:
    """Events of a key, each claimed once and settled so; their positions."""
    positions = stage.insert(key, len(acts), **columns)
    worker = worker or stage.actor("parker")
    claim = worker.must_claim()
    assert [event.position for event in claim.events] == positions
    worker.settle(claim, list(acts))
    return positions
