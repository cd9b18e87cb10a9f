"""Logs on standard error: short lines for people at a terminal, one JSON object per line for machines.

Fields given as `extra={…}` become fields of the object. Passwords inside URLs are hidden wherever they
appear, tracebacks included. Import this module and nothing happens; `configure` installs the handler.
"""

import json
import logging
import os
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

HIDDEN = "***"

_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]*):[^\s/'\"]*@", re.IGNORECASE)
_NAMED_PASSWORD = re.compile(
    r"""(\b(?:[\w.-]*password|[\w.-]*secret|passfile|sslpassword|[\w.-]*token)\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'",;]+)""",
    re.IGNORECASE,
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31;1"}


def redact(text: str) -> str:
    """The text with the passwords of URLs and of `password=…` settings hidden."""
    return _NAMED_PASSWORD.sub(rf"\1{HIDDEN}", _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text))


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller passed as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One object per line; a value that JSON does not know is written as text."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        for name, value in fields_of(record).items():
            entry.setdefault(name, _safe(value))
        if record.exc_info:
            entry["traceback"] = redact(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


def _safe(value: object) -> object:
    """The value as JSON knows it, without passwords."""
    match value:
        case None | bool() | int() | float():
            return value
        case dict():
            return {str(name): _safe(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_safe(inner) for inner in value]
        case _:
            return redact(str(value))


class HumanFormatter(logging.Formatter):
    def __init__(self, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        line = redact(record.getMessage())
        if record.levelno >= logging.WARNING:
            line = f"{record.levelname.lower()}: {line}"
        if extra := fields_of(record):
            line += "  " + " ".join(f"{name}={_safe(value)}" for name, value in extra.items())
        if record.exc_info:
            line += "\n" + redact(self.formatException(record.exc_info))
        code = _COLOURS.get(record.levelno)
        return f"{time} {self._paint(line, code)}"

    def _paint(self, line: str, code: str | None) -> str:
        return f"\x1b[{code}m{line}\x1b[0m" if self._colour and code else line


def configure(level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send the logs of the relay and its publishers to `stream`, replacing what was configured before."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    terminal = stream.isatty()
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    handler.setFormatter(HumanFormatter(colour) if terminal else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries speak only when something is wrong.
    root.setLevel(max(level, logging.WARNING))
    for name in ("relay", "publishers"):
        logging.getLogger(name).setLevel(level)
