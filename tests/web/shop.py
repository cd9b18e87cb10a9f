"""A shop for the pages to show: a broker with its moods, and an outbox with a past."""

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from relay.event import Event
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed


class ShopPublisher:
    """Takes its time, refuses what carries no currency, and loses the mailer now and then."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._chance = random.Random(7)

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        time.sleep(0.02 + self._chance.random() * 0.05)
        stopped: set[str] = set()
        outcomes: list[Outcome] = []
        for event in events:
            outcome = (
                self._outcome(event) if event.key not in stopped else Unconfirmed("an earlier one failed")
            )
            if not isinstance(outcome, Delivered):
                stopped.add(event.key)
            outcomes.append(outcome)
        return outcomes

    def _outcome(self, event: Event) -> Outcome:
        if event.event_type == "MailDue" and self._chance.random() < 0.15:
            return Unconfirmed(f"mailer-{self._chance.randrange(1, 4)}.internal:2525 timed out after 3 s")
        if event.event_type == "InvoiceIssued" and event.position % 9 == 0:
            return Refused(f"record {event.position} has no currency: schema invoices-v3 demands one")
        return Delivered(f"{event.destination}[{event.position % 6}]@{event.position}")

    def close(self) -> None:
        pass


TYPES = ("OrderPlaced", "OrderPaid", "OrderShipped", "InvoiceIssued", "CartAbandoned", "MailDue")

WRITE = """
INSERT INTO outbox (partition_key, event_type, payload, headers)
SELECT CASE t.type WHEN 'MailDue' THEN 'mail:' WHEN 'CartAbandoned' THEN 'cart:' ELSE 'order:' END
       || (9000 + (random() * 400)::int), t.type,
       jsonb_build_object(
         'order_id', 9000 + i, 'total', round((random() * 200)::numeric, 2), 'currency', 'EUR',
         'items', jsonb_build_array(
           jsonb_build_object('sku', 'SKU-' || (random() * 900)::int, 'quantity', 1 + i %% 3)),
         'customer', jsonb_build_object('id', 70000 + i %% 977, 'country', 'PT')),
       jsonb_build_object(
         'traceparent', '00-' || md5(i::text) || '-' || left(md5((i + 1)::text), 16) || '-01')
FROM generate_series(1, %(events)s) i
CROSS JOIN LATERAL (SELECT (%(types)s::text[])[1 + (random() * 100 * i)::int %% %(kinds)s] AS type) t
"""


def write(url: str, events: int) -> None:
    """So many events of the shop, as its services would write them."""
    with psycopg.connect(url) as conn:
        conn.execute(WRITE, {"events": events, "types": list(TYPES), "kinds": len(TYPES)})


PAST = """
INSERT INTO outbox (partition_key, event_type, payload, idempotency_key, status, attempts, created_at,
  available_at, completed_at, parked_at, last_error)
SELECT 'order:' || (7000 + i), %(type)s, jsonb_build_object('order_id', 7000 + i), %(prefix)s || '-' || i,
       %(status)s::outbox_status, 5, now() - i * interval '4 minutes' - interval '1 hour',
       CASE WHEN %(status)s = 'failed' THEN 'infinity' ELSE now() - interval '1 hour' END,
       CASE WHEN %(status)s = 'dead_letter' THEN now() - i * interval '3 minutes' END,
       now() - i * interval '3 minutes', replace(%(error)s, '#', (i * 37)::text)
FROM generate_series(1, %(events)s) i
"""


def park(url: str, events: int, prefix: str, kind: str, error: str, status: str = "dead_letter") -> None:
    """Events that were given up; # in the error is a number that differs."""
    with psycopg.connect(url) as conn:
        conn.execute(
            PAST, {"type": kind, "prefix": prefix, "status": status, "error": error, "events": events}
        )


def behind(url: str, key: str, events: int) -> None:
    """Events that wait behind the head of a key."""
    with psycopg.connect(url) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload)"
            " SELECT %s, 'OrderShipped', jsonb_build_object('n', i) FROM generate_series(1, %s) i",
            [key, events],
        )
