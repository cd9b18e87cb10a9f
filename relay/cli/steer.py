"""`relay pause`, `relay resume`: hold events back and let them go, while the relays run."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay.cli.action import Actor, DryRun, number, safe, say, who
from relay.cli.app import App, Config, DatabaseUrl, Json, TableOption, note, opened, settings_from
from relay.errors import InvalidEvent, RelayError, SettingsError
from relay.pause import ALL, PauseScope, Subject

if TYPE_CHECKING:
    from relay.store.steer import Held, Origin, Pause

LONGEST_PAUSE = 100 * 366 * 86400.0


def command(app: App) -> None:
    app.command(help=_PAUSE)(pause)
    app.command(help=_RESUME)(resume)


All = Annotated[bool, typer.Option("--all", help="everything")]
Destination = Annotated[
    str | None,
    typer.Option(help="one destination: a topic, exchange or URL, as events name it", show_default=False),
]
Type = Annotated[str | None, typer.Option("--type", help="one event type", show_default=False)]
Key = Annotated[str | None, typer.Option(help="one key", show_default=False)]

_PAUSE = """Hold events back: everything, or one destination, type or key.

Running relays notice with their next claim, within a second; what they have in flight still goes out. A
paused event holds the later ones of its key. Nothing is lost, no attempt is counted, and writers notice
nothing. Pausing again replaces the reason (if you give one) and the end.

\b
Examples:
  relay pause --destination orders --reason 'broker upgrade' --for 2h
  relay pause --key order:9182 --dry-run     how many events it would hold
  relay pause --all
  relay status                               lists what is paused
"""


def pause(
    everything: All = False,
    destination: Destination = None,
    event_type: Type = None,
    key: Key = None,
    reason: Annotated[str | None, typer.Option(help="why, for others to read", show_default=False)] = None,
    lasting: Annotated[
        str | None,
        typer.Option("--for", help="end by itself after '90 s', '2h', '7 days'", show_default=False),
    ] = None,
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.store import steer

    subject = _subject(everything, destination=destination, event_type=event_type, key=key)
    seconds = _duration(lasting)
    settings = settings_from(database_url, table, config)
    with opened(settings, "pause", "operator") as (conn, found):
        before = [p for p in steer.find(conn, found, "operator", subject) if p.value == subject.value]
        held = steer.held(conn, found, subject, settings.destination)
        made = None
        if not dry_run:
            made = steer.pause(conn, found, subject, actor=who(actor), reason=reason, seconds=seconds)
    already = next((p for p in before if not p.ended), None)
    if as_json:
        _print_json("pause", dry_run, subject, held, made or already, already_paused=already is not None)
        return
    verb = "would be paused" if made is None else "is paused"
    if made is None:
        end = f"for {lasting}" if lasting else "until resumed"
        why = reason or (already.reason if already else steer.NO_REASON)
    else:
        end, why = _end(made), made.reason
    say(f"{subject} {verb} {end}: {why}")
    if already:
        say(f"  it was paused already, since {_at(already)}, {_end(already)}: {already.reason}")
    _say_held(held, "would hold" if made is None else "holds")


_RESUME = """Let paused events go: what `relay pause` of the same words held.

Relays go on within a second. `resume --all` ends `pause --all` alone: pauses of single destinations, types
and keys stay, and are named. With --breaker it closes a breaker, which a relay opened because a broker or
destination failed, without waiting for its next probe; if the trouble is still there, it opens again.

Exits with 1, and changes nothing, where there is no such pause: a mistyped key must not look as if it were
flowing. A pause that has ended by itself within the last day counts as resumed: exit 0.

\b
Examples:
  relay resume --destination orders
  relay resume --all --dry-run
  relay resume --breaker --destination orders
  relay resume --breaker --host hooks.example.com:443
"""


def resume(
    everything: All = False,
    destination: Destination = None,
    event_type: Type = None,
    key: Key = None,
    breaker: Annotated[
        bool, typer.Option("--breaker", help="close a breaker instead of ending a pause")
    ] = False,
    host: Annotated[
        str | None, typer.Option(help="what webhooks' breakers hold: a URL's host", show_default=False)
    ] = None,
    route: Annotated[
        str | None, typer.Option(help="the same of RabbitMQ: exchange/event type", show_default=False)
    ] = None,
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.store import steer

    asked = _subject(
        everything, destination=destination, event_type=event_type, key=key, host=host, route=route
    )
    origin: Origin = "breaker" if breaker else "operator"
    settings = settings_from(database_url, table, config)
    with opened(settings, "resume", "operator") as (conn, found):
        matches = steer.find(conn, found, origin, asked)
        if len(matches) > 1:
            raise RelayError(
                safe(f"{len(matches)} pauses are of {asked}: write the whole URL of the one you mean")
            )
        gone = matches[0] if matches else None
        subject = gone.subject if gone else asked
        held: Held | str = "it had ended"
        if gone and not gone.ended:
            held = steer.held(conn, found, subject, settings.destination)
        if gone and not dry_run:
            gone = steer.lift(conn, found, subject, origin=origin, actor=who(actor))
        others = [p for p in steer.holding(conn, found) if (p.subject, p.origin) != (subject, origin)]
    if gone is None:
        raise RelayError(safe(_not_held(asked, origin, others)))
    if as_json:
        _print_json("close_breaker" if breaker else "resume", dry_run, subject, held, gone, ended=gone.ended)
        return
    if gone.ended:
        say(f"the pause of {subject} had ended by itself, {_end(gone)}")
    else:
        thing = "the breaker of" if breaker else "the pause of"
        say(f"{thing} {subject} {'would end' if dry_run else 'has ended'}: {gone.reason}")
        _say_held(held, "holds" if dry_run else "held")
    for other in others:
        kind = "a breaker" if other.origin == "breaker" else "a pause"
        note(safe(f"still held by {kind}: {other.subject}, {_end(other)}: {other.reason}"))


def _not_held(subject: Subject, origin: "Origin", others: "list[Pause]") -> str:
    remedy = "'relay status' lists what is held"
    if any(other.subject == subject for other in others):
        remedy = (
            "a breaker holds it: add --breaker" if origin == "operator" else "it is paused: omit --breaker"
        )
    said = f"{subject} is not paused" if origin == "operator" else f"no breaker holds {subject}"
    return f"{said}, nothing was changed; {remedy}"


def _subject(everything: bool, **named: str | None) -> Subject:
    """The one subject that the options name."""
    from relay import validation

    given = {scope: value for scope, value in named.items() if value is not None}
    if everything + len(given) != 1:
        flags = [_flag(scope) for scope in named]
        raise SettingsError(f"name one subject: --all, {', '.join(flags[:-1])} or {flags[-1]}")
    if everything:
        return ALL
    ((scope, value),) = given.items()
    checks: dict[str, tuple[PauseScope, int]] = {
        "destination": ("destination", validation.DESTINATION_BYTES),
        "event_type": ("event_type", validation.NAME_BYTES),
        "key": ("key", validation.NAME_BYTES),
        "host": ("host", validation.DESTINATION_BYTES),
        "route": ("route", validation.DESTINATION_BYTES + validation.NAME_BYTES + 1),
    }
    known, longest = checks[scope]
    try:
        text = validation.text(_flag(scope), value, longest)
    except InvalidEvent as error:
        raise SettingsError(str(error)) from None
    return Subject(known, text.lower() if known == "host" else text)


def _flag(scope: str) -> str:
    return f"--{scope.removeprefix('event_')}"


def _duration(text: str | None) -> float | None:
    from relay.durations import seconds

    if text is None:
        return None
    try:
        found = seconds(text)
    except (ValueError, OverflowError):
        found = 0.0
    if not 0 < found <= LONGEST_PAUSE:
        raise SettingsError(safe(f"--for {text} is no duration: write '90 s', '2h' or '7 days'"))
    return found


def _end(pause: "Pause") -> str:
    from relay.cli.output import printable

    return f"until {printable(pause.until)}" if pause.until else "until resumed"


def _at(pause: "Pause") -> str:
    from relay.cli.output import printable

    return f"{printable(pause.paused_at)} by {pause.paused_by}"


def _say_held(held: "Held | str", verb: str) -> None:
    if isinstance(held, str):
        say(f"  how many events it {verb} is not known: {held}")
        return
    least = "" if held.exact else "at least "
    events = f"{least}{number(held.events, 'pending event')}"
    say(f"  it {verb} {events} of {least}{number(held.keys, 'key')}")
    if held.behind:
        wait = "waited" if verb == "held" else "wait"
        say(f"  behind these, {least}{held.behind:,} more of their keys {wait}")
    if held.in_flight and verb != "held":
        say(f"  {least}{held.in_flight:,} in flight still go out")


def _print_json(
    action: str, dry_run: bool, subject: Subject, held: "Held | str", pause: "Pause | None", **more: Any
) -> None:
    from dataclasses import asdict

    from relay.cli.output import print_json

    columns = ("reason", "paused_by", "paused_at", "until")
    what = {"action": action, "dry_run": dry_run, "scope": subject.scope, "value": subject.label}
    how = {name: getattr(pause, name) if pause else None for name in columns}
    unknown = isinstance(held, str)
    count = {
        "held": None if isinstance(held, str) else asdict(held),
        "held_unknown": held if unknown else None,
    }
    print_json(what | how | more | count)
