"""Whether dead rows are cleaned up."""

from typing import Any

from relay.doctor.finding import Finding, or_fine, quoted
from relay.doctor.patient import Patient
from relay.names import outbox_names

FAMILY = "vacuum"
TABLES = ("outbox", "leases", "wake", "workers", "pauses", "archive")
# So many times what should have started an autovacuum, for so long: it does not keep up.
OVERDUE = 10
PATIENCE_SECONDS = 600

SERVER = """
SELECT current_setting('autovacuum')::bool AS autovacuum,
       current_setting('track_counts')::bool AS track_counts
"""
TABLE = """
SELECT c.relname AS name, s.n_dead_tup AS dead, greatest(c.reltuples, 0)::bigint AS rows,
  extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8 AS since,
  (o.options ->> 'autovacuum_enabled')::bool AS enabled,
  coalesce((o.options ->> 'autovacuum_vacuum_threshold')::float8,
           current_setting('autovacuum_vacuum_threshold')::float8) AS threshold,
  coalesce((o.options ->> 'autovacuum_vacuum_scale_factor')::float8,
           current_setting('autovacuum_vacuum_scale_factor')::float8) AS scale
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
CROSS JOIN LATERAL (
  SELECT coalesce(jsonb_object_agg(option_name, option_value), '{}'::jsonb) AS options
  FROM pg_options_to_table(c.reloptions)) o
WHERE n.nspname = %(schema)s AND c.relname = ANY(%(names)s)
ORDER BY c.relname
"""


def check(patient: Patient) -> list[Finding]:
    names = outbox_names(patient.name)
    tables = [names[word][-1] for word in TABLES]
    rows = patient.rows(TABLE, {"schema": patient.schema, "names": tables})
    found = _server(patient)
    for row in rows:
        found += _table(patient, row)
    dead = sum(row["dead"] or 0 for row in rows)
    return or_fine(found, FAMILY, f"autovacuum is on for {len(rows)} tables; {dead:,} dead rows in them")


def _server(patient: Patient) -> list[Finding]:
    return [
        Finding(
            FAMILY,
            "error",
            f"{name} is off for the whole server",
            "dead rows pile up, and every claim reads over them: the relay gets slower with each event",
            f"ALTER SYSTEM SET {name} = on;\nSELECT pg_reload_conf();",
        )
        for name, on in patient.row(SERVER).items()
        if not on
    ]


def _table(patient: Patient, row: dict[str, Any]) -> list[Finding]:
    table = quoted(patient.schema, row["name"])
    found = []
    if row["enabled"] is False:
        found.append(
            Finding(
                FAMILY,
                "error",
                f"autovacuum is off for the table {row['name']}",
                "dead rows pile up, and every claim reads over them: the relay gets slower with each event",
                f"ALTER TABLE {table} RESET (autovacuum_enabled);",
            )
        )
    due = row["threshold"] + row["scale"] * row["rows"]
    if (row["dead"] or 0) > OVERDUE * due and (row["since"] is None or row["since"] > PATIENCE_SECONDS):
        ago = "never" if row["since"] is None else f"{row['since'] / 60:.0f} minutes ago"
        found.append(
            Finding(
                FAMILY,
                "warning",
                f"{row['name']} has {row['dead']:,} dead rows and was vacuumed {ago}; autovacuum is"
                f" due at {due:,.0f}",
                "autovacuum does not keep up: its workers are busy elsewhere or too slow. Claims"
                " read over dead rows",
                f"VACUUM (ANALYZE) {table};",
            )
        )
    return found
