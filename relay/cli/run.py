"""`relay run`: the relay itself."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

from typing import Annotated

import typer

from relay.cli.app import App, Config, DatabaseUrl, TableOption, settings_from


def command(app: App) -> None:
    app.command(help=_RUN)(run)


_RUN = """Publish events until stopped. Run as many as you like: each key stays in order.

SIGTERM or Ctrl-C finishes what is in flight, then ends.

\b
Examples:
  relay run --publisher stdout
  RELAY_KAFKA__BOOTSTRAP_SERVERS=localhost:9092 relay run
  relay run --until-empty            publish what is there now, then end
"""


def run(
    publisher: Annotated[
        str | None,
        typer.Option(help="kafka, rabbitmq, webhook, stdout, or a plugin's name", show_default=False),
    ] = None,
    destination: Annotated[
        str | None,
        typer.Option(help="topic, exchange or URL; may use {event_type} and {key_type}", show_default=False),
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="end once nothing is left to publish now")
    ] = False,
    takeover: Annotated[
        bool,
        typer.Option("--takeover", help="start although relays of another publisher or destination live"),
    ] = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.cli.action import Stopping

    # Before all that takes a while to import: the process with id 1 of a container ignores a SIGTERM that it
    # has no handler for.
    with Stopping() as stopping:
        import logging

        from relay import logs
        from relay.cli.database_errors import acting
        from relay.worker import run as relay_until_done

        settings = settings_from(database_url, table, config, publisher=publisher, destination=destination)
        logs.configure(logging.INFO)
        with acting(settings, "relay"):
            code = relay_until_done(
                settings, until_empty=until_empty, takeover=takeover, told_to_stop=lambda: stopping.asked
            )
    raise typer.Exit(code)
