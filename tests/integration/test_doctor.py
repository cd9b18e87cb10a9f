"""What doctor finds in the database: each fault is made, found, fixed by what was printed, and gone."""

import json
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from relay.demo.postgres import PostgresServer
from relay.doctor import generations, horizon, patient
from relay.doctor.indexes import needed
from relay.names import TableName
from relay.store.migrate import migrate
from relay.store.roles import roles_text
from tests.integration.cli_kit import add, failure, relay
from tests.integration.doctor_kit import ROOT, Clinic, finds_and_fixes, session
from tests.servers.postgres import Standby
from tests.servers.process import wait_until

FAMILIES = {
    "settings",
    "database",
    "schema",
    "indexes",
    "vacuum",
    "horizon",
    "generations",
    "rights",
    "clock",
    "stdout",
}


@pytest.fixture
def clinic(database: str, tmp_path: Path) -> Clinic:
    return Clinic(database, tmp_path)


@pytest.fixture
def guarded(empty_database: str, tmp_path: Path) -> Iterator[Clinic]:
    """An outbox of a name of its own: roles belong to the whole server."""
    table = f"doctor_{uuid.uuid4().hex[:12]}"
    migrate(empty_database, TableName(None, table))
    clinic = Clinic(empty_database, tmp_path, RELAY_TABLE=table)
    yield clinic
    with psycopg.connect(empty_database, autocommit=True) as conn:
        rows = conn.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE %s", [f"{table}%"]).fetchall()
        for (name,) in rows:
            conn.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_a_healthy_outbox_is_one_line_per_family_and_exit_0(guarded: Clinic) -> None:
    guarded.fix(guarded.fault("rights", "is a superuser"))
    user = guarded.sql(f"SELECT rolname FROM pg_roles WHERE rolname = '{guarded.settings.table}_relay_user'")
    guarded.sql(f'GRANT pg_read_all_stats TO "{user[0][0]}"')
    done = relay("doctor", **guarded.environment)
    assert done.returncode == 0, done.stdout
    lines = [line.split(None, 2) for line in done.stdout.splitlines()]
    assert {family for _, family, _ in lines} == FAMILIES
    assert {word for word, _, _ in lines} == {"ok"}, done.stdout
    assert done.stderr == "no errors, no warnings\n"


def test_findings_come_worst_first_and_an_error_is_exit_1(clinic: Clinic) -> None:
    clinic.sql("DROP INDEX outbox_fresh")
    done = relay("doctor", **clinic.environment)
    assert done.returncode == 1
    assert done.stdout.startswith("error    indexes      the index outbox_fresh is missing\n")
    assert "fix: CREATE INDEX CONCURRENTLY" in done.stdout
    assert "Traceback" not in done.stderr


def test_json_has_every_finding_with_its_commands(clinic: Clinic) -> None:
    clinic.sql("DROP INDEX outbox_fresh")
    done = relay("doctor", "--json", **clinic.environment)
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["counts"]["error"] == 1
    (error,) = [each for each in answer["findings"] if each["severity"] == "error"]
    assert error["family"] == "indexes"
    assert error["why"]
    (command,) = error["fix"]
    assert command.startswith("CREATE INDEX CONCURRENTLY ")
    assert {each["family"] for each in answer["findings"]} == FAMILIES


def test_missing_tables(any_postgres: int, empty_database: str, tmp_path: Path) -> None:
    clinic = Clinic(empty_database, tmp_path)
    finds_and_fixes(clinic, "schema", "are missing or too old", "error")


def test_tables_that_are_behind(clinic: Clinic) -> None:
    for (name,) in clinic.sql("SELECT tablename FROM pg_tables WHERE tablename LIKE 'inbox_dedupe%'"):
        clinic.sql(f"DROP TABLE {name} CASCADE")
    finds_and_fixes(clinic, "schema", "tables of public.inbox_dedupe are missing or too old", "error")


def test_tables_of_somebody_else_are_an_error_without_a_command(empty_database: str, tmp_path: Path) -> None:
    clinic = Clinic(empty_database, tmp_path)
    clinic.sql("CREATE TABLE outbox_versions (remark text)")
    finding = clinic.fault("schema", "was not made by 'relay migrate'")
    assert (finding.severity, finding.fix) == ("error", "")


@pytest.mark.parametrize(
    "fault, about",
    [
        (
            "ALTER TABLE outbox DISABLE TRIGGER outbox_wake_relays",
            "the trigger outbox_wake_relays is disabled",
        ),
        ("DROP TRIGGER outbox_wake_relays ON outbox", "the trigger outbox_wake_relays is missing"),
    ],
)
def test_a_trigger_that_wakes_nobody(clinic: Clinic, fault: str, about: str) -> None:
    clinic.sql(fault)
    finds_and_fixes(clinic, "schema", about, "warning")


INDEXES = """
SELECT indexname, indexdef FROM pg_indexes
WHERE tablename LIKE 'outbox%' OR tablename = 'inbox_dedupe' ORDER BY 1
"""


def test_every_missing_index_is_made_again_as_it_was(any_postgres: int, clinic: Clinic) -> None:
    before = clinic.sql(INDEXES)
    ours = needed(TableName("public", "outbox"))
    clinic.sql("ALTER TABLE outbox DROP CONSTRAINT outbox_event_id")
    for name in ours.keys() - {"outbox_event_id"}:
        clinic.sql(f"DROP INDEX {name}")
    found = clinic.faults("indexes")
    assert {finding.what for finding in found} == {f"the index {name} is missing" for name in ours}
    severe = {finding.what.split()[2] for finding in found if finding.severity == "error"}
    assert severe == {"outbox_fresh", "outbox_later", "outbox_due", "outbox_event_id"}
    for finding in found:
        clinic.fix(finding)
    assert clinic.faults("indexes") == []
    assert clinic.sql(INDEXES) == before


def test_an_invalid_index(clinic: Clinic) -> None:
    clinic.sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_later'::regclass")
    finds_and_fixes(clinic, "indexes", "the index outbox_later is not valid", "error")


@pytest.mark.parametrize(
    "index", ["(status)", "(created_at) WHERE status = 'dead_letter'", "((attempts + losses))"]
)
def test_an_index_that_names_what_claims_change(clinic: Clinic, index: str) -> None:
    clinic.sql(f"CREATE INDEX costly ON outbox {index}")
    finds_and_fixes(clinic, "indexes", "the index costly names", "warning")


def test_an_index_of_somebody_elses_that_costs_claims_nothing_is_left_alone(clinic: Clinic) -> None:
    clinic.sql("CREATE INDEX harmless ON outbox (event_type, created_at)")
    assert clinic.faults("indexes") == []


def test_autovacuum_off_for_a_table(any_postgres: int, clinic: Clinic) -> None:
    clinic.sql("ALTER TABLE outbox_leases SET (autovacuum_enabled = false)")
    finds_and_fixes(clinic, "vacuum", "autovacuum is off for the table outbox_leases", "error")
    kept = clinic.sql(
        "SELECT 'autovacuum_vacuum_threshold=500' = ANY(reloptions) FROM pg_class"
        " WHERE relname = 'outbox_leases'"
    )
    assert kept == [(True,)]


def test_autovacuum_off_for_the_server(own_postgres: PostgresServer, tmp_path: Path) -> None:
    migrate(own_postgres.url())
    clinic = Clinic(own_postgres.url(), tmp_path)
    clinic.sql("ALTER SYSTEM SET autovacuum = off")
    clinic.sql("SELECT pg_reload_conf()")
    finds_and_fixes(clinic, "vacuum", "autovacuum is off for the whole server", "error", within=30)


def test_autovacuum_that_does_not_keep_up(clinic: Clinic) -> None:
    # Off, so that none comes by while the test looks; that is a finding of its own.
    clinic.sql("ALTER TABLE outbox_leases SET (autovacuum_enabled = false)")
    with session(clinic.database) as conn:
        conn.execute(
            "INSERT INTO outbox_leases (generation, claimed_by, claimed_at, expires_at, size, buckets, keys,"
            " firsts, lasts, ids) SELECT i, 'w', now(), now(), 1, '{1}', '{k}', '{1}', '{1}', '{1}'"
            " FROM generate_series(1, 6000) i"
        )
        conn.execute("DELETE FROM outbox_leases")
        conn.execute("SELECT pg_stat_force_next_flush()")
    finds_and_fixes(clinic, "vacuum", "outbox_leases has 6,000 dead rows", "warning", within=30)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transaction counts as a long one."""
    monkeypatch.setattr(horizon, "LONG_SECONDS", 0.0)


def test_a_transaction_that_holds_xmin(any_postgres: int, clinic: Clinic, impatient: None) -> None:
    statements = ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT FROM outbox")
    with session(clinic.database, *statements) as conn:
        finding = finds_and_fixes(
            clinic, "horizon", f"idle in transaction, process {conn.info.backend_pid}", "warning", within=30
        )
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")
    assert "VACUUM removes no row" in finding.why


def test_a_transaction_that_holds_xmin_for_an_hour_is_an_error(
    clinic: Clinic, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horizon, "VERY_LONG_SECONDS", 0.0)
    with session(clinic.database, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT FROM outbox"):
        assert clinic.fault("horizon", "idle in transaction").severity == "error"


def test_a_transaction_in_another_database_is_not_held_against_this_one(
    clinic: Clinic, postgres_url: str, impatient: None
) -> None:
    with session(postgres_url, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1") as conn:
        assert clinic.healed("horizon", str(conn.info.backend_pid))


def test_a_prepared_transaction(own_postgres: PostgresServer, tmp_path: Path, impatient: None) -> None:
    migrate(own_postgres.url())
    clinic = Clinic(own_postgres.url(), tmp_path)
    statements = ("BEGIN", "DELETE FROM outbox", "PREPARE TRANSACTION 'it''s forgotten'")
    with session(clinic.database, *statements):
        pass
    finds_and_fixes(clinic, "horizon", "is prepared and waits", "warning")


def test_a_replication_slot_that_nobody_reads(any_postgres: int, clinic: Clinic) -> None:
    slot = f"doctor_{uuid.uuid4().hex[:12]}"
    clinic.sql(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    finds_and_fixes(clinic, "horizon", f"the logical replication slot {slot} is used by nobody", "warning")


FEEDBACK = "SELECT 1 FROM pg_stat_replication WHERE backend_xmin IS NOT NULL"
SLOT = "SELECT 1 FROM pg_replication_slots WHERE xmin IS NOT NULL"


def test_a_standby_holds_rows_while_it_lags_and_its_slot_when_it_is_gone(
    own_postgres: PostgresServer, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(own_postgres.url())
    clinic = Clinic(own_postgres.url(), tmp_path)
    clinic.sql("SELECT pg_create_physical_replication_slot('replica')")
    standby = Standby(own_postgres)
    standby.settings |= {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"}
    with standby:
        wait_until(lambda: bool(clinic.sql(FEEDBACK)), 60, "the standby to say what it needs")
        assert clinic.healed("horizon", "standby"), "one that keeps up holds nothing"
        with session(standby.url(), "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT FROM outbox"):
            monkeypatch.setattr(horizon, "LONG_AGE", 20)
            for _ in range(30):
                clinic.sql("SELECT pg_current_xact_id()")
            finding = clinic.fault("horizon", "transactions of dead rows (hot_standby_feedback)")
        with session(standby.url()) as conn:
            for line in finding.fix.splitlines():
                conn.execute(line)
        wait_until(lambda: clinic.healed("horizon", "hot_standby_feedback"), 60, "the standby to let go")
        clinic.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        with session(standby.url()) as conn:
            conn.execute("ALTER SYSTEM SET hot_standby_feedback = on")
            conn.execute("ALTER SYSTEM SET primary_slot_name = 'replica'")
            conn.execute("SELECT pg_reload_conf()")
        wait_until(lambda: bool(clinic.sql(SLOT)), 60, "its slot")
    for _ in range(3):
        clinic.sql("SELECT pg_current_xact_id()")
    wait_until(lambda: not clinic.healed("horizon", "is used by nobody"), 60, "the slot to be left")
    assert "transactions of dead rows" in clinic.fault("horizon", "is used by nobody").what
    finds_and_fixes(clinic, "horizon", "the physical replication slot replica is used by nobody", "warning")


def test_a_user_that_may_not_see_others_transactions_is_told(guarded: Clinic) -> None:
    guarded.fix(guarded.fault("rights", "is a superuser"))
    finds_and_fixes(guarded, "horizon", "transactions of other users could not be looked at", "info")


def test_generations_that_would_come_again(any_postgres: int, clinic: Clinic) -> None:
    clinic.sql(
        "INSERT INTO outbox_leases (generation, claimed_by, claimed_at, expires_at, size, buckets, keys,"
        " firsts, lasts, ids) VALUES (500, 'w', now(), now(), 1, '{1}', '{k}', '{1}', '{1}', '{1}')"
    )
    finds_and_fixes(clinic, "generations", "the next generation would be 1, and 500", "error")
    assert clinic.sql("SELECT nextval('outbox_generation')") == [(501 + 2**32,)]
    ((actor, details),) = clinic.sql("SELECT actor, details FROM outbox_audit WHERE action = 'after_restore'")
    assert "@" in actor
    assert details == {"before": 501, "after": 501 + 2**32}


def test_the_generations_of_a_large_table_are_looked_up_where_its_newest_rows_are(clinic: Clinic) -> None:
    clinic.sql(
        "INSERT INTO outbox (partition_key, event_type, payload, status, attempts, completed_at)"
        " SELECT 'order:1', 'OrderPaid', '{}', 'completed', 1, now() - interval '2 days'"
        " + i * interval '860 milliseconds' FROM generate_series(1, 200000) i"
    )
    clinic.sql("VACUUM ANALYZE outbox")
    with closing(patient.reach(clinic.settings)) as conn:
        plan = conn.execute("EXPLAIN " + generations.last_sql(clinic.settings.table_name)).fetchall()
    assert "outbox_completed" in str(plan), "the BRIN index leads to the last hour"
    assert "Seq Scan on outbox o" not in str(plan)


def test_after_restore_in_a_dry_run_changes_nothing_and_says_what_it_would(clinic: Clinic) -> None:
    clinic.sql("SELECT setval('outbox_generation', 41)")
    done = relay("doctor", "--after-restore", "--dry-run", "--json", **clinic.environment)
    assert json.loads(done.stdout) == {
        "table": "public.outbox",
        "action": "after_restore",
        "dry_run": True,
        "before": 42,
        "after": 42 + 2**32,
    }
    assert clinic.sql("SELECT nextval('outbox_generation'), (SELECT count(*) FROM outbox_audit)") == [(42, 0)]


def test_after_restore_names_who_did_it(clinic: Clinic) -> None:
    relay("doctor", "--after-restore", "--actor", "jo", **clinic.environment)
    assert clinic.sql("SELECT actor, action FROM outbox_audit") == [("jo", "after_restore")]


def test_a_dry_run_without_after_restore_is_a_wrong_usage(clinic: Clinic) -> None:
    assert "--dry-run belongs to --after-restore" in failure(
        relay("doctor", "--dry-run", **clinic.environment), 2
    )


def test_a_relay_that_is_a_superuser(guarded: Clinic) -> None:
    finds_and_fixes(guarded, "rights", "is a superuser", "warning")
    assert "_relay_user:" in guarded.environment["RELAY_DATABASE_URL"]


def test_a_relay_that_owns_the_tables(guarded: Clinic) -> None:
    table = guarded.settings.table
    owner = f"{table}_owner"
    guarded.sql(f"CREATE ROLE {owner} LOGIN CREATEROLE")
    tables = guarded.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    for (name,) in tables:
        guarded.sql(f"ALTER TABLE {name} OWNER TO {owner}")
    guarded.environment["RELAY_DATABASE_URL"] = guarded.database.replace("postgres@", f"{owner}@")
    finding = guarded.fault("rights", f"owns the tables of public.{table}")
    assert finding.severity == "warning"
    guarded.environment["RELAY_DATABASE_URL"] = guarded.database  # who may make roles for everything
    guarded.fix(finding)
    assert guarded.healed("rights", "owns the tables")


@pytest.mark.parametrize("given", ["SELECT, UPDATE", "SELECT (payload)", "DELETE"])
def test_a_writer_that_may_do_more_than_write(guarded: Clinic, given: str) -> None:
    table = guarded.settings.table
    guarded.sql(roles_text(TableName("public", table)))
    assert guarded.healed("rights", "the writer")
    guarded.sql(f"GRANT {given} ON {table} TO {table}_writer")
    finds_and_fixes(guarded, "rights", f"the writer {table}_writer may also", "warning")
    kept = guarded.sql(f"SELECT has_column_privilege('{table}_writer', '{table}', 'payload', 'INSERT')")
    assert kept == [(True,)]


def test_everybody_may_read_what_is_written(guarded: Clinic) -> None:
    guarded.sql(f"GRANT SELECT, INSERT ON {guarded.settings.table} TO PUBLIC")
    finds_and_fixes(guarded, "rights", "the writer PUBLIC may also SELECT", "warning")


@pytest.mark.parametrize("seconds, severity", [("-90", "warning"), ("7200", "error")])
def test_a_clock_that_is_wrong(clinic: Clinic, seconds: str, severity: str) -> None:
    clock = {"FAULTS_CLOCK": seconds, "PYTHONPATH": f"{ROOT}/tests/faults/clock:{ROOT}"}
    done = relay("doctor", "--json", **clinic.environment, **clock)
    (finding,) = [each for each in json.loads(done.stdout)["findings"] if each["family"] == "clock"]
    assert finding["severity"] == severity
    ahead = "behind" if seconds.startswith("-") else "ahead of"
    found = re.match(rf"this machine's clock is ([\d.]+) s {ahead} the database's", finding["what"])
    assert found is not None, finding
    assert abs(float(found[1]) - abs(float(seconds))) < 5
    assert finding["fix"] == ["chronyc makestep"]
    assert clinic.faults("clock") == []


@pytest.mark.parametrize(
    "mode, severity, follows",
    [
        ("transaction", "info", "polls instead of listening"),
        ("session", "info", "occupies four of its sessions"),
        ("statement", "error", "cannot work through it"),
    ],
)
def test_a_pooler_and_what_follows(
    clinic: Clinic, pooler: Callable[..., str], mode: str, severity: str, follows: str
) -> None:
    clinic.environment["RELAY_DATABASE_URL"] = pooler(clinic.database, mode)
    finding = clinic.fault("database", f"a pooler in {mode} mode stands in between")
    assert finding.severity == severity
    assert follows in finding.why
    assert finding.fix.startswith("export RELAY_DATABASE_URL=")
    clinic.environment["RELAY_DATABASE_URL"] = clinic.database
    assert clinic.faults("database") == []


def test_a_lease_that_hardly_outlasts_the_publish_deadline(clinic: Clinic) -> None:
    clinic.environment |= {"RELAY_LEASE_SECONDS": "30", "RELAY_PUBLISH_SECONDS": "28"}
    finds_and_fixes(clinic, "settings", "the lease (30 s) hardly outlasts", "warning")
    assert clinic.settings.lease_seconds == 84


def test_a_lease_shorter_than_the_publish_deadline_is_refused_with_the_command_that_helps(
    clinic: Clinic,
) -> None:
    clinic.environment |= {"RELAY_LEASE_SECONDS": "20", "RELAY_PUBLISH_SECONDS": "30"}
    said = failure(relay("doctor", **clinic.environment), 2)
    assert "publish_seconds (30 s) must be shorter than lease_seconds (20 s)" in said
    clinic.shell(said.partition(": ")[2])
    assert clinic.faults("settings") == []


def test_a_heartbeat_that_may_not_be_late_once(clinic: Clinic) -> None:
    clinic.environment |= {"RELAY_HEARTBEAT_SECONDS": "20"}
    finds_and_fixes(clinic, "settings", "is less than two heartbeats", "warning")


def test_a_user_that_may_not_even_look(guarded: Clinic) -> None:
    user = f"{guarded.settings.table}_stranger"
    guarded.sql(f"CREATE ROLE {user} LOGIN")
    guarded.environment["RELAY_DATABASE_URL"] = guarded.database.replace("postgres@", f"{user}@")
    finding = guarded.fault("schema", f"{user} may not look at the tables")
    assert finding.severity == "error"
    guarded.environment["RELAY_DATABASE_URL"] = guarded.database
    guarded.fix(finding)
    guarded.environment["RELAY_DATABASE_URL"] = guarded.database.replace("postgres@", f"{user}@")
    assert guarded.faults("schema") == []
    assert guarded.faults("rights") == []


def test_a_reader_learns_what_it_may_not_see(guarded: Clinic) -> None:
    table = guarded.settings.table
    guarded.sql(roles_text(TableName("public", table)))
    guarded.sql(f"CREATE ROLE {table}_looks LOGIN IN ROLE {table}_reader")
    guarded.environment["RELAY_DATABASE_URL"] = guarded.database.replace("postgres@", f"{table}_looks@")
    found = guarded.examine()
    assert {finding.family for finding in found} == FAMILIES
    assert [finding for finding in found if finding.severity == "error"] == []
    assert "is not the relay's user" in guarded.fault("rights", "is not the relay's user").what


def test_a_database_that_does_not_answer_is_a_finding_within_seconds(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient, "CONNECT_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        clinic.environment["RELAY_DATABASE_URL"] = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        started = time.monotonic()
        finding = clinic.fault("database", "cannot connect to the database")
        assert time.monotonic() - started < 20
    assert finding.severity == "error"
    clinic.environment["RELAY_DATABASE_URL"] = clinic.database
    assert clinic.faults("database") == []


def test_an_examination_holds_up_nobody_and_waits_for_nobody(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(patient.LIMITS, "lock_timeout", "100ms")
    add(clinic.database, "e-1")
    with session(clinic.database, "BEGIN", "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE"):
        found = clinic.examine()
    assert any("not looked at" in finding.what for finding in found)
    assert not any("the check itself failed" in finding.why for finding in found)
