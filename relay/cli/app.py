"""What all commands share: how failures are told, and the options that lead to an outbox.

A failure is one sentence on stderr and an exit code, never a traceback; a traceback means a bug in the relay.
"""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from relay.errors import RelayError, SettingsError

if TYPE_CHECKING:
    from psycopg import Connection

    from relay.cli.database_errors import Part
    from relay.settings import Settings
    from relay.store.connection import Table

P = ParamSpec("P")
R = TypeVar("R")

DatabaseUrl = Annotated[
    str | None,
    typer.Option(help="libpq URL of the outbox's database [RELAY_DATABASE_URL]", show_default=False),
]
TableOption = Annotated[
    str | None,
    typer.Option("--table", help="the outbox, as in sales.outbox [RELAY_TABLE]", show_default=False),
]
Config = Annotated[
    str | None,
    typer.Option(help="settings file, instead of ./relay.toml", show_default=False, metavar="PATH"),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


class App(typer.Typer):
    """A Typer whose commands tell their failures in a sentence."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        register = super().command(*args, **kwargs)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            register(guarded(function))
            return function

        return decorate


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = function(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # Whoever read this has seen enough; the interpreter must not complain when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except UnicodeEncodeError:
            # The database takes text only; commands that know what to do with other bytes did not get here.
            names = [name for name, value in kwargs.items() if not _is_text(value)]
            if not names:
                raise
            complain(f"what is given as {names[0].replace('_', ' ')} is not UTF-8: write it as UTF-8 text")
            raise typer.Exit(2) from None
        except Exception as error:
            told = explain(error)
            if told is None:
                raise
            complain(told)
            raise typer.Exit(2 if isinstance(error, SettingsError) else 1) from None
        return result

    return wrapper


def _is_text(value: object) -> bool:
    """Not what Python keeps of arguments whose bytes are not UTF-8."""
    if isinstance(value, list | tuple):
        return all(map(_is_text, value))
    # Half of a surrogate pair stands for such a byte.
    return not isinstance(value, str) or re.search("[\ud800-\udfff]", value) is None


def complain(text: str) -> None:
    from relay.logs import redact

    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    for line in redact(text).splitlines():
        sys.stderr.write(f"\x1b[31merror:\x1b[0m {line}\n" if colour else f"error: {line}\n")


def note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def explain(error: Exception) -> str | None:
    """The failure as a sentence for the user; None: it is a bug."""
    if isinstance(error, RelayError):
        return str(error)
    if isinstance(error, sys.modules["psycopg"].Error if "psycopg" in sys.modules else ()):
        from relay.cli.database_errors import explain_database_error

        return explain_database_error(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return None


def settings_from(
    database_url: str | None, table: str | None, config: str | None, *, database: bool = True, **flags: Any
) -> "Settings":
    from relay.configuration import load
    from relay.logs import hide

    settings = load({"database_url": database_url, "table": table, **flags}, config, database=database)
    hide(settings.secrets())
    return settings


@contextmanager
def opened(
    settings: "Settings", purpose: str, part: "Part" = "reader"
) -> "Iterator[tuple[Connection[Any], Table]]":
    """A connection to the outbox for that part, once it is known to be of this program's version."""
    from relay.cli.database_errors import acting
    from relay.store.connection import connect, resolve
    from relay.store.migrate import require_current

    with acting(settings, part), connect(settings.database_url.get_secret_value(), purpose) as conn:
        require_current(conn, settings.table_name)
        yield conn, resolve(conn, settings.table_name)
