"""Whether the tables are there, of this program's version, and wake the relays."""

import re
from shlex import quote

from psycopg import Connection

from relay.doctor.finding import Finding, or_fine, quoted
from relay.doctor.patient import Patient
from relay.errors import SchemaError
from relay.names import TableName, outbox_names
from relay.schema_files import migrations
from relay.store.connection import Table, resolve, transaction
from relay.store.migrate import installed, require_current
from relay.store.sqltext import fill

FAMILY = "schema"


def find(conn: Connection, name: TableName) -> Table | Finding:
    """The outbox as this program needs it; or what keeps it from being used."""
    try:
        with transaction(conn):
            require_current(conn, name)
            return resolve(conn, name)
    except SchemaError as error:
        fix = (
            "relay migrate"
            if name.table == "outbox" and name.schema is None
            else f"relay migrate --table {quote(str(name))}"
        )
        # What was made by hand, or by a newer program, it will not touch: the sentence says what to do.
        outdated = "relay migrate" in str(error) and "not made" not in str(error)
        return Finding(
            FAMILY, "error", str(error), "no relay starts on these tables", fix if outdated else ""
        )


TRIGGER = """
SELECT (SELECT tgenabled::text FROM pg_trigger WHERE tgrelid = %(table)s AND tgname = %(trigger)s) AS enabled
"""


def check(patient: Patient) -> list[Finding]:
    trigger = outbox_names(patient.name)["wake_relays_trigger"][0]
    enabled = patient.row(TRIGGER, {"table": patient.table.oid, "trigger": trigger})["enabled"]
    found = []
    if enabled in (None, "D", "R"):
        table = quoted(*patient.name.parts())
        found.append(
            Finding(
                FAMILY,
                "warning",
                f"the trigger {trigger} is {'missing' if enabled is None else 'disabled'}",
                "writers wake no relay: an event waits up to 250 ms for the next poll",
                _create(patient.name, trigger)
                if enabled is None
                else f"ALTER TABLE {table} ENABLE TRIGGER {quoted(trigger)};",
            )
        )
    with transaction(patient.conn):
        versions = installed(patient.conn, patient.name)
    known = ", ".join(f"{component} {version}" for component, version in versions.items())
    return or_fine(found, FAMILY, f"tables of {patient.name}: {known}, as this program needs them")


def _create(name: TableName, trigger: str) -> str:
    """The statement of the migrations that makes it, on one line."""
    text = "\n".join(fill(file.text, name) for file in migrations("outbox"))
    *_, statement = re.findall(rf"CREATE TRIGGER {re.escape(quoted(trigger))} .*?;", text, re.DOTALL)
    return " ".join(statement.split())
