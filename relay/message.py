"""What a message carries beside its payload, the same for every transport. Pure.

`plain`: the relay's own headers, then the row's. `cloudevents`: the CloudEvents 1.0 binary binding, whose
attribute prefix differs by transport; the relay's facts that have no attribute follow as extensions.
"""

import re
from collections.abc import Callable
from typing import Literal, TypeAlias

from relay.event import RESERVED_HEADERS, Event

Format: TypeAlias = Literal["plain", "cloudevents"]
Headers: TypeAlias = list[tuple[str, str]]

# Attribute prefixes of the bindings.
CLOUDEVENTS_PREFIX = {"kafka": "ce_", "rabbitmq": "cloudEvents:", "webhook": "ce-"}
_NOT_A_NAME = re.compile(r"[^a-z0-9]")


def encoder(wanted: Format, transport: str) -> Callable[[Event], Headers]:
    """The function that makes a message's headers for this format on this transport."""
    if wanted == "plain":
        return plain_headers
    prefix = CLOUDEVENTS_PREFIX.get(transport, "ce-")
    return lambda event: cloudevents_headers(event, prefix)


def plain_headers(event: Event) -> Headers:
    headers = [
        ("event_id", event.event_id),
        ("event_type", event.event_type),
        ("partition_key", event.key),
        ("position", str(event.position)),
        ("lease_generation", str(event.generation)),
        ("attempt", str(event.attempt)),
        ("created_at", event.created_at.isoformat()),
    ]
    if event.headers:
        headers += [item for item in event.headers.items() if item[0] not in RESERVED_HEADERS]
    return headers


def cloudevents_headers(event: Event, prefix: str) -> Headers:
    """Attributes with the transport's prefix; a row's own headers become extensions where the name allows."""
    attributes = {
        "specversion": "1.0",
        "id": event.event_id,
        "source": f"outbox:{event.destination}",
        "type": event.event_type,
        "subject": event.key,
        "time": event.created_at.isoformat(),
        "partitionkey": event.key,
        "position": str(event.position),
        "leasegeneration": str(event.generation),
        "attempt": str(event.attempt),
    }
    for name, value in (event.headers or {}).items():
        if name not in RESERVED_HEADERS:
            attributes.setdefault(_NOT_A_NAME.sub("", name.lower()) or "x", value)
    headers = [(prefix + name, value) for name, value in attributes.items()]
    # The one attribute that every binding leaves to the transport.
    return [*headers, ("content-type", "application/json")]
