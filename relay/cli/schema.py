"""`relay migrate`, `relay sql`, `relay version`: the tables and the version that made them."""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

import sys
from typing import Annotated

import typer

from relay.cli.app import App, Config, DatabaseUrl, Json, TableOption, note, settings_from


def command(app: App) -> None:
    app.command(help=_MIGRATE)(migrate)
    app.command(name="sql", help=_SQL)(print_sql)
    app.command(help=_VERSION)(version)
    app.callback()(options)


_MIGRATE = """Create the tables, or upgrade them.

Those of the outbox, and the one that consumers use to drop duplicates.
Everything happens in one transaction, or nothing does. Safe to run again, and by several at once.

\b
Examples:
  relay migrate
  relay migrate --dry-run            print the SQL that would run, change nothing
  relay migrate --table sales.outbox
"""


def migrate(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would run, leave nothing")] = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.cli.database_errors import acting
    from relay.cli.output import print_json
    from relay.store.migrate import steps

    settings = settings_from(database_url, table, config)
    with acting(settings, "owner"):
        done = steps(settings.database_url.get_secret_value(), settings.table_name, dry_run=dry_run)
    if as_json:
        applied = [step.applied._asdict() | ({"sql": step.text} if dry_run else {}) for step in done]
        print_json({"table": settings.table, "dry_run": dry_run, "applied": applied})
    elif dry_run:
        sys.stdout.write("".join(f"{step.text}\n" for step in done))
    if not done:
        note(f"{settings.table} is up to date")
    for step in done:
        note(f"{'would apply' if dry_run else 'applied'} {step.applied.component} {step.applied.version}")


_SQL = """Print the SQL that makes the tables.

For people who run their own migrations. Needs no database.

The text is complete: it records its versions, and `relay run` accepts what it made. To upgrade tables
that exist, use the SQL of `relay migrate --dry-run`.

\b
Examples:
  relay sql > migrations/0042_outbox.sql
  relay sql --table sales.outbox | psql
  relay sql --roles                  roles that may only write, relay, operate, read or consume
"""


def print_sql(
    roles: Annotated[bool, typer.Option("--roles", help="print roles and grants instead")] = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    table: TableOption = None,
    config: Config = None,
) -> None:
    from relay.cli.output import print_json
    from relay.store.migrate import sql_text
    from relay.store.roles import roles_text

    settings = settings_from(database_url, table, config, database=False)
    text = (roles_text if roles else sql_text)(settings.table_name)
    if as_json:
        print_json({"table": settings.table, "sql": text})
    else:
        sys.stdout.write(text)


_VERSION = """Print the version.

With --json also that of the tables it works with.

\b
Example:
  relay version --json
"""


def version(as_json: Json = False) -> None:
    import platform

    import relay
    from relay.cli.output import print_json
    from relay.schema_files import migrations

    if as_json:
        schema = {component: len(migrations(component)) for component in ("outbox", "inbox")}
        print_json({"version": relay.__version__, "schema": schema, "python": platform.python_version()})
    else:
        sys.stdout.write(f"outbox-relay {relay.__version__}\n")


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """What stands before the command."""
