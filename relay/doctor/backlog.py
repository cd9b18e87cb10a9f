"""What is to be published and where: destinations, and how large their events are, from a bounded look."""

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from relay.doctor.patient import Patient
from relay.store.claim_sql import FRESH, LATER
from relay.store.connection import transaction
from relay.store.sqltext import destination_expression, fill

ROWS = 5_000
LARGEST = 20

# What a payload takes in the table says roughly which are the largest; only of those the real size is taken.
ROUTES = """
WITH seen AS MATERIALIZED (
  (SELECT o.* FROM {outbox} o WHERE {FRESH} LIMIT {ROWS})
  UNION ALL (SELECT o.* FROM {outbox} o WHERE {LATER} LIMIT {ROWS})
  UNION ALL (SELECT o.* FROM {outbox} o
             WHERE o.parked_at IS NOT NULL AND o.completed_at IS NOT NULL LIMIT {ROWS})),
ranked AS (
  SELECT o.*, {DESTINATION} AS goes_to,
         row_number() OVER (PARTITION BY {DESTINATION} ORDER BY pg_column_size(o.payload) DESC) AS place
  FROM seen o)
SELECT goes_to AS destination, event_type, split_part(partition_key, ':', 1) AS key_type, count(*) AS events,
       coalesce(max(octet_length(payload::text)) FILTER (WHERE place <= {LARGEST}), 0) AS largest,
       min(last_error) FILTER (
         WHERE last_error LIKE 'no queue takes %%' AND completed_at IS NULL) AS unroutable
FROM ranked GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT 1000
"""


@dataclass(frozen=True)
class Route:
    """Events of one type on their way to one destination."""

    destination: str
    event_type: str
    key_type: str
    events: int
    largest: int  # bytes of the largest payload that was looked at
    unroutable: str | None = None


def routes(patient: Patient) -> list[Route]:
    """What waits or was given up; empty where nothing does, or where the look takes too long."""
    words: dict[str, Any] = {
        "FRESH": FRESH,
        "LATER": LATER,
        "ROWS": str(ROWS),
        "LARGEST": str(LARGEST),
        "DESTINATION": destination_expression(patient.settings.destination),
    }
    statement = fill(ROUTES, patient.name, **words)
    try:
        with transaction(patient.conn):
            return patient.conn.cursor(row_factory=class_row(Route)).execute(statement, {}).fetchall()
    except psycopg.errors.QueryCanceled:
        return []


def destinations(template: str, found: list[Route]) -> list[str]:
    """Where events go: those that the routes name, and the setting where it is one place."""
    named = dict.fromkeys(route.destination for route in found)
    return list(named if "{" in template else {template: None} | named)
