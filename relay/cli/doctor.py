"""`relay doctor`: what is wrong or unsafe around the outbox, and the command that fixes it."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay.cli.action import Actor, DryRun, who
from relay.cli.app import App, Config, DatabaseUrl, Json, TableOption, note, opened, settings_from
from relay.errors import SettingsError

if TYPE_CHECKING:
    from relay.doctor import Finding
    from relay.settings import Settings


def command(app: App) -> None:
    app.command(help=_DOCTOR)(doctor)


_DOCTOR = """Look for what is wrong or unsafe, and say how to fix it.

Looks at the settings, the tables and their indexes, autovacuum and what holds it up, the rights of the
relay and of writers, clocks, poolers, and at the broker: topics and their replicas, exchanges, hosts.
Changes nothing and sends nothing; takes seconds. Ends with 1 where something is an error.

Run it with the settings of the relay, as its user: what it may not see, it says.

\b
Examples:
  relay doctor
  relay doctor --json | jq '.findings[] | select(.severity == "error")'
  relay doctor --after-restore --dry-run
  relay doctor --after-restore     once, before relays start on a database that was loaded from a
                                   dump or a snapshot: generations go on where none was before
"""


def doctor(
    publisher: Annotated[
        str | None, typer.Option(help="look at this publisher's broker", show_default=False)
    ] = None,
    destination: Annotated[
        str | None, typer.Option(help="topic, exchange or URL to look at", show_default=False)
    ] = None,
    after_restore: Annotated[
        bool, typer.Option("--after-restore", help="move the generations ahead, and end")
    ] = False,
    dry_run: DryRun = False,
    actor: Actor = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    settings = settings_from(database_url, table, config, publisher=publisher, destination=destination)
    if after_restore:
        _after_restore(settings, actor, dry_run=dry_run, as_json=as_json)
        return
    if dry_run:
        raise SettingsError("--dry-run belongs to --after-restore: looking changes nothing anyway")
    _examine(settings, as_json=as_json)


def _examine(settings: "Settings", *, as_json: bool) -> None:
    import logging

    from relay.cli.output import print_json
    from relay.doctor import SEVERITIES, examine

    # What clients log on their way to a finding, the finding says in a sentence.
    logging.getLogger().addHandler(logging.NullHandler())
    found = examine(settings)
    counts = {severity: sum(finding.severity == severity for finding in found) for severity in SEVERITIES}
    if as_json:
        print_json(
            {"table": settings.table, "counts": counts, "findings": [_as_json(each) for each in found]}
        )
    else:
        _print(found)
        note(f"{_count(counts['error'], 'error')}, {_count(counts['warning'], 'warning')}")
    if counts["error"]:
        raise typer.Exit(1)


def _as_json(finding: "Finding") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(finding) | {"fix": finding.fix.splitlines()}


def _count(number: int, thing: str) -> str:
    return f"{number or 'no'} {thing}{'' if number == 1 else 's'}"


_COLOURS = {"error": "31;1", "warning": "33", "ok": "32"}


def _print(found: "list[Finding]") -> None:
    """The worst first; under each what it means and the commands that end it."""
    from relay.cli.output import printable
    from relay.doctor import SEVERITIES

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = max((len(finding.family) for finding in found), default=0)
    for finding in sorted(found, key=lambda each: (each.fine, SEVERITIES.index(each.severity))):
        word = "ok" if finding.fine else finding.severity
        shown = f"\x1b[{_COLOURS[word]}m{word:7}\x1b[0m" if colour and word in _COLOURS else f"{word:7}"
        sys.stdout.write(f"{shown}  {finding.family:{width}}  {printable(finding.what)}\n")
        indent = " " * (9 + width + 2)
        if finding.why:
            sys.stdout.write(f"{indent}{printable(finding.why)}\n")
        for line in finding.fix.splitlines():
            sys.stdout.write(f"{indent}fix: {printable(line)}\n")


def _after_restore(settings: "Settings", actor: str | None, *, dry_run: bool, as_json: bool) -> None:
    from relay.cli.output import print_json
    from relay.store.restored import move_generations

    with opened(settings, "doctor", "operator") as (conn, found):
        moved = move_generations(conn, found, actor=who(actor), dry_run=dry_run)
    if as_json:
        said = {"table": str(found.name), "action": "after_restore", "dry_run": dry_run}
        print_json(said | {"before": moved.before, "after": moved.after})
        return
    verb = "would go on" if dry_run else "go on"
    sys.stdout.write(f"the generations of {found.name} {verb} at {moved.after}, not at {moved.before}\n")
