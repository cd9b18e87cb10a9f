"""`relay prune`: delete published events that are past their retention."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from relay.cli.action import Actor, DryRun, Stopping, Yes, ask, number, progress, safe, say, who
from relay.cli.app import App, Config, DatabaseUrl, Json, TableOption, note, opened, settings_from
from relay.errors import SettingsError

if TYPE_CHECKING:
    from relay.settings import Settings
    from relay.store.retention import Kind


def command(app: App) -> None:
    app.command(help=_PRUNE)(prune)


_PRUNE = """Delete published events that are past their retention, in the outbox and in its archive.

Running relays do that by themselves, a little at a time. This does all of it now, in batches of 1,000.
Events that are pending, in flight or failed are never deleted, and dead letters only with --dead-letters.

It asks before it deletes more than 100 events that the settings alone would not delete. Ctrl-C stops between
two batches. Each batch is in the audit, and each dead letter by its event_id.

\b
Examples:
  relay prune --dry-run
  relay prune --older-than 30d
  relay prune --dead-letters --older-than '90 days' --yes
"""


def prune(
    older_than: Annotated[
        str | None,
        typer.Option(
            help="published so long ago: '36h', '7 days' [default: the setting retention]",
            show_default=False,
        ),
    ] = None,
    dead_letters: Annotated[
        bool,
        typer.Option(
            "--dead-letters",
            help="also dead letters, parked so long ago [default: dead_letter_retention]",
        ),
    ] = False,
    actor: Actor = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.store import retention

    settings = settings_from(database_url, table, config)
    ages = _ages(settings, older_than, dead_letters)
    with opened(settings, "prune", "operator") as (conn, found):
        cutoffs = {kind: retention.cutoff(conn, age) for kind, age in ages.items()}
        counts = retention.preview(conn, found, cutoffs)
        total, exact = sum(c.value for c in counts.values()), all(c.exact for c in counts.values())
        gone: dict[Kind, int] = dict.fromkeys(ages, 0)
        stopped = False
        if not dry_run and total > 0:
            ask("to delete", total, exact=exact, yes=yes or not (older_than or dead_letters))
            with Stopping() as stopping, progress("deleted", total if exact else None) as tell:
                for gone in retention.prune(conn, found, cutoffs, actor=who(actor)):
                    tell(sum(gone.values()))
                    if stopping.asked:
                        stopped = sum(gone.values()) < total or not exact
                        break
    if as_json:
        from relay.cli.output import print_json

        matched = {kind: {"value": count.value, "exact": count.exact} for kind, count in counts.items()}
        what = {"action": "prune", "dry_run": dry_run, "older_than": cutoffs, "matched": matched}
        print_json(what | {"deleted": gone, "stopped": stopped})
    elif total == 0:
        note("nothing is that old")
    else:
        from relay.cli.output import ago

        for kind, count in counts.items():
            many = number(count.value, exact=count.exact) if dry_run else number(gone[kind])
            age = ago(ages[kind].total_seconds())
            say(f"{_NAMES[kind]}, older than {age}: {many} {'would be ' if dry_run else ''}deleted")
    if stopped:
        note("stopped: the others are as they were; run it again to go on")
        raise typer.Exit(130)


_NAMES: "dict[Kind, str]" = {
    "completed": "completed",
    "archived": "archived",
    "dead_letter": "dead letters",
}


def _ages(settings: "Settings", older_than: str | None, dead_letters: bool) -> "dict[Kind, timedelta]":
    from relay.durations import seconds

    given = None
    if older_than is not None:
        try:
            given = timedelta(seconds=seconds(older_than))
        except (ValueError, OverflowError):
            raise SettingsError(
                safe(f"--older-than {older_than} is no duration: write '36h' or '7 days'")
            ) from None
    kept = given if given is not None else settings.retention
    parked = given if given is not None else settings.dead_letter_retention
    if dead_letters and parked is None:
        raise SettingsError('dead_letter_retention is "never": say --older-than with --dead-letters')
    if kept is None and not dead_letters:
        raise SettingsError('retention is "never": say --older-than')
    ages: dict[Kind, timedelta] = {"completed": kept, "archived": kept} if kept is not None else {}
    if dead_letters and parked is not None:
        ages["dead_letter"] = parked
    return ages
