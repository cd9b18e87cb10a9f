"""`relay demo`: the whole story with nothing installed."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

from typing import TYPE_CHECKING, Annotated

import typer

from relay.cli.app import App, Json, complain

if TYPE_CHECKING:
    from relay.demo.report import Report


def command(app: App) -> None:
    app.command(help=_DEMO)(demo)


_DEMO = """See the relay work, with nothing installed: a database, a broker, two relays, one of them killed.

Orders are paid in transactions that also write events, some of which are rolled back. Two relays publish the
events, one is killed with SIGKILL in the middle and replaced, and a billing service applies each event once.
At the end both ends are compared: exit 0 if nothing was lost, reordered or applied twice, else 1.

\b
Examples:
  relay demo
  relay demo --keep                  leave everything running and print the addresses
  relay demo --database-url postgresql://user@host/database --kafka localhost:9092
"""


def demo(
    seconds: Annotated[float, typer.Option(min=3, max=3600, help="how long orders are paid")] = 15,
    rate: Annotated[float, typer.Option(min=10, max=5000, help="transactions per second")] = 400,
    events: Annotated[
        int | None, typer.Option(min=100, help="end after so many events", show_default=False)
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="afterwards leave everything running until Ctrl-C")
    ] = False,
    database_url: Annotated[
        str | None,
        typer.Option(help="use this PostgreSQL, in a schema made for the demo", show_default=False),
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            help="use these Kafka brokers, with a topic made for the demo",
            metavar="HOST:PORT,…",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    from relay.demo.plan import Plan

    plan = Plan(seconds, rate, events, database_url, kafka, keep)
    plan.check()

    from rich.console import Console

    from relay.cli.output import print_json
    from relay.demo.interruption import Interrupted
    from relay.demo.report import show
    from relay.demo.screen import screen
    from relay.demo.story import play

    def conclude(report: "Report") -> None:
        if as_json:
            print_json(report.as_dict())
        else:
            show(report, Console())

    try:
        report = play(plan, screen(Console(stderr=True)), conclude)
    except Interrupted as interrupted:
        complain(str(interrupted))
        raise typer.Exit(interrupted.exit_code) from None
    raise typer.Exit(0 if report.verdict.clean else 1)
