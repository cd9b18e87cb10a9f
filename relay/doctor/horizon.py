"""Who keeps VACUUM from removing dead rows: transactions, prepared ones, and replication slots.

Sessions count where they work in this database. Somebody else's session shows what it does only to
pg_read_all_stats: where that is missing, the examination says so.
"""

from typing import Any

from relay.doctor.finding import Finding, literal, or_fine, quoted
from relay.doctor.patient import Patient

FAMILY = "horizon"
LONG_SECONDS = 300.0
VERY_LONG_SECONDS = 3600.0
# Transactions of other sessions that a slot is behind.
LONG_AGE = 1_000_000
WHY = "VACUUM removes no row that died since then: claims read over them, and get slower until it ends"

SESSIONS = """
SELECT pid, usename AS "user", state,
       extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
FROM pg_stat_activity
WHERE datname = current_database() AND xact_start IS NOT NULL
  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
  AND pid <> pg_backend_pid() AND backend_type NOT IN ('autovacuum worker', 'parallel worker', 'walsender')
ORDER BY xact_start
"""
MAY_LOOK = "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS may, current_user AS me"


def check(patient: Patient) -> list[Finding]:
    sessions = patient.rows(SESSIONS)
    found = [_session(row) for row in sessions if row["seconds"] > LONG_SECONDS]
    found += _prepared(patient) + _standbys(patient) + _slots(patient)
    look = patient.row(MAY_LOOK)
    if not look["may"]:
        found.append(
            Finding(
                FAMILY,
                "info",
                "transactions of other users could not be looked at",
                f"{look['me']} may see only its own, and the one that holds up VACUUM is somebody"
                " else's as a rule",
                f"GRANT pg_read_all_stats TO {quoted(look['me'])};",
            )
        )
    oldest = max((row["seconds"] for row in sessions), default=0.0)
    return or_fine(
        found, FAMILY, f"nothing holds up VACUUM; the oldest open transaction is {oldest:.0f} s old"
    )


def _session(row: dict[str, Any]) -> Finding:
    return Finding(
        FAMILY,
        "error" if row["seconds"] > VERY_LONG_SECONDS else "warning",
        f"a transaction of {row['user']} is open for {row['seconds'] / 60:.0f} minutes"
        f" ({row['state']}, process {row['pid']})",
        WHY,
        f"SELECT pg_terminate_backend({row['pid']});",
    )


STANDBYS = """
SELECT application_name AS name, age(backend_xmin) AS age FROM pg_stat_replication
WHERE age(backend_xmin) > %(age)s ORDER BY 1
"""


def _standbys(patient: Patient) -> list[Finding]:
    """Standbys without a slot that pass on what their own queries hold (hot_standby_feedback)."""
    return [
        Finding(
            FAMILY,
            "warning",
            f"the standby {row['name']} holds {row['age']:,} transactions of dead rows"
            " (hot_standby_feedback)",
            f"{WHY}. A query there is too long: end it, or run this on the standby",
            "ALTER SYSTEM SET max_standby_streaming_delay = '5min';\n"
            "ALTER SYSTEM SET hot_standby_feedback = off;\nSELECT pg_reload_conf();",
        )
        for row in patient.rows(STANDBYS, {"age": LONG_AGE})
    ]


PREPARED = """
SELECT gid, owner, extract(epoch FROM clock_timestamp() - prepared)::float8 AS seconds
FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared
"""


def _prepared(patient: Patient) -> list[Finding]:
    return [
        Finding(
            FAMILY,
            "error" if row["seconds"] > VERY_LONG_SECONDS else "warning",
            f"a transaction of {row['owner']} is prepared and waits for {row['seconds'] / 60:.0f} minutes"
            f" ({row['gid']})",
            f"{WHY}. It survives restarts and keeps its locks. Ask its owner first: it may have to be"
            " committed",
            f"ROLLBACK PREPARED {literal(row['gid'])};",
        )
        for row in patient.rows(PREPARED)
        if row["seconds"] > LONG_SECONDS
    ]


# catalog_xmin holds rows of the catalogs alone, xmin those of every table.
SLOTS = """
SELECT slot_name AS name, slot_type AS kind, active,
       greatest(age(xmin), 0) AS age, greatest(age(catalog_xmin), 0) AS catalog_age,
       CASE WHEN restart_lsn IS NOT NULL AND NOT pg_is_in_recovery()
         THEN pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)) END AS wal
FROM pg_replication_slots
WHERE NOT temporary AND (database IS NULL OR database = current_database())
ORDER BY slot_name
"""


def _slots(patient: Patient) -> list[Finding]:
    found = []
    for row in patient.rows(SLOTS):
        behind = max(row["age"] or 0, row["catalog_age"] or 0)
        if row["active"] and behind < LONG_AGE:
            continue
        held = [f"{row['age']:,} transactions of dead rows"] if row["age"] else []
        held += (
            [f"{row['catalog_age']:,} transactions of the catalogs' dead rows"] if row["catalog_age"] else []
        )
        held += [f"{row['wal']} of WAL"] if row["wal"] else []
        state = "far behind" if row["active"] else "used by nobody"
        found.append(
            Finding(
                FAMILY,
                "warning",
                f"the {row['kind']} replication slot {row['name']} is {state}: it keeps"
                f" {' and '.join(held) or 'nothing yet'}",
                "what a slot keeps only grows: first claims get slower, in the end the disk is full and the"
                " database stops. If its reader comes back, let it catch up instead",
                f"SELECT pg_drop_replication_slot({literal(row['name'])});",
            )
        )
    return found
