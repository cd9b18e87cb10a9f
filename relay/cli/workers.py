"""`relay workers`: who runs."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

from typing import Any

from relay.cli.app import App, Config, DatabaseUrl, Json, TableOption, note, opened, settings_from


def command(app: App) -> None:
    app.command(help=_WORKERS)(workers)


_WORKERS = """Show who relays, which share each has, and how far it is behind.

\b
  buckets       its share of the 1,024 parts that the keys are spread over, by the registered workers
  in flight     events it has claimed and not settled; then the age of the oldest claim
  behind        age of the oldest pending event in its buckets; >= where only a part was looked at
  seen          its last heartbeat

A worker that is draining watches no buckets; one that is dead stays for a day, or while a lease names it.

\b
Examples:
  relay workers
  relay workers --json | jq '.workers[] | select(.status == "alive") | .id'
"""


def workers(
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.cli.output import print_columns, print_json
    from relay.scan import BUCKETS
    from relay.store import workers_seen

    settings = settings_from(database_url, table, config)
    with opened(settings, "workers") as (conn, found):
        rows = workers_seen.workers(conn, found)
    for row in rows:
        row["remark"] = _remark(row, settings.stale_seconds)
    if as_json:
        print_json({"table": str(found.name), "buckets": BUCKETS, "workers": rows})
    elif rows:
        print_columns([_HEAD, *(_line(row, BUCKETS) for row in rows)])
    if not any(row["status"] == "alive" and row["remark"] is None for row in rows):
        note("no worker relays: start one with 'relay run'")


_HEAD = ("worker", "status", "buckets", "in flight", "oldest", "behind", "seen", "version", "host", "remark")


def _line(row: dict[str, Any], buckets: int) -> tuple[object, ...]:
    from relay.cli.output import ago

    share = f"{row['buckets']} ({row['buckets'] / buckets:.0%})" if row["buckets"] else "-"
    behind = ago(row["lag_seconds"])
    if row["lag_seconds"] is not None and not row["lag_exact"]:
        behind = f">= {behind}"
    work = (share, f"{row['in_flight']:,}", ago(row["oldest_lease_seconds"]), behind)
    seen = f"{ago(row['silent_seconds'])} ago"
    return (row["id"], row["status"], *work, seen, row["version"], row["host"], row["remark"] or "")


def _remark(row: dict[str, Any], stale_seconds: float) -> str | None:
    """What its status does not say yet, because nobody has looked after it."""
    if row["status"] == "dead":
        return "its events come back with the next relay" if row["in_flight"] else None
    if row["connected"] is False:
        return "its process is gone"
    if row["silent_seconds"] > stale_seconds:
        return "silent for too long: frozen or cut off"
    return None
