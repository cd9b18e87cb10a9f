"""Events as a claim would return them."""

from datetime import UTC, datetime
from itertools import count
from typing import Any

from relay.event import Event

_positions = count(1)


def make_event(key: str = "order:1", **fields: Any) -> Event:
    """An event with everything filled in; `fields` override."""
    position = next(_positions)
    values: dict[str, Any] = {
        "position": position,
        "key": key,
        "event_id": f"evt-{position}",
        "event_type": "OrderPaid",
        "destination": "outbox.events",
        "payload": b'{"order_id": %d}' % position,
        "headers": None,
        "created_at": datetime(2026, 7, 1, 12, tzinfo=UTC),
        "generation": 1,
        "attempt": 1,
        "max_attempts": 5,
    }
    return Event(**(values | fields))
