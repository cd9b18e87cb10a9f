"""`relay retry`, `relay skip`: send parked events out again, or give events up, by id or by filters."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from relay.cli.action import Actor, DryRun, Stopping, Yes, ask, number, progress, safe, say, who
from relay.cli.app import App, Config, DatabaseUrl, Json, TableOption, note, opened, settings_from
from relay.cli.filters import Error, Ids, Key, Since, Type, require_choice
from relay.cli.look import parse_since
from relay.errors import RelayError, SettingsError

if TYPE_CHECKING:
    from psycopg import Connection

    from relay.store.connection import Table
    from relay.store.redrive import Action, Filter, Preview, Progress

NAMED_AT_MOST = 20


def command(app: App) -> None:
    app.command(help=_RETRY)(retry)
    app.command(help=_SKIP)(skip)


Everything = Annotated[bool, typer.Option("--all", help="all that the command is for")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="how many at most, those parked longest first", show_default=False)
]

_RETRY = """Publish parked events again: dead letters, and failed events that hold their key.

They start anew, with no attempts counted, and are due at once; their last error stays until they are
published. A failed event heads its key again, so order is as if it had never failed. A dead letter was
overtaken by the later events of its key: it goes out behind those that were published meanwhile, and its
message carries the header redriven_at.

An event whose key is in flight at that moment is left out and counted: run the command again, or hold the
key with `relay pause --key` first. An event that waits for its next attempt is retried now if it is named
by its id, or with --status pending.

It asks before it changes more than 100 events. Ctrl-C stops between two batches of 500. Each event's audit
row says who did it and when, in the same transaction.

\b
Examples:
  relay retry evt-order-9182-paid-v1
  relay retry --status dead_letter --error timeout --since 24h --dry-run
  relay retry --key order:9182 --reason 'card processor is back'
  relay retry --all --yes
"""


def retry(
    ids: Ids = None,
    status: Annotated[
        Literal["dead_letter", "failed", "pending"] | None,
        typer.Option(help="only of this status [default: dead_letter and failed]", show_default=False),
    ] = None,
    key: Key = None,
    event_type: Type = None,
    error: Error = None,
    since: Since = None,
    everything: Everything = False,
    limit: Limit = None,
    reason: Annotated[str | None, typer.Option(help="why, for the audit", show_default=False)] = None,
    actor: Actor = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.store import redrive

    which = _filter(ids, status, key, event_type, error, since, limit, everything)
    settings = settings_from(database_url, table, config)
    with opened(settings, "retry", "operator") as (conn, found):
        _run(
            conn,
            found,
            "retry",
            which,
            lambda: redrive.retry(conn, found, which, actor=who(actor), reason=reason),
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
        )


_SKIP = """Give events up: pending ones, and failed ones that hold their key.

They become dead letters and are not published; the later events of their key go on. Who did it and why is
written to the event's last_error and to its audit row, in the same transaction. `relay retry` brings a
skipped event back, behind what was published meanwhile.

An event that is in flight is left out and counted: it may be published already.
It asks before it changes more than 100 events. Ctrl-C stops between two batches of 500.

\b
Examples:
  relay skip evt-order-9182-paid-v1 --reason 'the order never existed'
  relay skip --status failed --key order:9182 --reason 'fixed by hand' --dry-run
"""


def skip(
    reason: Annotated[str, typer.Option(help="why: for the event's last_error and the audit")],
    ids: Ids = None,
    status: Annotated[
        Literal["failed", "pending"] | None,
        typer.Option(help="only of this status [default: failed and pending]", show_default=False),
    ] = None,
    key: Key = None,
    event_type: Type = None,
    error: Error = None,
    since: Since = None,
    everything: Everything = False,
    limit: Limit = None,
    actor: Actor = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.store import redrive

    if not reason.strip():
        raise SettingsError("--reason is empty: say why, for those who will ask")
    which = _filter(ids, status, key, event_type, error, since, limit, everything)
    settings = settings_from(database_url, table, config)
    with opened(settings, "skip", "operator") as (conn, found):
        _run(
            conn,
            found,
            "skip",
            which,
            lambda: redrive.skip(conn, found, which, actor=who(actor), reason=reason),
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
        )


def _filter(
    ids: list[str] | None,
    status: Any,
    key: str | None,
    event_type: str | None,
    error: str | None,
    since: str | None,
    limit: int | None,
    everything: bool,
) -> "Filter":
    from relay.store.redrive import Filter

    which = Filter(tuple(ids or ()), status, key, event_type, error, parse_since(since), limit)
    require_choice(filtered=not which.is_empty, everything=everything)
    return which


_WORDS = {"retry": ("redrive", "redriven"), "skip": ("skip", "skipped")}


def _run(
    conn: "Connection[Any]",
    table: "Table",
    action: "Action",
    which: "Filter",
    start: "Callable[[], Iterator[Progress]]",
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Count, ask, act and tell; exit 1 where something that was named could not be done."""
    from relay.store.redrive import Progress, preview

    before = preview(conn, table, action, which)
    done, stopped = Progress(), False
    verb, participle = _WORDS[action]
    # Events in flight are among those that a redrive looks at again, not among those of a skip.
    expected = before.events + (before.in_flight if action == "retry" else 0)
    if not dry_run and expected > 0:
        ask(f"to {verb}", before.events, exact=before.exact, yes=yes)
        with Stopping() as stopping, progress(participle, before.events if before.exact else None) as tell:
            for done in start():
                tell(done.seen)
                if stopping.asked:
                    stopped = done.seen < expected or not before.exact
                    break
    changed = before.events if dry_run else done.changed
    refused = list(_refusals(action, before.others))
    in_flight = before.in_flight if dry_run or action == "skip" else 0
    if which.ids and action == "skip":  # told one by one
        in_flight = 0
    in_flight += done.in_flight
    left_out = _left_out(action, which, in_flight)
    if as_json:
        _print_json(action, dry_run, before, done, in_flight, stopped)
    if (refused or left_out) and not changed and not stopped:
        raise RelayError("\n".join(_some([*refused, *left_out])))
    if not as_json:
        _tell(participle, before, done, dry_run=dry_run, stopped=stopped)
    for sentence in _some([*refused, *left_out]):
        note(sentence)
    if done.gone:
        note(f"{number(done.gone)} changed meanwhile, by others")
    if stopped:
        note("stopped: the others are as they were; run it again to go on")
    if refused or stopped:
        raise typer.Exit(130 if stopped else 1)


def _tell(participle: str, before: "Preview", done: "Progress", *, dry_run: bool, stopped: bool) -> None:
    if dry_run:
        say(f"{number(before.events, exact=before.exact)} would be {participle}")
    elif before.events + before.in_flight == 0:
        note("no event matches")
    else:
        of = f" of {number(before.events, exact=before.exact)}" if stopped else ""
        say(f"{number(done.changed)} {'was' if done.changed == 1 else 'were'} {participle}{of}")


def _refusals(action: "Action", others: dict[str, str]) -> Iterator[str]:
    """A sentence for each event that was named and is not what the command is for."""
    for event_id, status in others.items():
        match action, status:
            case _, "unknown":
                yield f"there is no event {event_id} in the outbox: look with 'relay show {event_id}'"
            case _, "completed":
                yield f"event {event_id} is published: 'relay replay {event_id}' publishes it again"
            case _, "processing":
                yield f"event {event_id} is in flight: see what becomes of it with 'relay show {event_id}'"
            case "retry", "pending":
                yield f"event {event_id} is pending: it is due, or its writer has delayed it"
            case "skip", "dead_letter":
                yield f"event {event_id} is a dead letter already"
            case _:
                yield f"event {event_id} is {status}, but not what the filters say"


def _left_out(action: "Action", which: "Filter", events: int) -> list[str]:
    if not events:
        return []
    if len(which.ids) == 1:
        those, was = f"event {which.ids[0]}", "was"
    else:
        those, was = number(events), "was" if events == 1 else "were"
    why = "another event of its key is in flight" if action == "retry" else "in flight"
    return [f"{those} {was} left out, {why}: try again, or hold the key with 'relay pause --key' first"]


def _some(sentences: list[str]) -> list[str]:
    more = len(sentences) - NAMED_AT_MOST
    shown = [safe(sentence) for sentence in sentences[:NAMED_AT_MOST]]
    return [*shown, f"and {more:,} more"] if more > 0 else shown


def _print_json(
    action: str, dry_run: bool, before: "Preview", done: "Progress", in_flight: int, stopped: bool
) -> None:
    from relay.cli.output import print_json

    print_json(
        {
            "action": action,
            "dry_run": dry_run,
            "matched": before.events,
            "exact": before.exact,
            "changed": done.changed,
            "in_flight": in_flight,
            "changed_by_others": done.gone,
            "refused": before.others,
            "stopped": stopped,
        }
    )
