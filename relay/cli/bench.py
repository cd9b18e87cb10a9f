"""`relay bench`: how fast the relay is here."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer

from relay.cli.app import App, Config, DatabaseUrl, Json, complain, note, settings_from


def command(app: App) -> None:
    app.command(help=_BENCH)(bench)


_BENCH = """Measure how fast the relay is on this machine, against this database and broker.

Makes a schema of its own, and a topic or an exchange and a queue, and removes them again, also after
Ctrl-C: no outbox that exists is touched. Takes about two minutes.

First the ceilings: the raw loop claims and settles with the relay's statements and publishes nothing; the
bare client publishes and uses no database. Then the relay drains a backlog, and keeps up with a writer that
commits single events. Every figure is also a ratio of the ceilings.

Latency is the time from the writer's commit being acknowledged to the publisher's confirmation. CPU of the
database and the broker is shown where they run on this machine. Every part ends with a check of what
arrived: exit 1 where an event is lost or out of order.

\b
Examples:
  relay bench --publisher memory
  RELAY_KAFKA__BOOTSTRAP_SERVERS=localhost:9092 relay bench --completion delete
  relay bench --distribution zipf --zipf 1.1          compared with evenly spread keys
  relay bench --poison-backlog 200000                 one key blocked, that many events behind it
  relay bench --held-transaction --seconds 600        somebody holds a transaction open
  relay bench --events 100000 --backlog 10000000      a deep backlog
  relay bench --no-ceilings --rate 5000 --per-commit 10 --seconds 3600    does the table grow?
"""


def bench(
    events: Annotated[int, typer.Option(min=1, help="events to drain")] = 200_000,
    keys: Annotated[int, typer.Option(min=1, help="keys they are spread over")] = 20_000,
    distribution: Annotated[
        Literal["uniform", "zipf", "hot"],
        typer.Option(help="how: evenly, by Zipf's law, or one hot key with half of all"),
    ] = "uniform",
    zipf: Annotated[float, typer.Option(min=0.0, help="exponent for --distribution zipf")] = 1.1,
    payload_bytes: Annotated[int, typer.Option(min=1, help="size of a payload, about")] = 200,
    workers: Annotated[int, typer.Option(min=1, max=64, help="relay processes")] = 1,
    publisher: Annotated[
        str | None, typer.Option(help="kafka, rabbitmq, webhook, stdout, memory, …", show_default=False)
    ] = None,
    completion: Annotated[
        Literal["keep", "delete", "archive"] | None, typer.Option(show_default=False)
    ] = None,
    poison_backlog: Annotated[
        int, typer.Option(min=0, help="also drain with that many events behind one that fails for good")
    ] = 0,
    held_transaction: Annotated[
        bool, typer.Option("--held-transaction", help="also drain while a transaction is held open")
    ] = False,
    backlog: Annotated[int, typer.Option(min=0, help="also drain --events out of a backlog of so many")] = 0,
    rate: Annotated[float, typer.Option(min=1.0, help="events a second of the steady load")] = 500.0,
    seconds: Annotated[float, typer.Option(min=0.0, help="length of the steady load; 0: none")] = 30.0,
    per_commit: Annotated[int, typer.Option(min=1, help="events in each commit of it")] = 1,
    no_ceilings: Annotated[
        bool, typer.Option("--no-ceilings", help="leave out the raw loop and the bare client")
    ] = False,
    partitions: Annotated[int, typer.Option(min=1, help="of the bench's own topic")] = 12,
    destination: Annotated[
        str | None,
        typer.Option(help="an existing topic or URL, instead of one of the bench's own", show_default=False),
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
) -> None:
    from relay.bench.plan import Plan
    from relay.bench.report import lines
    from relay.bench.run import run_bench
    from relay.cli.database_errors import acting
    from relay.cli.output import print_json

    settings = settings_from(database_url, None, config, publisher=publisher, completion=completion)
    plan = Plan(
        events=events,
        keys=keys,
        distribution=distribution,
        zipf=zipf,
        payload_bytes=payload_bytes,
        workers=workers,
        poison_backlog=poison_backlog,
        held_transaction=held_transaction,
        backlog=backlog,
        rate=rate,
        seconds=seconds,
        per_commit=per_commit,
        ceilings=not no_ceilings,
        partitions=partitions,
        destination=destination,
    )
    with acting(settings, "owner"), _terminated_like_ctrl_c():
        result = run_bench(settings, plan, note)
    if as_json:
        print_json(result)
    else:
        ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        for line in lines(result, ascii_only=ascii_only):
            sys.stdout.write(line + "\n")
    if not result["clean"]:
        complain("events were lost or out of order: see the checks; this must not happen, please report it")
        raise typer.Exit(1)


@contextmanager
def _terminated_like_ctrl_c() -> Iterator[None]:
    """SIGTERM ends the bench in order, too."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
