"""Checks an event before the database sees it.

What passes here, PostgreSQL accepts: a row that breaks a length or that jsonb cannot hold would abort the
caller's whole transaction. What does not pass raises InvalidEvent, whose sentence names the field. Pure.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NoReturn

from relay.errors import InvalidEvent
from relay.event import RESERVED_HEADERS

NAME_BYTES = 255
DESTINATION_BYTES = 2048
# Far below what PostgreSQL and the usual parsers take, and what Python's own stack leaves room for.
MAX_DEPTH = 200
# PostgreSQL's numeric, which jsonb uses, has at most this many digits before the decimal point.
MAX_DIGITS = 131_072
MAX_INT_BITS = 435_411  # the largest such integer has no more
MAX_INT = 2**31 - 1

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TOO_MANY_DIGITS = re.compile(f"[0-9]{{{MAX_DIGITS + 1}}}")
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SCALARS = frozenset({str, int, float, bool, type(None)})
# Cycles end at MAX_DEPTH, before the encoder sees them.
_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


def text(field: str, value: object, max_bytes: int = NAME_BYTES) -> str:
    """`value` as a plain str of 1 to `max_bytes` bytes that PostgreSQL can store."""
    if not isinstance(value, str):
        _refuse_type(field, value)
    if not 1 <= _utf8_bytes(field, value) <= max_bytes:
        raise InvalidEvent(f"{field} must be 1 to {max_bytes} bytes of UTF-8: {_short(value)}")
    _refuse_nul(field, value)
    # Some drivers cannot bind a subclass such as StrEnum.
    return value if type(value) is str else str.__str__(value)


def destination(value: object) -> str:
    return text("destination", value, DESTINATION_BYTES)


def payload_json(payload: object, max_bytes: int) -> str:
    """The payload's JSON text, which jsonb accepts."""
    try:
        encoded = _encode(payload) if _is_plain(payload, MAX_DEPTH) else None
    except (TypeError, ValueError, RecursionError):
        encoded = None
    if encoded is None:
        _explain(payload)
    # Either may be a false alarm: a backslash and "u0000" as text, digits as text.
    if "\\u0000" in encoded or (len(encoded) > MAX_DIGITS and _TOO_MANY_DIGITS.search(encoded)):
        _look_closely(payload)
    size = len(encoded)
    if not encoded.isascii():
        try:
            size = len(encoded.encode())
        except UnicodeEncodeError:
            _explain(payload)
    if size > max_bytes:
        raise InvalidEvent(
            f"payload is {size} bytes of JSON, more than the {max_bytes} allowed: send a reference to it, "
            "or raise Outbox(max_payload_bytes=…)"
        )
    return encoded


def headers_json(headers: object, traceparent: object) -> str | None:
    """The row's headers as the text of a JSON object of strings, or None where there are none."""
    checked = {}
    if headers is not None:
        if not isinstance(headers, Mapping):
            _refuse_type("headers", headers, "pass a mapping of text to text")
        for name, value in headers.items():
            checked[_header_name(name)] = _header_value(name, value)
    if traceparent is not None:
        if not isinstance(traceparent, str) or not _TRACEPARENT.fullmatch(traceparent):
            raise InvalidEvent(
                f"traceparent is not of the W3C form 00-<32 hex>-<16 hex>-<2 hex>: {_short(traceparent)}"
            )
        checked["traceparent"] = traceparent
    return _encode(checked) if checked else None


def due(available_at: object) -> str:
    """`available_at` as text in UTC, which every driver binds alike."""
    if not isinstance(available_at, datetime):
        _refuse_type("available_at", available_at, "pass a datetime with a time zone")
    if available_at.utcoffset() is None:
        raise InvalidEvent(
            "available_at has no time zone: pass for example datetime.now(UTC) + timedelta(hours=1)"
        )
    try:
        return available_at.astimezone(UTC).isoformat()
    except OverflowError:
        raise InvalidEvent(
            f"available_at = {available_at} is out of range in UTC: pass an earlier time"
        ) from None


def attempts(max_attempts: object) -> int:
    if not isinstance(max_attempts, int) or isinstance(max_attempts, bool):
        _refuse_type("max_attempts", max_attempts, "pass an int")
    if not 1 <= max_attempts <= MAX_INT:
        raise InvalidEvent(f"max_attempts = {max_attempts} must be 1 to {MAX_INT}")
    return int(max_attempts)


def _header_name(name: object) -> str:
    checked = text("a name in headers", name)
    if checked.lower() == "traceparent":
        raise InvalidEvent(f"headers must not contain {checked!r}: pass traceparent=… instead")
    if checked.lower() in RESERVED_HEADERS:
        raise InvalidEvent(f"headers must not contain {checked!r}: the relay writes it itself")
    return checked


def _header_value(name: object, value: object) -> str:
    field = _member("headers", str(name))
    if not isinstance(value, str):
        _refuse_type(field, value)
    _storable(field, value)
    return value


def _utf8_bytes(field: str, value: str) -> int:
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise InvalidEvent(
            f"{field} contains half of a surrogate pair, which is not valid text: remove it"
        ) from None


def _is_plain(value: object, depth: int) -> bool:
    """Whether all keys are text and nothing lies deeper than `depth`: the encoder looks at neither."""
    members: Iterable[object]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return False
        members = value.values()
    elif isinstance(value, (list, tuple)):
        members = value
    else:
        return True
    if depth == 0:
        return False
    for member in members:  # noqa: SIM110 (a generator costs more than the loop)
        if type(member) not in _SCALARS and not _is_plain(member, depth - 1):
            return False
    return True


def _explain(payload: object) -> NoReturn:
    """Say which part of a payload cannot be sent, for one that is known to be wrong."""
    _look_closely(payload)
    raise InvalidEvent(
        "payload cannot be written as JSON: pass dicts, lists, text, numbers, booleans and None only"
    )


def _look_closely(payload: object) -> None:
    try:
        _inspect(payload, "payload", [])
    except RecursionError:
        raise InvalidEvent(
            f"payload is nested too deeply for the stack that is left: {MAX_DEPTH} at most"
        ) from None


def _inspect(value: object, path: str, parents: list[object]) -> None:
    """Every check on a payload in its exact form; slow, since it knows where it is."""
    match value:
        case None | bool():
            pass
        case str():
            _storable(path, value)
        case int():
            if not _has_digits_to_print(value):
                raise InvalidEvent(f"{path} is an integer with too many digits: convert it to text first")
        case float():
            if not isfinite(value):
                raise InvalidEvent(f"{path} is {float(value)!r}, which JSON does not have: send None or text")
        case dict() | list() | tuple():
            if any(value is parent for parent in parents):
                raise InvalidEvent(f"{path} contains itself, which JSON cannot express: remove the cycle")
            if len(parents) == MAX_DEPTH:
                raise InvalidEvent(f"payload is nested deeper than {MAX_DEPTH} levels: flatten it")
            parents.append(value)
            for place, member in _members(value, path):
                _inspect(member, place, parents)
            parents.pop()
        case _:
            _refuse_type(path, value)


def _members(value: dict[Any, Any] | list[Any] | tuple[Any, ...], path: str) -> Iterator[tuple[str, object]]:
    if not isinstance(value, dict):
        yield from ((f"{path}[{index}]", member) for index, member in enumerate(value))
        return
    for key, member in value.items():
        if not isinstance(key, str):
            raise InvalidEvent(f"{path} has the key {_short(key)}, {_a(key)}: convert it to text first")
        _storable(f"a key of {path}", key)
        yield _member(path, key), member


def _has_digits_to_print(value: int) -> bool:
    if value.bit_length() > MAX_INT_BITS:
        return False
    try:
        int.__repr__(value)
    except ValueError:  # over sys.get_int_max_str_digits()
        return False
    return True


def _storable(field: str, value: str) -> None:
    _utf8_bytes(field, value)
    _refuse_nul(field, value)


def _refuse_nul(field: str, value: str) -> None:
    if "\0" in value:
        raise InvalidEvent(f"{field} contains a NUL character, which PostgreSQL cannot store: remove it")


def _refuse_type(field: str, value: object, advice: str = "") -> NoReturn:
    kind = "a list" if isinstance(value, (set, frozenset)) else "text"
    raise InvalidEvent(f"{field} is {_a(value)}: {advice or f'convert it to {kind} first'}")


def _a(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    if name == "bytes":
        return name
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def _member(path: str, name: str) -> str:
    return f"{path}.{name}" if _PLAIN_NAME.fullmatch(name) else f"{path}[{_short(name)}]"


def _short(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}…"
