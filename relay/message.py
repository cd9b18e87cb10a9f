"""What a message carries beside its payload, the same for every transport. Pure.

`plain`: the relay's own headers, then the row's. `cloudevents`: the CloudEvents 1.0 binary binding, whose
attribute prefix differs by transport; the relay's facts that have no attribute of their own are extensions.
Nothing of a row's headers is renamed or lost: what CloudEvents does not allow as an extension goes beside
the attributes, under its own name, unless it would pose as one of them.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, TypeAlias
from urllib.parse import quote

from relay.event import MARKS, RESERVED_HEADERS, Event

Format: TypeAlias = Literal["plain", "cloudevents"]
Headers: TypeAlias = list[tuple[str, str]]

# Attribute prefixes of the bindings.
CLOUDEVENTS_PREFIX = {"kafka": "ce_", "rabbitmq": "cloudEvents:", "webhook": "ce-"}
# Of W3C Trace Context: an attribute for those who read CloudEvents, a plain header for those who trace.
TRACE_HEADERS = ("traceparent", "tracestate")
CONTENT_TYPE = ("content-type", "application/json")

# Attributes that the relay fills in, and those that the data itself takes the place of.
_TAKEN = frozenset(
    {
        "specversion",
        "id",
        "type",
        "subject",
        "time",
        "data",
        "datacontenttype",
        "partitionkey",
        "position",
        "leasegeneration",
        "attempt",
        *(mark.replace("_", "") for mark in MARKS),
    }
)
# Attributes that are URIs: the row may set them, with something that is one.
_URIS = frozenset({"source", "dataschema"})
_URI = re.compile(r"[!-~]+")
_NAME = re.compile(r"[a-z0-9]+")
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f]")


def encoder(wanted: Format, transport: str) -> Callable[[Event], Headers]:
    """The function that makes a message's headers for this format on this transport."""
    if wanted == "plain":
        return plain_headers
    prefix = CLOUDEVENTS_PREFIX.get(transport, "ce-")
    if transport == "kafka":
        # RabbitMQ and HTTP have a place of their own for the type of the content.
        return lambda event: [*cloudevents_headers(event, prefix), CONTENT_TYPE]
    return lambda event: cloudevents_headers(event, prefix)


def plain_headers(event: Event) -> Headers:
    position, key, event_id, event_type, _, _, own, created_at, generation, attempt, _, marks = event
    same_type, same_generation, same_attempt = _same(event_type, generation, attempt)
    headers = [
        ("event_id", event_id),
        same_type,
        ("partition_key", key),
        ("position", str(position)),
        same_generation,
        same_attempt,
        _created(created_at),
    ]
    if marks:
        headers += marks.items()
    if own:
        headers += [item for item in own.items() if item[0] not in RESERVED_HEADERS]
    return headers


@lru_cache(maxsize=256)
def _same(event_type: str, generation: int, attempt: int) -> Headers:
    """The headers that many events in a row have in common."""
    return [("event_type", event_type), ("lease_generation", str(generation)), ("attempt", str(attempt))]


_last_created: tuple[datetime, tuple[str, str]] = (datetime.min.replace(tzinfo=UTC), ("created_at", ""))


def _created(at: datetime) -> tuple[str, str]:
    """Events of one transaction follow each other, and writing a time takes as long as the rest."""
    global _last_created  # noqa: PLW0603 - one thread's may replace another's: both are right
    last, header = _last_created
    if at != last or at.tzinfo is not last.tzinfo:
        header = ("created_at", at.isoformat())
        _last_created = (at, header)
    return header


def cloudevents_headers(event: Event, prefix: str, source: str | None = None) -> Headers:
    """The event's attributes under the transport's prefix, then the row's headers that cannot be attributes.

    `source` stands in for the destination where that may not be shown.
    """
    attributes = {
        "specversion": "1.0",
        "id": event.event_id,
        "source": source or _source(event.destination),
        "type": event.event_type,
        "subject": event.key,
        "time": event.created_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "partitionkey": event.key,
        "position": str(event.position),
        "leasegeneration": str(event.generation),
        "attempt": str(event.attempt),
    }
    attributes |= {mark.replace("_", ""): value for mark, value in (event.marks or {}).items()}
    beside: Headers = []
    for name, value in (event.headers or {}).items():
        if name in RESERVED_HEADERS:
            continue
        if _may_be_attribute(name, value):
            attributes[name] = value
            if name in TRACE_HEADERS:
                beside.append((name, value))
        elif not name.lower().startswith(prefix.lower()) and name.lower() != CONTENT_TYPE[0]:
            beside.append((name, value))
    return [(prefix + name, value) for name, value in attributes.items()] + beside


def _may_be_attribute(name: str, value: str) -> bool:
    if name in _URIS:
        return _URI.fullmatch(value) is not None
    return name not in _TAKEN and bool(_NAME.fullmatch(name)) and not _NOT_TEXT.search(value)


@lru_cache(maxsize=1024)
def _source(destination: str) -> str:
    return "outbox:" + quote(destination, safe="/:@!$&'()*+,;=")
