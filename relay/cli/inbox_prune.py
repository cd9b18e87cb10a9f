"""`relay inbox prune`: forget what consumers have applied long ago."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

from datetime import timedelta
from typing import Annotated

import typer

from relay.cli.action import DryRun, Stopping, Yes, ask, number, progress, safe, say
from relay.cli.app import App, Config, DatabaseUrl, Json, TableOption, note, opened, settings_from
from relay.errors import SettingsError


def command(inbox: App) -> None:
    inbox.command(help=_PRUNE)(prune)


_PRUNE = """Forget what consumers have applied long ago, a few pages of the table at a time.

Running consumers and relays do that by themselves, a little at a time. A duplicate that arrives after its
mark is gone is applied again: keep marks longer than your broker keeps messages. Dead letters are never
deleted here, nor are the marks of events that are parked.

\b
Examples:
  relay inbox prune --dry-run
  relay inbox prune --older-than 30d --consumer billing
"""


def prune(
    older_than: Annotated[
        str | None,
        typer.Option(help="seen so long ago [default: the setting inbox_retention]", show_default=False),
    ] = None,
    consumer: Annotated[str | None, typer.Option(help="only of this consumer", show_default=False)] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.cli.output import ago, print_json
    from relay.names import TableName
    from relay.store.inbox import old_marks, prune_inbox

    settings = settings_from(database_url, table, config)
    age = settings.inbox_retention if older_than is None else _age(older_than)
    if age is None:
        raise SettingsError('inbox_retention is "never": say --older-than')
    with opened(settings, "inbox prune", "operator") as (conn, found):
        inbox = TableName(found.name.schema, "inbox_dedupe")
        matched = old_marks(conn, inbox, age, consumer)
        gone, stopped = 0, False
        if not dry_run:
            ask("to forget", matched.value, exact=matched.exact, yes=yes or older_than is None)
            with Stopping() as stopping, progress("forgotten", matched.value) as tell:
                for gone in prune_inbox(conn, inbox, age, consumer):
                    tell(gone)
                    if stopped := stopping.asked:
                        break
    if as_json:
        counted = {"value": matched.value, "exact": matched.exact}
        print_json(
            {"action": "prune", "dry_run": dry_run, "matched": counted, "deleted": gone, "stopped": stopped}
        )
    else:
        many = number(matched.value, "mark", exact=matched.exact) if dry_run else number(gone, "row")
        would = "would be " if dry_run else ""
        say(f"older than {ago(age.total_seconds())}: {many} {would}forgotten")
    if stopped:
        note("stopped: the others are as they were; run it again to go on")
        raise typer.Exit(130)


def _age(text: str) -> timedelta:
    from relay.durations import seconds

    try:
        return timedelta(seconds=seconds(text))
    except (ValueError, OverflowError):
        raise SettingsError(safe(f"--older-than {text} is no duration: write '36h' or '7 days'")) from None
