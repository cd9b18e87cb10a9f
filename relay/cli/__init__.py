"""The command `relay`. Data on stdout, the rest on stderr; exit 0 done, 1 failed, 2 wrong usage or settings.

Modules here import nothing heavy before a command runs: `relay --help` must not wait for the database driver.
"""

import sys
from importlib import import_module

from relay.cli.app import App

_MODULES = (
    "schema",
    "run",
    "look",
    "steer",
    "redrive",
    "replay",
    "prune",
    "inbox",
    "workers",
    "doctor",
    "dashboard",
    "demo",
    "bench",
)


def make_app() -> App:
    """The whole command line; each module adds its own commands."""
    app = App(
        name="relay",
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    for name in _MODULES:
        import_module(f"relay.cli.{name}").command(app)
    return app


_HELP = """Publishes the events of an outbox table in PostgreSQL: in order per key, at least once.

\b
Start here:
  relay demo                       see it work, with nothing installed
  export RELAY_DATABASE_URL=postgresql://user@host:5432/database
  relay migrate                    create the tables
  relay run --publisher stdout     publish what is written to them
  relay status                     see where it stands
  relay pause --all                hold everything back until 'relay resume --all'
  relay retry --all                publish again what was parked

Settings come from flags, then RELAY_… variables, then relay.toml.
"""


def main() -> None:
    try:
        make_app()(prog_name="relay")
    except KeyboardInterrupt:
        sys.exit(130)
