"""`relay replay`: publish events again that were published, from this command's own process."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay.cli.action import Actor, DryRun, Stopping, Yes, ask, number, progress, safe, who
from relay.cli.app import App, Config, DatabaseUrl, Json, TableOption, note, opened, settings_from
from relay.cli.filters import Ids, Key, Type, require_choice
from relay.cli.look import parse_since
from relay.errors import InvalidEvent, RelayError, SettingsError

if TYPE_CHECKING:
    from psycopg import Connection

    from relay.reading import Count
    from relay.settings import Settings
    from relay.store.connection import Table
    from relay.store.replay import Record, Selection, State, Tally


def command(app: App) -> None:
    app.command(help=_REPLAY)(replay)


_REPLAY = """Publish events again that were published: for a consumer that lost them, or a new one.

Events come from the outbox (completion = "keep") and its archive ("archive"), key by key and in the order of
each key, with their event_ids and two headers more: replay_id and replayed_at. Consumers that dedupe by
event_id alone drop them; `Inbox.accept(conn, event_id, replay_id=…)` applies each once per replay. No row
changes, and relays go on as usual.

Ctrl-C finishes what is in hand. How far it came is kept in the audit: the same command with --replay-id goes
on from there, with the filters it began with. A few events may be published twice then.

\b
Examples:
  relay replay --since 2026-07-01T12:00 --until 2026-07-01T13:00 --dry-run
  relay replay --type OrderPaid --since '7 days' --rate 100
  relay replay --key order:9182
  relay replay --replay-id replay-20260701-120000-1f3a      go on where it stopped
"""


def replay(
    ids: Ids = None,
    key: Key = None,
    event_type: Type = None,
    since: Annotated[
        str | None,
        typer.Option(help="only published since: '2h', '7 days', or 2026-07-01T12:00", show_default=False),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="only published until then [default: now]", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="all that is left")] = False,
    rate: Annotated[
        float, typer.Option(min=0, help="events per second at most; 0: as fast as it goes")
    ] = 500,
    replay_id: Annotated[
        str | None, typer.Option(help="name it, or go on with it [default: a new one]", show_default=False)
    ] = None,
    publisher: Annotated[
        str | None, typer.Option(help="kafka, rabbitmq, webhook, stdout, or a plugin", show_default=False)
    ] = None,
    destination: Annotated[
        str | None, typer.Option(help="for events that do not name their own", show_default=False)
    ] = None,
    actor: Actor = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.store.replay import Selection

    wanted = Selection(tuple(ids or ()), key, event_type, parse_since(since), parse_since(until, "--until"))
    settings = settings_from(database_url, table, config, publisher=publisher, destination=destination)
    name = _checked(replay_id) if replay_id is not None else _new_id()
    with opened(settings, "replay", "operator") as (conn, found):
        known = _recall(conn, found, replay_id, wanted, everything=everything)
        selection = known.selection if known else wanted
        count = _count(conn, found, settings, selection)
        asked = {"action": "replay", "replay_id": name, "dry_run": dry_run, "selection": selection.details()}
        asked |= {"matched": count.value, "exact": count.exact}
        tally, failed = known.tally if known else None, False
        state: State | None = known.state if known else None
        if count.value == 0:
            note("no published event matches")
        elif state == "done":
            note(safe(f"replay {name} is done; name another --replay-id to publish these events once more"))
        elif dry_run:
            note(f"{number(count.value, exact=count.exact)} would be published again")
        else:
            ask("to publish again", count.value, exact=count.exact, yes=yes)
            tally, state = _run(conn, found, settings, name, known, selection, count, rate, who(actor))
            failed = tally.refused > 0
    if as_json:
        _print_json(asked, state, tally)
    if state == "stopped" and not dry_run:
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)


def _checked(replay_id: str) -> str:
    from relay import validation

    try:
        return validation.text("--replay-id", replay_id)
    except InvalidEvent as error:
        raise SettingsError(str(error)) from None


def _new_id() -> str:
    import secrets
    from datetime import UTC, datetime

    return f"replay-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _recall(
    conn: "Connection[Any]", table: "Table", replay_id: str | None, wanted: "Selection", *, everything: bool
) -> "Record | None":
    """The replay to go on with; None: a new one."""
    from relay.store import replay as store

    empty = wanted == store.Selection()
    known = store.recall(conn, table, replay_id) if replay_id is not None else None
    if known is None:
        require_choice(filtered=not empty, everything=everything)
        return None
    # The times it began with hold: '2h' meant others then.
    began = replace(known.selection, since=None, until=None)
    if not empty and replace(wanted, since=None, until=None) != began:
        raise SettingsError(
            safe(f"replay {replay_id} began with other filters: leave them out, or name another --replay-id")
        )
    return known


def _count(conn: "Connection[Any]", table: "Table", settings: "Settings", selection: "Selection") -> "Count":
    from relay.store import replay as store

    count = store.count(conn, table, selection)
    if settings.completion == "delete" and count.value == 0:
        raise RelayError(
            'nothing is left to replay: with completion = "delete" events are gone once they are published'
        )
    if count.value == 0 and selection.ids:
        raise RelayError("none of these events is published: look with 'relay show'")
    return count


def _run(
    conn: "Connection[Any]",
    table: "Table",
    settings: "Settings",
    name: str,
    known: "Record | None",
    selection: "Selection",
    count: "Count",
    rate: float,
    actor: str,
) -> "tuple[Tally, State]":
    from relay.plugins import make_publisher
    from relay.replay import Replay
    from relay.store import replay as store

    _take(conn, table, name, known)
    publisher = make_publisher(settings)
    try:
        if known is None:
            place = {"publisher": settings.publisher, "events": count.value, "exact": count.exact}
            selection = store.begin(conn, table, actor, name, selection, **place)
            known = store.Record(selection, "started", None, store.Tally())
        note(safe(f"replay {name}: {number(count.value, exact=count.exact)}"))
        with (
            Stopping() as stopping,
            progress("published again", count.value if count.exact else None) as tell,
        ):
            replaying = Replay(
                conn,
                table,
                publisher,
                name,
                known,
                actor=actor,
                destination=settings.destination,
                publish_seconds=settings.publish_seconds,
                rate=rate or None,
                stopping=lambda: stopping.asked,
            )
            try:
                for tally in replaying.run():
                    tell(tally.published + tally.refused + tally.missing)
            except RelayError as error:
                raise RelayError(f"{safe(str(error))}; to go on: {_go_on(name)}") from error
            except BaseException:  # interrupted again, or the database is gone
                note(safe(f"stopped; to go on: {_go_on(name)}"))
                raise
    finally:
        publisher.close()
    _tell(replaying.tally)
    if not replaying.done:
        note(safe(f"stopped; to go on: {_go_on(name)}"))
    return replaying.tally, "done" if replaying.done else "stopped"


def _take(conn: "Connection[Any]", table: "Table", name: str, known: "Record | None") -> None:
    """Make the replay this process's own, as it was known when the operator was asked."""
    from relay.store import replay as store

    if not store.alone(conn, table, name):
        raise RelayError(safe(f"replay {name} is running already, in another process"))
    # Another command may have begun it meanwhile, or gone on with it, and ended.
    if store.recall(conn, table, name) != known:
        raise RelayError(
            safe(
                f"replay {name} went on in another process meanwhile, and nothing was published here;"
                f" to see how far it came: {_go_on(name)} --dry-run --json"
            )
        )


def _go_on(name: str) -> str:
    import shlex

    return f"relay replay --replay-id {shlex.quote(name)}"


def _tell(tally: "Tally") -> None:
    note(f"{number(tally.published)} {'was' if tally.published == 1 else 'were'} published again")
    if tally.refused:
        note(f"{number(tally.refused)} refused by the broker: the audit has each, by its event_id")
    if tally.missing:
        note(f"{number(tally.missing)} deleted meanwhile, not published")


def _print_json(asked: dict[str, Any], state: str | None, tally: "Tally | None") -> None:
    from dataclasses import asdict

    from relay.cli.output import print_json
    from relay.store.replay import Tally

    print_json(asked | {"state": state} | asdict(tally or Tally()))
