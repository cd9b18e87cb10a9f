"""The commands that docs/operating.md shows are commands of this program."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from relay.cli import make_app

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
SHOWN = re.findall(r"^    (relay .+)$", PAGE, re.MULTILINE)


def test_the_page_shows_an_example_of_each_command_that_acts() -> None:
    assert {line.split()[1] for line in SHOWN} == {"retry", "skip", "replay", "pause", "resume", "prune"}


@pytest.mark.parametrize("line", SHOWN)
def test_an_example_is_understood(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    group = typer.main.get_command(make_app())
    command = group.commands[name]  # type: ignore[attr-defined]
    command.make_context(name, arguments)
