"""Indexes that the statements rely on, and indexes that every event has to be taken out of again."""

import re

from relay.doctor.finding import Finding, Severity, or_fine, quoted
from relay.doctor.patient import Patient
from relay.names import TableName, outbox_names
from relay.schema_files import migrations
from relay.store.migrate import INBOX_TABLE
from relay.store.sqltext import fill, fill_inbox

FAMILY = "indexes"

# Without these nothing can be claimed in time; without the others some chore is slow.
LANES = ("i_fresh", "i_later", "i_due", "c_event_id")
CHANGED_BY_SETTLES = (
    "status",
    "attempts",
    "losses",
    "claimed_by",
    "claimed_at",
    "lease_expires_at",
    "lease_generation",
)

STATE = """
SELECT c.relname AS name, i.indisvalid AND i.indisready AS valid
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_index i ON i.indexrelid = c.oid
WHERE n.nspname = %(schema)s AND c.relname = ANY(%(names)s)
"""


def check(patient: Patient) -> list[Finding]:
    expected = needed(patient.name)
    rows = patient.rows(STATE, {"schema": patient.schema, "names": list(expected)})
    state = {row["name"]: row["valid"] for row in rows}
    crucial = {outbox_names(patient.name)[word][-1] for word in LANES}
    found = []
    for name, statement in expected.items():
        why = (
            "claims read the whole table"
            if name in crucial
            else "chores such as pruning read the whole table"
        )
        severity: Severity = "error" if name in crucial else "warning"
        if name not in state:
            found.append(Finding(FAMILY, severity, f"the index {name} is missing", why, statement))
        elif not state[name]:
            repair = f"REINDEX INDEX CONCURRENTLY {quoted(patient.schema, name)};"
            found.append(Finding(FAMILY, severity, f"the index {name} is not valid", why, repair))
    return or_fine(
        found + _costly(patient, set(expected)), FAMILY, f"{len(expected)} indexes, all there and valid"
    )


_EITHER = re.compile(
    r"^(?:CREATE (?:UNIQUE )?INDEX|DROP INDEX) (\"(?:[^\"]|\"\")+\").*?;", re.DOTALL | re.MULTILINE
)


def needed(table: TableName) -> dict[str, str]:
    """By name: the statement that makes the index while others write, as the migrations would."""
    inbox = TableName(table.schema, INBOX_TABLE)
    texts = [fill(file.text, table) for file in migrations("outbox")]
    texts += [fill_inbox(file.text, inbox) for file in migrations("inbox")]
    unique = outbox_names(table)["c_event_id"][-1]
    outbox = quoted(*table.parts())
    made = {unique: f"ALTER TABLE {outbox} ADD CONSTRAINT {quoted(unique)} PRIMARY KEY (idempotency_key);"}
    for match in _EITHER.finditer("\n".join(texts)):
        name = match[1][1:-1].replace('""', '"')
        statement = re.sub(r"\s+", " ", re.sub("--.*", "", match[0]))
        if statement.startswith("DROP"):
            made.pop(name, None)
        else:
            made[name] = statement.replace("INDEX ", "INDEX CONCURRENTLY ", 1)
    return made


# An index depends on the columns that it has or that its predicate names.
COSTLY = """
SELECT i.indexrelid::regclass::text AS name, string_agg(DISTINCT a.attname, ', ') AS columns,
       bool_or(c.oid IS NOT NULL) AS constrains
FROM pg_index i
JOIN pg_class r ON r.oid = i.indexrelid
JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
  AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid
WHERE i.indrelid = %(table)s AND a.attname = ANY(%(changed)s) AND r.relname <> ALL(%(ours)s)
GROUP BY 1 ORDER BY 1
"""


def _costly(patient: Patient, ours: set[str]) -> list[Finding]:
    parameters = {"table": patient.table.oid, "changed": list(CHANGED_BY_SETTLES), "ours": list(ours)}
    return [
        Finding(
            FAMILY,
            "warning",
            f"the index {row['name']} names {row['columns']}, which relays change",
            "an event that is marked, retried or kept gets another entry in it each time: slower, and more"
            " for VACUUM to clean up",
            f"DROP INDEX CONCURRENTLY {row['name']};",
        )
        for row in patient.rows(COSTLY, parameters)
    ]
