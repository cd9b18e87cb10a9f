"""What commands share that change something: who does it, asking before much is done, progress, stopping.

Ctrl-C or SIGTERM ends a command between two batches, with a clean state and a word on how far it came; a
second one ends it at once, and the batch in hand is rolled back.
"""

# ruff: noqa: PLC0415 - heavy imports wait until a command runs

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Annotated, Any

import typer

from relay.cli.app import note
from relay.errors import RelayError, SettingsError

ASK_ABOVE = 100
SECONDS_BETWEEN_LINES = 5.0

Actor = Annotated[
    str | None, typer.Option(help="who does it [default: you, as user@host]", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would happen, change nothing")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help=f"do not ask, however many: more than {ASK_ABOVE}")]


def who(given: str | None) -> str:
    import getpass
    import os
    import socket

    if given:
        return given
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def safe(text: str) -> str:
    from relay.cli.output import printable

    return printable(text)


def say(text: str) -> None:
    sys.stdout.write(f"{safe(text)}\n")


def number(n: int, thing: str = "event", *, exact: bool = True) -> str:
    return f"{'' if exact else 'at least '}{n:,} {thing}{'' if n == 1 else 's'}"


def ask(what: str, n: int, *, exact: bool, yes: bool) -> None:
    """Have the user confirm what concerns many events; one who cannot be asked must have said --yes."""
    if yes or (exact and n <= ASK_ABOVE):
        return
    if not sys.stdin.isatty():
        raise SettingsError(f"{what} concerns {number(n, exact=exact)}: add --yes to do it without asking")
    if not typer.confirm(f"{what}: {number(n, exact=exact)}. Go on?", err=True):
        raise RelayError("nothing was changed")


class Stopping:
    """While inside, the first SIGINT or SIGTERM is only noted, the second one interrupts."""

    def __init__(self) -> None:
        self.asked = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Stopping":
        for each in (signal.SIGINT, signal.SIGTERM):
            self._previous[each] = signal.signal(each, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        note("stopping after what is in hand; again to stop at once")


@contextmanager
def progress(words: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields what takes the number done: a bar at a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _lines(words, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)
        yield lambda done: bar.update(task, completed=done)


def _lines(words: str, total: int | None) -> Callable[[int], None]:
    last = monotonic()

    def tell(done: int) -> None:
        nonlocal last
        if monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = monotonic()
            note(f"{words}: {done:,}" + (f" of {total:,}" if total is not None else ""))

    return tell
