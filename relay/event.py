"""An event as a publisher sees it. Pure: nothing here does I/O."""

from datetime import datetime
from typing import NamedTuple


class Event(NamedTuple):
    """One claimed row of the outbox.

    A tuple, because the relay makes one for every row it publishes and the claim returns its
    columns in this order.
    """

    position: int  # the row's id: the order within its key
    key: str
    event_id: str
    event_type: str
    destination: str
    payload: bytes  # the JSON as PostgreSQL prints it
    headers: dict[str, str] | None
    created_at: datetime
    generation: int
    attempt: int
    max_attempts: int


# Headers that the relay itself writes on every message; a row's own headers may not use them.
RESERVED_HEADERS = frozenset(
    {
        "event_id",
        "event_type",
        "partition_key",
        "position",
        "lease_generation",
        "attempt",
        "created_at",
        "replay_id",
        "replayed_at",
    }
)


def message_headers(event: Event) -> list[tuple[str, str]]:
    """The headers of a message, in a fixed order: the relay's own, then the row's."""
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
