"""Prints data: JSON for programs, plain columns for people.

What comes from the database may hold anything: control characters are written as escapes, so that an event's
key cannot repaint somebody's terminal.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=_as_json)


def print_json(value: Any) -> None:
    sys.stdout.write(json_text(value) + "\n")


def _as_json(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_columns(rows: Iterable[Sequence[object]], indent: str = "") -> None:
    """Rows with their cells under each other; at a terminal the last cell is cut where the line ends."""
    texts = [[printable(cell) for cell in row] for row in rows]
    if not texts:
        return
    widths = [max(len(cell) for cell in column) for column in zip(*texts, strict=True)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for cells in texts:
        line = (
            indent + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        )
        if room is not None and len(line) > room > 1:
            line = line[: room - 1] + "…"
        sys.stdout.write(line + "\n")


def printable(value: object) -> str:
    match value:
        case None:
            return "-"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        case _:
            text = str(value)
            return (
                text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)
            )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def ago(seconds: float | None) -> str:
    """A span of time as people say it."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
