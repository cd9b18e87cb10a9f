"""Logs on standard error: short lines for people at a terminal, one JSON object per line for machines.

Fields given as `extra={…}` become fields of the object. Passwords inside URLs, and the secrets that `hide`
was told of, are hidden wherever they appear, tracebacks included; in doubt more is hidden, not less. Import
this module and nothing happens; `configure` installs the handler.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TextIO
from urllib.parse import quote, unquote

HIDDEN = "***"
# Shorter ones are parts of ordinary words.
SHORTEST_KNOWN = 4

_SECRET_NAME = r"(?:[\w.-]*password|[\w.-]*secret|passfile|[\w.-]*token)"
# libpq takes a password as it stands, quotes, commas and semicolons included.
_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]*):[^\s/]*@", re.IGNORECASE)
_IN_QUERY = re.compile(r"([?&])([^\s?&=]+)=[^\s&]*")
_NAMED_PASSWORD = re.compile(
    rf"(?<![?&\w.-])({_SECRET_NAME}\s*=\s*)('(?:[^'\\]|\\.)*'|(?:[^\s\\]|\\.)+)", re.IGNORECASE
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31;1"}

_known: re.Pattern[str] | None = None


def hide(secrets: Iterable[str]) -> None:
    """From now on these are hidden too, wherever they stand by themselves: instead of those told before."""
    global _known  # noqa: PLW0603 - logging is one per process as well
    forms = {form for secret in secrets for form in (secret, quote(secret), quote(secret, safe=""))}
    longest_first = sorted((form for form in forms if len(form) >= SHORTEST_KNOWN), key=len, reverse=True)
    any_of_them = "|".join(map(re.escape, longest_first))
    _known = re.compile(rf"(?<!\w)(?:{any_of_them})(?!\w)") if any_of_them else None


def redact(text: str) -> str:
    """The text without known secrets and without the passwords of URLs and of `password=…` settings."""
    if _known:
        text = _known.sub(HIDDEN, text)
    text = _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text)
    text = _IN_QUERY.sub(_without_value, text)
    return _NAMED_PASSWORD.sub(rf"\1{HIDDEN}", text)


def _without_value(parameter: re.Match[str]) -> str:
    before, name = parameter.groups()
    secret = re.fullmatch(_SECRET_NAME, unquote(name), re.IGNORECASE)
    return f"{before}{name}={HIDDEN}" if secret else parameter[0]


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
