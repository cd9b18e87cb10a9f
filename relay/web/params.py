"""What a browser sends, read into the words of the store. Whatever is wrong is one sentence, as Wrong."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast, get_args

from relay.durations import seconds
from relay.errors import InvalidEvent, RelayError
from relay.pause import ALL, PauseScope, Subject
from relay.store.conditions import Status
from relay.store.listing import PARKED, Query
from relay.store.redrive import Action, Filter
from relay.validation import DESTINATION_BYTES, NAME_BYTES, text

LONGEST_PAUSE = 100 * 366 * 86400.0
LONGEST_TEXT = 500
MOST_IDS = 100
PAGE = 50
BEGINS = "a page begins nowhere near this: take its beginning from the one before it"


class Wrong(RelayError):
    """The request makes no sense; the text says which part."""


def query_of(params: Mapping[str, str]) -> Query:
    status = _status(params.get("status"))
    # Parked events come by time, all others by position.
    begins = _cursor if status in PARKED else _place
    return Query(
        status=status,
        key=_given(params, "key"),
        event_type=_given(params, "type"),
        error=_given(params, "error"),
        since=since_of(params.get("since")),
        before=begins(params.get("before")),
        limit=PAGE,
    )


def filter_of(body: Mapping[str, Any]) -> Filter:
    """Which events an action is for; never all of them by omission."""
    ids = body.get("ids") or []
    if not isinstance(ids, list) or len(ids) > MOST_IDS or not all(isinstance(one, str) for one in ids):
        raise Wrong(f"ids: a list of {MOST_IDS} event ids at most")
    words = {name: value for name, value in body.items() if isinstance(value, str)}
    which = Filter(
        ids=tuple(ids),
        status=_status(words.get("status")),
        key=_given(words, "key"),
        event_type=_given(words, "type"),
        error=_given(words, "error"),
        since=since_of(words.get("since")),
    )
    if which.is_empty:
        raise Wrong("name at least a status, a key, a type or a part of the error")
    return which


def action_of(body: Mapping[str, Any]) -> Action:
    action = body.get("action")
    if action not in get_args(Action):
        raise Wrong("action: retry or skip")
    return cast("Action", action)


def subject_of(body: Mapping[str, Any]) -> Subject:
    scope, value = body.get("scope"), body.get("value")
    if scope == "all":
        return ALL
    longest = {"destination": DESTINATION_BYTES, "event_type": NAME_BYTES, "key": NAME_BYTES}
    if not isinstance(scope, str) or scope not in longest or not isinstance(value, str):
        raise Wrong("scope: all, destination, event_type or key; all but the first with a value")
    try:
        return Subject(cast("PauseScope", scope), text("the value", value.strip(), longest[scope]))
    except InvalidEvent as error:
        raise Wrong(str(error)) from error


def duration_of(body: Mapping[str, Any]) -> float | None:
    """How long a pause lasts; None: until it is resumed."""
    given = body.get("for")
    if given is None or (isinstance(given, str) and not given.strip()):
        return None
    try:
        found = seconds(str(given).strip())
    except (ValueError, OverflowError):
        found = 0.0
    if not 0 < found <= LONGEST_PAUSE:
        raise Wrong("the end is no duration: write 90 s, 2h or 7 days")
    return found


def reason_of(body: Mapping[str, Any]) -> str | None:
    reason = body.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise Wrong("reason: a text")
    return (reason or "").strip()[:LONGEST_TEXT] or None


def since_of(given: str | None) -> datetime | None:
    """A moment, or a span before now; a moment without a zone is in UTC."""
    if given is None or not given.strip():
        return None
    try:
        moment = datetime.fromisoformat(given.strip())
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=seconds(given))
    except (ValueError, OverflowError):
        raise Wrong("since is no time: write 2h, 7 days or 2026-07-01T12:00") from None


def _status(given: str | None) -> Status | None:
    if not given:
        return None
    if given not in get_args(Status):
        raise Wrong(f"status: one of {', '.join(get_args(Status))}")
    return cast("Status", given)


def _given(params: Mapping[str, str], name: str) -> str | None:
    value = params.get(name) or None
    if value is not None and "\0" in value:
        raise Wrong(f"{name}: no such character can be stored")
    return value


def place_of(given: str | None) -> int | None:
    """Where a page of a list by positions begins; None: at the beginning of all."""
    return _position(given) if given else None


def _position(given: str) -> int:
    try:
        position = int(given)
    except ValueError:
        position = -1
    if not 0 <= position < 2**63:
        raise Wrong(BEGINS)
    return position


def _place(given: str | None) -> str | None:
    return str(_position(given)) if given else None


def _cursor(given: str | None) -> str | None:
    """Where a page of a list by times begins: a time, and a position among those of the same."""
    if not given:
        return None
    moment, _, position = given.rpartition(" ")
    _position(position)
    try:
        datetime.fromisoformat(moment)
    except ValueError:
        raise Wrong(BEGINS) from None
    return given


def cursor_of(given: str | None) -> str | None:
    """Like that of parked events, of a time that may be infinity."""
    moment, _, position = (given or "").rpartition(" ")
    if moment in ("infinity", "-infinity"):
        _position(position)
        return given
    return _cursor(given)
