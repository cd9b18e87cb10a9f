"""docs/state-machine.md says what the model does and what PostgreSQL accepts."""

import importlib
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from psycopg import sql

from tests.model.explore import explore
from tests.model.invariants import INVARIANTS
from tests.model.state import State, Status, Step, World
from tests.model.test_model import MUTANTS

PAGE = (Path(__file__).parents[2] / "docs" / "state-machine.md").read_text()


def table(first_column: str) -> list[dict[str, str]]:
    """The rows of the page's table that begins with this column."""
    lines = PAGE.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    columns = _cells(lines[start])
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(columns, _cells(line), strict=True)))
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


CAUSES = {
    "claims": "claim",
    "is reaped": "reap",
    "is reaped early": "reap",
    "is redriven": "redrive",
    "is skipped": "skip",
}


def moves(world: World) -> Iterator[tuple[str, str, str]]:
    """From which state to which, and by what, in a world of one event."""
    found = set()

    def note(before: State, step: Step, after: State) -> None:
        (old,), (new,) = before.rows, after.rows
        if old.status != new.status:
            cause = step.acts[0] if step.verb == "commits" else CAUSES[step.verb]
            found.add((old.status, new.status, cause))

    explore(world, observe=note)
    yield from found


def test_the_transitions_are_those_of_the_model() -> None:
    page = [(row["from"], row["to"], row["by"]) for row in table("from")]
    assert len(page) == len(set(page))
    assert set(page) == {
        *moves(World("a", operators=True)),
        *moves(World("a", operators=True, on_exhausted="block")),
    }


def test_every_transition_is_in_the_picture() -> None:
    picture = PAGE.partition("## Transitions")[0]
    words = {row[column] for row in table("from") for column in ("from", "to", "by")}
    assert {word for word in words if not re.search(rf"\b{word}\b", picture)} == set()


def test_the_statements_named_exist() -> None:
    named = set(re.findall(r"`([a-z_]+)\.([A-Z_]+)`", PAGE))
    assert len(named) > 5
    for module, statement in named:
        assert hasattr(importlib.import_module(f"relay.store.{module}"), statement), (module, statement)


def test_the_guards_and_what_breaks_without_them_are_those_of_the_model() -> None:
    page = {
        (row["guard"], broken) for row in table("guard") for broken in row["without it breaks"].split(", ")
    }
    assert page == {(mutant.guard, mutant.breaks) for mutant in MUTANTS}


def test_the_invariants_are_those_of_the_model() -> None:
    assert {row["invariant"] for row in table("invariant")} == INVARIANTS


SET: dict[str, Any] = {
    "attempts": 1,
    "claimed_by": "worker-1",
    "claimed_at": "2026-01-01Z",
    "lease_generation": 1,
    "lease_expires_at": "2026-01-01Z",
    "completed_at": "2026-01-01Z",
    "parked_at": "2026-01-01Z",
}
ALLOWED = {"any": {True, False}, "null": {False}, "set": {True}, "at least 1": {True}}


@pytest.mark.usefixtures("any_postgres")
def test_the_database_accepts_in_each_state_the_columns_of_the_page_and_no_others(database: str) -> None:
    page = {row["column"].strip("`"): row for row in table("column")}
    assert page.keys() == SET.keys()
    wrong = []
    with psycopg.connect(database, autocommit=True) as conn, conn.transaction():
        for status, present in product(get_args(Status), product([False, True], repeat=len(SET))):
            expected = all(
                there in ALLOWED[page[column][status]] for column, there in zip(SET, present, strict=True)
            )
            if accepted(conn, status, present) != expected:
                wrong.append((status, present, "refused" if expected else "accepted"))
    assert wrong == []


def accepted(conn: psycopg.Connection[Any], status: str, present: tuple[bool, ...]) -> bool:
    columns = {"partition_key": "k", "event_type": "E", "payload": "{}", "status": status}
    columns |= {column: SET[column] for column, there in zip(SET, present, strict=True) if there}
    statement = sql.SQL("INSERT INTO outbox ({}) VALUES ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(", ").join(map(sql.Literal, columns.values())),
    )
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(statement)
    except psycopg.errors.CheckViolation as error:
        assert error.diag.constraint_name == "outbox_state"  # noqa: PT017
        return False
    return True
