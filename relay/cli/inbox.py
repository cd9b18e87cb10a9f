"""`relay inbox`: what consumers have parked, and what they remember."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from relay.cli import inbox_prune
from relay.cli.action import Actor, DryRun, Stopping, Yes, ask, number, progress, say, who
from relay.cli.app import App, Config, DatabaseUrl, Json, TableOption, note, opened, settings_from
from relay.cli.filters import Key
from relay.cli.look import parse_since
from relay.errors import RelayError, SettingsError

if TYPE_CHECKING:
    from relay.store.parked import Action, Which

_INBOX = """Consumers' dead letters and memory.

A consumer of relay.consumers parks a message whose handler failed too often, that cannot be read, or that is
a late copy of a worker that had lost its lease. These commands list, retry and discard what is parked.
"""


def command(app: App) -> None:
    inbox = App(
        name="inbox", help=_INBOX, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    inbox.command(name="list", help=_LIST)(list_parked)
    inbox.command(help=_SHOW)(show)
    inbox.command(help=_RETRY)(retry)
    inbox.command(help=_DISCARD)(discard)
    inbox_prune.command(inbox)
    app.add_typer(inbox)


Ids = Annotated[list[int] | None, typer.Argument(help="numbers of dead letters", metavar="[ID]…")]
Consumer = Annotated[str | None, typer.Option(help="only of this consumer", show_default=False)]
ParkedAs = Annotated[
    Literal["failed", "stale", "malformed"] | None,
    typer.Option("--as", help="only what is parked as this", show_default=False),
]
Error = Annotated[str | None, typer.Option(help="only where the error contains this", show_default=False)]
Since = Annotated[
    str | None,
    typer.Option(help="only parked since: '2h', '7 days', or 2026-07-01T12:00", show_default=False),
]
Everything = Annotated[bool, typer.Option("--all", help="all of them")]

_LIST = """List what consumers have parked, newest first.

\b
failed     its handler failed max_attempts times; later events of its key have gone on
malformed  it has no event_id, or is not JSON
stale      a late copy: its key has seen a higher lease generation. 'applied' says that the event
           itself has come and was applied

\b
Examples:
  relay inbox list --consumer billing
  relay inbox list --as failed --since 24h --json
"""


def list_parked(
    consumer: Consumer = None,
    parked_as: ParkedAs = None,
    key: Key = None,
    error: Error = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="how many at most")] = 50,
    before: Annotated[
        int | None, typer.Option(help="only before this number: the next page", show_default=False)
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.cli.output import print_columns, print_json
    from relay.store.parked import Which, parked

    which = Which((), consumer, parked_as, key, error, parse_since(since))
    settings = settings_from(database_url, table, config)
    with opened(settings, "inbox") as (conn, found):
        rows = parked(conn, found, which, rows=limit, before=before)
    if as_json:
        print_json(rows)
    elif rows:
        head = ("id", "consumer", "parked as", "event_id", "type", "key", "tries", "parked", "state", "error")
        print_columns([head, *map(_line, rows)])
    else:
        note("nothing is parked" if which.is_empty else "nothing that is parked matches")
    if len(rows) == limit:
        note(f"there may be more: --before {rows[-1]['id']}")


def _line(row: dict[str, Any]) -> tuple[object, ...]:
    state = "retry asked" if row["retry_asked_at"] else "applied" if row["applied"] else ""
    named = (row["event_id"], row["event_type"], row["key"], row["attempts"], row["parked_at"])
    return (row["id"], row["consumer"], row["reason"], *named, state, row["error"])


_SHOW = """Show one dead letter in full, with its headers and payload.

\b
Examples:
  relay inbox show 12
  relay inbox show 12 --json | jq -r .payload
"""


def show(
    letter: Annotated[int, typer.Argument(help="its number, as in 'relay inbox list'", metavar="ID")],
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.cli.output import print_columns, print_json
    from relay.store import parked

    settings = settings_from(database_url, table, config)
    with opened(settings, "inbox") as (conn, found):
        row = parked.letter(conn, found, letter)
    if row is None:
        raise RelayError(f"there is no dead letter {letter}: look with 'relay inbox list'")
    if row["payload"] is not None:
        row["payload"] = bytes(row["payload"]).decode(errors="backslashreplace")
    if as_json:
        print_json(row)
    else:
        print_columns(row.items())


_RETRY = """Ask consumers to apply parked messages again.

The consumer itself does it, within seconds if it runs, and takes the message out of the list when it has
succeeded. One that fails again stays, with its new error. A retried event is applied behind those of its key
that went on meanwhile; those of one key that are retried keep their order. A late copy whose event was
applied meanwhile is only removed.

It asks before it concerns more than 100 messages. Each one's audit row says who asked and when.

\b
Examples:
  relay inbox retry 12 13
  relay inbox retry --consumer billing --error timeout --dry-run
  relay inbox retry --consumer billing --as failed --reason 'the rates are there now'
"""


def retry(
    ids: Ids = None,
    consumer: Consumer = None,
    parked_as: ParkedAs = None,
    key: Key = None,
    error: Error = None,
    since: Since = None,
    everything: Everything = False,
    reason: Annotated[str | None, typer.Option(help="why, for the audit", show_default=False)] = None,
    actor: Actor = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    which = _which(ids, consumer, parked_as, key, error, since, everything)
    place = (database_url, table, config)
    _act("retry", which, place, actor=actor, why=reason, yes=yes, dry_run=dry_run, as_json=as_json)


_DISCARD = """Give parked messages up: they are deleted and never applied.

Their events stay marked as seen until their marks are past inbox_retention: a duplicate that comes later than
that would be applied. What is discarded is in the audit, without its payload.

\b
Examples:
  relay inbox discard 12 --reason 'a test order'
  relay inbox discard --consumer billing --as malformed --reason 'not ours' --dry-run
"""


def discard(
    reason: Annotated[str, typer.Option(help="why, for the audit")],
    ids: Ids = None,
    consumer: Consumer = None,
    parked_as: ParkedAs = None,
    key: Key = None,
    error: Error = None,
    since: Since = None,
    everything: Everything = False,
    actor: Actor = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    if not reason.strip():
        raise SettingsError("--reason is empty: say why, for those who will ask")
    which = _which(ids, consumer, parked_as, key, error, since, everything)
    place = (database_url, table, config)
    _act("discard", which, place, actor=actor, why=reason, yes=yes, dry_run=dry_run, as_json=as_json)


def _which(
    ids: list[int] | None,
    consumer: str | None,
    parked_as: Any,
    key: str | None,
    error: str | None,
    since: str | None,
    everything: bool,
) -> "Which":
    from relay.store.parked import Which

    which = Which(tuple(ids or ()), consumer, parked_as, key, error, parse_since(since))
    if which.is_empty != everything:
        wrong = "--all and filters exclude each other" if everything else "which messages?"
        raise SettingsError(f"{wrong} Name numbers or filters, or --all alone")
    return which


def _act(
    action: "Action",
    which: "Which",
    place: tuple[str | None, str | None, str | None],
    *,
    actor: str | None,
    why: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Count, ask, act and tell."""
    from relay.cli.output import print_json
    from relay.store import parked

    settings = settings_from(*place)
    with opened(settings, f"inbox {action}", "operator") as (conn, found):
        matched = parked.count(conn, found, action, which)
        if which.ids and not matched:
            raise RelayError("none of these is parked and waits for a decision: see 'relay inbox list'")
        if matched < len(set(which.ids)):
            note(f"{len(set(which.ids)) - matched} of these are not parked, or wait for their retry")
        done, stopped = 0, False
        if not dry_run and matched:
            ask(f"to {action}", matched, exact=True, yes=yes)
            with Stopping() as stopping, progress("done", matched) as tell:
                for done in parked.act(conn, found, action, which, actor=who(actor), why=why):
                    tell(done)
                    if stopping.asked:
                        stopped = done < matched
                        break
    if as_json:
        print_json(
            {"action": action, "dry_run": dry_run, "matched": matched, "changed": done, "stopped": stopped}
        )
    else:
        many = number(matched if dry_run else done, "message")
        verb = {"retry": "handed to its consumer to retry", "discard": "discarded"}[action]
        say(f"{many} {'would be ' if dry_run else ''}{verb}")
    if stopped:
        note("stopped: the others are as they were; run it again to go on")
        raise typer.Exit(130)
