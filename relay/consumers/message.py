"""A message as a handler sees it, and how it is read from a broker's: plain or CloudEvents (binary mode).

Whatever a broker hands over is either a Message or Malformed: nothing else is raised. All that a message
must have is an event id and a JSON value; what else is missing is None. Pure: nothing here does I/O.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from relay import validation
from relay.errors import InvalidEvent
from relay.event import RESERVED_HEADERS
from relay.message import CLOUDEVENTS_PREFIX, CONTENT_TYPE

_PREFIXES = (*CLOUDEVENTS_PREFIX.values(), "cloudEvents_")  # the AMQP binding knows two
_ATTRIBUTES = {
    "id": "event_id",
    "type": "event_type",
    "partitionkey": "partition_key",
    "position": "position",
    "leasegeneration": "lease_generation",
    "attempt": "attempt",
    "time": "created_at",
    "replayid": "replay_id",
    "replayedat": "replayed_at",
    "redrivenat": "redriven_at",
}
# What says nothing that the event's own headers would have said.
_ENVELOPE = frozenset({"specversion", "source", "subject", "datacontenttype"})
_MAX_BIGINT = 2**63 - 1


class Malformed(Exception):
    """The message cannot be handled, now or ever; the text says why."""

    def __init__(self, reason: str, event_id: str | None = None) -> None:
        super().__init__(reason)
        self.event_id = event_id


@dataclass(frozen=True, slots=True)
class Raw:
    """What a broker hands over. `event_id`, `event_type`: of its own properties, if it has any."""

    value: bytes | None
    headers: Mapping[str, str]
    source: str  # where it came from: orders[3]@1207
    event_id: str | None = None
    event_type: str | None = None
    known_by_source: bool = False  # no other message ever has this source
    transport: str | None = None  # that of CLOUDEVENTS_PREFIX that it came by


@dataclass(frozen=True, slots=True)
class Message:
    """One event, decoded."""

    event_id: str
    event_type: str
    key: str
    payload: Any
    headers: Mapping[str, str]  # the row's own, without those that the relay writes
    position: int | None
    lease_generation: int | None
    attempt: int | None  # how often the relay had claimed it, this time included
    created_at: datetime | None
    replay_id: str | None
    source: str
    value: bytes = field(repr=False)  # the payload's JSON as it came
    redriven_at: datetime | None = None  # it was a dead letter, and follows its successors


def texts(headers: Iterable[tuple[Any, Any]] | None) -> dict[str, str]:
    """Headers as text; of a name that comes twice the first counts, which is the relay's."""
    found: dict[str, str] = {}
    for name, value in headers or ():
        found.setdefault(text_of(name) or "", text_of(value) or "")
    return found


def text_of(value: Any) -> str | None:
    """What a client hands over as text; where that is no UTF-8, as bytes."""
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def lane_key(raw: Raw) -> str | None:
    """The key whose order the message is part of; None: it stands alone."""
    facts, _ = _facts(raw)
    return facts.get("partition_key") or facts.get("event_id") or raw.event_id


def decode(raw: Raw) -> Message:
    facts, own = _facts(raw)
    event_id = _event_id(facts.get("event_id") or raw.event_id)
    if raw.value is None:
        raise Malformed("the message has no value", event_id)
    try:
        payload = json.loads(raw.value)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the message's value is not JSON: {error}", event_id) from None
    return Message(
        event_id=event_id,
        event_type=facts.get("event_type") or raw.event_type or "",
        key=facts.get("partition_key") or event_id,
        payload=payload,
        headers=own,
        position=_number(facts.get("position")),
        lease_generation=_number(facts.get("lease_generation")),
        attempt=_number(facts.get("attempt")),
        created_at=_moment(facts.get("created_at")),
        replay_id=_replay_id(facts.get("replay_id"), event_id),
        source=raw.source,
        value=raw.value,
        redriven_at=_moment(facts.get("redriven_at")),
    )


def _facts(raw: Raw) -> tuple[dict[str, str], dict[str, str]]:
    """What the relay wrote, by its plain names, and what the row's own headers were."""
    facts: dict[str, str] = {}
    own: dict[str, str] = {}
    prefix = _cloudevents_prefix(raw)
    for name, value in raw.headers.items():
        if prefix and name.startswith(prefix):
            attribute = name.removeprefix(prefix)
            if attribute in _ATTRIBUTES:
                facts[_ATTRIBUTES[attribute]] = value
            elif attribute not in _ENVELOPE:
                own[attribute] = value
        elif name in RESERVED_HEADERS:
            facts.setdefault(name, value)
        elif name.lower() != CONTENT_TYPE[0]:
            own.setdefault(name, value)
    return facts, own


def _cloudevents_prefix(raw: Raw) -> str | None:
    """That of the attributes which the relay wrote; a row's own headers may look like others."""
    if "event_id" in raw.headers:
        return None  # the relay writes this name in the plain format alone
    # A row's headers may not pose as attributes of its transport's prefix, but may as those of any other.
    transports = CLOUDEVENTS_PREFIX.get(raw.transport or "")
    for prefix in sorted(_PREFIXES, key=lambda prefix: prefix != transports):
        if f"{prefix}specversion" in raw.headers and f"{prefix}id" in raw.headers:
            return prefix
    return None


def _event_id(given: str | None) -> str:
    if not given:
        raise Malformed("the message has no event_id, neither as a header nor as a CloudEvents attribute")
    try:
        return validation.text("event_id", given)
    except InvalidEvent as error:
        raise Malformed(f"the message's {error}") from None


def _replay_id(given: str | None, event_id: str) -> str | None:
    if not given:
        return None
    try:
        return validation.text("replay_id", given)
    except InvalidEvent as error:
        raise Malformed(f"the message's {error}", event_id) from None


def _number(text: str | None) -> int | None:
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if -_MAX_BIGINT <= number <= _MAX_BIGINT else None


def _moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return None
