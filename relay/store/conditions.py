"""Which rows of the outbox a person means, as conditions of a WHERE: for lists and for what acts on them."""

from datetime import datetime
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["pending", "processing", "completed", "dead_letter", "failed"]

# An event is in flight when a lease names it; its row says so only where that lasts.
IN_FLIGHT = "o.id IN (SELECT unnest(l.ids) FROM {leases} l)"
STATUS = f"CASE WHEN o.status = 'pending' AND {IN_FLIGHT} THEN 'processing' ELSE o.status::text END"
PENDING = f"o.status = 'pending' AND o.completed_at IS NULL AND NOT {IN_FLIGHT}"
PROCESSING = f"o.completed_at IS NULL AND (o.status = 'processing' OR o.status = 'pending' AND {IN_FLIGHT})"

_KEY = "o.partition_key = %(key)s AND o.partition_bucket = (hashtextextended(%(key)s::text, 0) & 1023)::int"


def conditions(
    *,
    key: str | None = None,
    event_type: str | None = None,
    error: str | None = None,
    since: datetime | None = None,
) -> list[str]:
    """One condition per argument that is given; their values are bound under the same names."""
    where = []
    if key is not None:
        where.append(_KEY)
    if event_type is not None:
        where.append("o.event_type = %(event_type)s")
    if error is not None:
        where.append("strpos(lower(o.last_error), lower(%(error)s)) > 0")
    if since is not None:
        where.append("o.created_at >= %(since)s")
    return where
