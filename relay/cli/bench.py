"""`relay bench`: how fast the relay is here."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

from typing import Annotated, Literal

import typer

from relay.cli.app import App, Config, DatabaseUrl, Json, note, settings_from


def command(app: App) -> None:
    app.command(help=_BENCH)(bench)


_BENCH = """Measure how fast the relay is on this machine, against this database and broker.

Makes a schema of its own and drops it again. The raw loop claims and settles with nothing in between: the
ceiling that every other figure is a ratio of.

\b
Examples:
  relay bench --publisher memory
  RELAY_KAFKA__BOOTSTRAP_SERVERS=localhost:9092 relay bench --completion delete
"""


def bench(
    events: Annotated[int, typer.Option(min=1, help="events to drain")] = 100_000,
    keys: Annotated[int, typer.Option(min=1, help="keys they are spread over")] = 20_000,
    payload_bytes: Annotated[int, typer.Option(min=1, help="size of a payload, about")] = 200,
    publisher: Annotated[
        str | None, typer.Option(help="kafka, rabbitmq, webhook, memory, …", show_default=False)
    ] = None,
    completion: Annotated[
        Literal["keep", "delete", "archive"] | None, typer.Option(show_default=False)
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    from relay.bench.run import Plan, run_bench
    from relay.cli.database_errors import acting
    from relay.cli.output import print_columns, print_json

    settings = settings_from(database_url, None, config, publisher=publisher, completion=completion)
    with acting(settings, "relay"):
        result = run_bench(settings, Plan(events, keys, payload_bytes), note)
    if as_json:
        print_json(result)
        return
    title = ("", "events/s", "of raw loop", "relay µs/event", "database µs/event", "peak RSS MiB")
    rows = [
        (
            figure["name"],
            f"{figure['events_per_second']:,}",
            figure["ratio_of_raw_loop"],
            figure["relay_cpu_us_per_event"],
            figure["database_cpu_us_per_event"],
            figure["peak_rss_mib"],
        )
        for figure in result["figures"]
    ]
    print_columns([title, *rows])
    if client := result["client"]:
        share = f"{client['ratio']} of the bare client's {client['client_events_per_second']:,}"
        print_columns([("publisher alone", f"{client['publisher_events_per_second']:,} events/s", share)])
