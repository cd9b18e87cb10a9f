"""`relay status`, `relay events`, `relay show`: looking, without getting in the relay's way."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import typer

from relay.cli.app import App, Config, DatabaseUrl, Json, TableOption, note, opened, settings_from
from relay.cli.filters import Error, Key, Since, Type
from relay.errors import RelayError, SettingsError


def command(app: App) -> None:
    app.command(help=_STATUS)(status)
    app.command(help=_EVENTS)(events)
    app.command(help=_SHOW)(show)


_STATUS = """Show where the outbox stands.

How many events are in which status, how old the oldest is, who works on them, and what is blocked.
Counts beyond 100,000 are estimates and marked with >=.

\b
Examples:
  relay status
  relay status --json | jq .counts.pending.value
"""


def status(
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.cli.output import print_json
    from relay.store import inspect

    settings = settings_from(database_url, table, config)
    with opened(settings, "status") as (conn, found):
        report = inspect.status(conn, found)
    if as_json:
        print_json(report | {"settings": settings.describe()})
    else:
        _print_status(report)


def _print_status(report: dict[str, Any]) -> None:
    from relay.cli.output import ago, print_columns

    hints = {
        "pending": _waiting(report),
        "failed": "each holds its key: relay events --status failed"
        if report["counts"]["failed"]["value"]
        else "",
        "dead_letter": "relay events --status dead_letter"
        if report["counts"]["dead_letter"]["value"]
        else "",
    }
    sys.stdout.write(f"{report['table']}\n")
    print_columns(
        [(name, _count(name, count), hints.get(name, "")) for name, count in report["counts"].items()], "  "
    )
    living = [worker for worker in report["workers"] if worker["status"] != "dead"]
    sys.stdout.write("workers\n" if living else "workers: none, start one with 'relay run'\n")
    print_columns(
        [
            (
                worker["id"],
                worker["status"],
                f"seen {ago(worker['silent_seconds'])} ago",
                f"{worker['processing']:,} in flight",
                f"{worker['metadata'].get('publisher', '?')} → {worker['metadata'].get('destination', '?')}",
            )
            for worker in living
        ],
        "  ",
    )
    _section("blocked keys", report["blocked_keys"], ("key", "event_id", "parked_at", "last_error"))
    _section("pauses", report["pauses"], ("scope", "value", "paused_by", "until", "reason"))
    _section("breakers", report["breakers"], ("scope", "value", "until", "reason"))


def _waiting(report: dict[str, Any]) -> str:
    from relay.cli.output import ago

    oldest = f"oldest {ago(report['oldest_pending_seconds'])}" if report["oldest_pending_seconds"] else ""
    return f"{oldest}, {report['stuck']:,} stuck for more than an hour" if report["stuck"] else oldest


def _count(name: str, count: dict[str, Any]) -> str:
    if count["exact"]:
        return f"{count['value']:,}"
    return f"{'about' if name in ('completed', 'archived') else '>='} {count['value']:,}"


def _section(title: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    from relay.cli.output import print_columns

    if rows:
        sys.stdout.write(f"{title}\n")
        print_columns([[row[column] for column in columns] for row in rows], "  ")


_EVENTS = """List events of the outbox, newest first.

\b
Examples:
  relay events --status dead_letter --since 24h
  relay events --key order:9182
  relay events --error timeout --limit 200 --json
"""


def events(
    status: Annotated[
        Literal["pending", "processing", "completed", "dead_letter", "failed"] | None,
        typer.Option(help="only of this status", show_default=False),
    ] = None,
    key: Key = None,
    event_type: Type = None,
    error: Error = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="how many at most")] = 50,
    before: Annotated[
        int | None, typer.Option(help="only before this position: the next page", show_default=False)
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.cli.output import print_columns, print_json
    from relay.store import inspect

    settings = settings_from(database_url, table, config)
    filters = inspect.Filters(status, key, event_type, error, parse_since(since), before, limit)
    with opened(settings, "events") as (conn, found):
        rows = inspect.events(conn, found, filters)
    if as_json:
        print_json(rows)
    elif rows:
        head = ("position", "event_id", "status", "tries", "type", "key", "created", "receipt or error")
        print_columns([head, *map(_line, rows)])
    else:
        note("no event matches")
    if len(rows) == limit:
        note(f"there may be more: --before {rows[-1]['position']}")


def _line(row: dict[str, Any]) -> tuple[object, ...]:
    tries = f"{row['attempts']}/{row['max_attempts']}"
    outcome = row["receipt"] or row["last_error"] or ""
    named = (row["event_type"], row["key"], row["created_at"])
    return (row["position"], row["event_id"], row["status"], tries, *named, outcome)


def parse_since(text: str | None, option: str = "--since") -> datetime | None:
    """A moment, or a span before now; a moment without a zone is local time."""
    from relay.durations import seconds

    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):  # the latter at the ends of time, in another zone
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=seconds(text))
    except (ValueError, OverflowError):
        raise SettingsError(f"{option} {text} is no time: write '2h', '7 days' or 2026-07-01T12:00") from None


_SHOW = """Show one event in full, from the outbox or its archive.

\b
Examples:
  relay show evt-order-9182-paid-v1
  relay show evt-order-9182-paid-v1 --json | jq .payload
"""


def show(
    event_id: Annotated[str, typer.Argument(help="the event's idempotency_key")],
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.cli.output import json_text, print_columns
    from relay.destination import shown
    from relay.store import inspect

    settings = settings_from(database_url, table, config)
    with opened(settings, "show") as (conn, found):
        row = inspect.show(conn, found, event_id)
    if row is None:
        raise RelayError(
            f"there is no event {event_id} in {settings.table} or its archive: look with 'relay events'"
        )
    payload = row.pop("payload")
    row["destination"] = shown(row["destination"]) if row["destination"] else None
    if as_json:
        # The payload as PostgreSQL prints it: parsing could change its numbers.
        sys.stdout.write(f'{json_text(row)[:-2]},\n  "payload": {payload}\n}}\n')
    else:
        print_columns([*row.items(), ("payload", payload)])
