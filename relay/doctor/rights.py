"""Whether the relay, and those who write to the outbox, may do more than their part."""

from shlex import quote
from typing import Any

from relay.doctor.finding import Finding, or_fine, quoted
from relay.doctor.patient import Patient
from relay.settings import Settings
from relay.store.connection import StoreConnection
from relay.store.roles import role_name

FAMILY = "rights"

ME = """
SELECT current_user AS name, r.rolsuper AS super,
       pg_has_role(current_user, c.relowner, 'USAGE') AS owns,
       has_table_privilege(current_user, c.oid, 'DELETE') AS relays
FROM pg_class c, pg_roles r WHERE c.oid = %(table)s AND r.rolname = current_user
"""


def check(patient: Patient) -> list[Finding]:
    me = patient.row(ME, {"table": patient.table.oid})
    found = []
    if me["super"] or me["owns"]:
        what = "is a superuser" if me["super"] else f"owns the tables of {patient.name}"
        why = "whoever takes over the relay may read and change everything there is"
        if not me["super"]:
            why = "whoever takes over the relay may forge events, change them, and drop the tables"
        found.append(Finding(FAMILY, "warning", f"the relay's user {me['name']} {what}", why, _less(patient)))
    elif not me["relays"]:
        what = f"{me['name']} is not the relay's user: the rights of that one were not looked at"
        found.append(Finding(FAMILY, "info", what, "run this with the relay's own settings to see them", ""))
    found += [_writer(patient, row) for row in patient.rows(WRITERS, {"table": patient.table.oid})]
    return or_fine(found, FAMILY, f"{me['name']} may do its part; writers may only write")


def grant(settings: Settings, conn: StoreConnection) -> str:
    """What a user lacks that is to be a relay."""
    group = role_name(settings.table_name, "relay")
    return f"{_make_roles(settings.table)}\nGRANT {quoted(group)} TO {quoted(conn.info.user)};"


def _make_roles(table: str) -> str:
    return f'relay sql --roles --table {quote(table)} | psql "$RELAY_DATABASE_URL"'


def _less(patient: Patient) -> str:
    """Make the roles, a user that has no more than the relay's, and go on as that one."""
    group = role_name(patient.name, "relay")
    user = f"{group}_user"
    at = patient.conn.info
    commands = (
        _make_roles(str(patient.name)),
        f"CREATE ROLE {quoted(user)} LOGIN PASSWORD 'choose-one' IN ROLE {quoted(group)};",
        f"export RELAY_DATABASE_URL='postgresql://{user}:choose-one@{at.host}:{at.port}/{at.dbname}'",
    )
    return "\n".join(commands)


# Rights are given for the table or for columns of it; 0 is everybody.
WRITERS = """
WITH given AS (
  SELECT a.grantee, a.privilege_type AS may FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = %(table)s
  UNION
  SELECT a.grantee, a.privilege_type FROM pg_attribute t, aclexplode(t.attacl) a
  WHERE t.attrelid = %(table)s AND NOT t.attisdropped)
SELECT coalesce(r.rolname, 'PUBLIC') AS name, array_agg(g.may ORDER BY g.may) AS may
FROM given g LEFT JOIN pg_roles r ON r.oid = g.grantee
WHERE g.grantee <> (SELECT relowner FROM pg_class WHERE oid = %(table)s) AND NOT coalesce(r.rolsuper, false)
GROUP BY g.grantee, r.rolname
HAVING bool_or(g.may = 'INSERT') AND bool_or(g.may IN ('SELECT', 'UPDATE', 'DELETE', 'TRUNCATE'))
ORDER BY 1
"""


def _writer(patient: Patient, row: dict[str, Any]) -> Finding:
    more = ", ".join(right for right in row["may"] if right in ("SELECT", "UPDATE", "DELETE", "TRUNCATE"))
    role = "PUBLIC" if row["name"] == "PUBLIC" else quoted(row["name"])
    return Finding(
        FAMILY,
        "warning",
        f"the writer {row['name']} may also {more} events",
        "a writer needs INSERT alone: one that is broken into could read all events, or change what"
        " was decided",
        f"REVOKE {more} ON {quoted(*patient.name.parts())} FROM {role};",
    )
