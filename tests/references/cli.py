"""docs/cli.md: every command, in the words of its `--help`."""

from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from relay.cli import make_app


def reference() -> str:
    return "\n".join(_sections(get_command(make_app()), None, "relay"))


def _sections(command: Any, parent: Any, name: str) -> list[str]:
    context = command.make_context(name, [], parent, resilient_parsing=True, terminal_width=100)
    sections = [f"### `{context.command_path}`\n\n```text\n{context.get_help().strip()}\n```\n"]
    if isinstance(command, TyperGroup):
        for child in command.list_commands(context):
            sections += _sections(command.get_command(context, child), context, child)
    return sections
