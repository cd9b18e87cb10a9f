"""Whether the next generation is larger than every one that was handed out, as far as the tables know."""

from shlex import quote

from relay.doctor.finding import Finding, or_fine
from relay.doctor.patient import Patient
from relay.names import TableName
from relay.store.claim_sql import FRESH, LATER
from relay.store.sqltext import fill, regclass

FAMILY = "generations"
ROWS = 10_000

READABLE = "SELECT has_sequence_privilege({GENERATION}, 'USAGE, SELECT') AS may"
LAST = """
SELECT coalesce(pg_sequence_last_value({GENERATION}), 0) AS last, greatest(
  (SELECT max(generation) FROM {leases}),
  (SELECT max(g) FROM (SELECT o.lease_generation AS g FROM {outbox} o WHERE {FRESH} LIMIT {ROWS}) f),
  (SELECT max(g) FROM (SELECT o.lease_generation AS g FROM {outbox} o WHERE {LATER} LIMIT {ROWS}) l),
  (SELECT max(g) FROM (SELECT o.lease_generation AS g FROM {outbox} o
                       WHERE o.completed_at > now() - interval '1 hour' LIMIT {ROWS}) c), 0) AS seen
"""


def last_sql(name: TableName) -> str:
    """What was handed out last, and the largest that is known."""
    generation = regclass(name, "generation")
    return fill(LAST, name, GENERATION=generation, FRESH=FRESH, LATER=LATER, ROWS=str(ROWS))


def check(patient: Patient) -> list[Finding]:
    name = patient.name
    if not patient.row(fill(READABLE, name, GENERATION=regclass(name, "generation")))["may"]:
        return [Finding(FAMILY, "info", "not this user's to see: they are the relay's")]
    row = patient.row(last_sql(name))
    found = []
    if row["seen"] > row["last"]:
        table = "" if str(name) in ("outbox", "public.outbox") else f" --table {quote(str(name))}"
        found.append(
            Finding(
                FAMILY,
                "error",
                f"the next generation would be {row['last'] + 1}, and {row['seen']} was handed out already",
                "the database was restored, or its sequence set back: consumers that fence by"
                " generation refuse"
                " what comes under one they have passed, and a worker from before could settle for a new one",
                f"relay doctor --after-restore{table}",
            )
        )
    return or_fine(found, FAMILY, f"the last one is {row['last']}, and none larger is known")
