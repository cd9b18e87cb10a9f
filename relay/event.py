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
    marks: dict[str, str] | None = None  # headers of the relay's own that most events lack: see MARKS


# Of a dead letter that was redriven, and so follows its successors; of an event that is replayed.
MARKS = frozenset({"redriven_at", "replay_id", "replayed_at"})
# Headers that the relay itself writes; a row's own headers may not use them.
RESERVED_HEADERS = MARKS | {
    "event_id",
    "event_type",
    "partition_key",
    "position",
    "lease_generation",
    "attempt",
    "created_at",
}
