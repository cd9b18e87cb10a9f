"""Migrations: what they make, what they refuse, and what an upgrade leaves behind."""

import os
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from relay import schema_files
from relay.demo.postgres import PostgresServer
from relay.errors import RelayError, SchemaError, SettingsError
from relay.names import TableName, outbox_names
from relay.schema_files import Migration, migrations
from relay.store import migrate as migrate_module
from relay.store.migrate import Applied, installed, migrate, require_current, sql_text, steps

OUTBOX = TableName(None, "outbox")
ODD = TableName.parse('"My ""sales"" schema"."Out.Box 1"')
EVERYTHING = [("outbox", m.version, m.name) for m in migrations("outbox")] + [
    ("inbox", m.version, m.name) for m in migrations("inbox")
]


def connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True)


def program(name: str, server_version: int) -> str:
    """A client program that is at least as new as the server."""
    folders = [*Path("/usr/lib/postgresql").glob("*/bin"), PostgresServer.embedded().bin_dir]
    found = [str(folder / name) for folder in folders if (folder / name).exists()]
    found += [path] if (path := shutil.which(name)) else []
    for path in found:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        if int(text.split()[2].split(".")[0]) >= server_version:
            return path
    raise AssertionError(f"{name} of version {server_version} or newer was not found")


def dump(url: str, *options: str) -> bytes:
    with connect(url) as conn:
        version = conn.info.server_version // 10000
    argv = [program("pg_dump", version), "--no-owner", *options, url]
    return subprocess.run(argv, capture_output=True, check=True).stdout


def schema_of(url: str) -> list[str]:
    """The schema as pg_dump prints it, without its random tokens."""
    lines = dump(url, "--schema-only").decode().splitlines()
    return [line for line in lines if not line.startswith(("\\restrict", "\\unrestrict", "--"))]


def empty_again(conn: psycopg.Connection[Any]) -> None:
    conn.execute("DROP SCHEMA public CASCADE")
    conn.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
    conn.execute("COMMENT ON SCHEMA public IS 'standard public schema'")
    conn.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")


def relations(url: str) -> set[tuple[str, str]]:
    with connect(url) as conn:
        return set(
            conn.execute(
                "SELECT n.nspname::text, c.relname::text"
                " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'"
            )
        )


def insert(conn: psycopg.Connection[Any], table: TableName, key: str, event_id: str) -> None:
    conn.execute(
        sql.SQL(
            "INSERT INTO {} (partition_key, event_type, payload, idempotency_key)"
            " VALUES (%s, 'E', '{{}}', %s)"
        ).format(sql.Identifier(*table.parts())),
        [key, event_id],
    )


def test_migrate_makes_everything_once(any_postgres: int, empty_database: str) -> None:
    assert migrate(empty_database, OUTBOX) == EVERYTHING
    assert migrate(empty_database, OUTBOX) == []
    with connect(empty_database) as conn:
        require_current(conn, OUTBOX)
        assert installed(conn, OUTBOX) == {
            "outbox": len(migrations("outbox")),
            "inbox": len(migrations("inbox")),
        }
        insert(conn, OUTBOX, "order:1", "evt-1")


def test_the_documented_insert_needs_nothing_but_its_four_columns(
    any_postgres: int, empty_database: str
) -> None:
    migrate(empty_database, OUTBOX)
    with connect(empty_database) as conn:
        conn.execute(
            """
            INSERT INTO outbox (partition_key, event_type, payload, idempotency_key)
            VALUES ('order:9182', 'OrderPaid',
                    '{"order_id":9182,"paid_at":"2026-07-01T12:00:00Z"}'::jsonb, 'evt-order-9182-paid-v1')
            """
        )
        row = conn.execute(
            "SELECT status::text, attempts, max_attempts, partition_bucket FROM outbox"
        ).fetchone()
    assert row is not None
    assert row[:3] == ("pending", 0, 5)
    assert 0 <= row[3] < 1024


def test_event_ids_made_by_the_database_are_uuids_of_version_7_in_time_order(
    any_postgres: int, empty_database: str
) -> None:
    migrate(empty_database, OUTBOX)
    with connect(empty_database) as conn:
        made = [
            conn.execute(
                "INSERT INTO outbox (partition_key, event_type, payload) VALUES ('k', 'E', '{}')"
                " RETURNING idempotency_key, extract(epoch FROM clock_timestamp()) * 1000"
            ).fetchone()
            for _ in range(20)
        ]
    for row in made:
        assert row is not None
        event_id, milliseconds = row
        assert event_id[14] == "7"
        assert event_id[19] in "89ab"
        assert abs(int(event_id[:8] + event_id[9:13], 16) - float(milliseconds)) < 1000
    assert len({row[0] for row in made if row}) == 20


def test_concurrent_migrates_make_everything_exactly_once(any_postgres: int, empty_database: str) -> None:
    together = threading.Barrier(4)

    def one(_: int) -> list[Applied]:
        together.wait(30)
        return migrate(empty_database, OUTBOX)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, range(4)))
    assert sorted(map(len, results)) == [0, 0, 0, len(EVERYTHING)]


def test_a_migrate_waits_for_the_one_before_it_and_then_sees_its_tables(empty_database: str) -> None:
    with connect(empty_database) as first, ThreadPoolExecutor(1) as pool:
        with first.transaction():
            assert migrate(first, OUTBOX) == EVERYTHING
            second = pool.submit(migrate, empty_database, OUTBOX)
            waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            with connect(empty_database) as watcher:
                while watcher.execute(waiting).fetchone() is None:
                    assert not second.done()
        assert second.result(30) == []


def test_a_dry_run_says_what_it_would_do_and_leaves_nothing(any_postgres: int, empty_database: str) -> None:
    before = schema_of(empty_database)
    planned = steps(empty_database, OUTBOX, dry_run=True)
    assert [step.applied for step in planned] == EVERYTHING
    assert 'CREATE TABLE "public"."outbox" (' in planned[0].text
    assert migrate(empty_database, OUTBOX, dry_run=True) == EVERYTHING
    assert schema_of(empty_database) == before


def test_a_migration_that_fails_leaves_nothing(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = schema_files.migrations

    def with_a_broken_one(component: str) -> list[Migration]:
        good = real(component)
        return [*good, Migration(len(good) + 1, "broken", "SELECT 1 / 0;")] if component == "inbox" else good

    before = schema_of(empty_database)
    monkeypatch.setattr(migrate_module, "migrations", with_a_broken_one)
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(empty_database, OUTBOX)
    assert schema_of(empty_database) == before


@pytest.mark.parametrize("component", ["outbox", "inbox"])
def test_every_earlier_version_upgraded_equals_a_fresh_install(
    any_postgres: int, postgres_url: str, empty_database: str, monkeypatch: pytest.MonkeyPatch, component: str
) -> None:
    migrate(empty_database, OUTBOX)
    fresh = schema_of(empty_database)
    assert any("CREATE TABLE public.outbox " in line for line in fresh)
    real = schema_files.migrations
    for version in range(len(real(component))):

        def only(which: str, version: int = version) -> list[Migration]:
            return real(which)[: max(version, 1)] if which == component else real(which)

        with connect(empty_database) as conn:
            empty_again(conn)
        with monkeypatch.context() as patch:
            patch.setattr(migrate_module, "migrations", only)
            migrate(empty_database, OUTBOX)
        migrate(empty_database, OUTBOX)
        assert schema_of(empty_database) == fresh


def test_the_printed_sql_makes_the_same_as_migrate(any_postgres: int, empty_database: str) -> None:
    migrate(empty_database, OUTBOX)
    by_migrate = schema_of(empty_database)
    with connect(empty_database) as conn:
        empty_again(conn)
        psql = [program("psql", 1), "-X", "-q", "-v", "ON_ERROR_STOP=1", empty_database]
        # A psql without .psqlrc and with a search_path that has nothing in it.
        environment = os.environ | {"PGOPTIONS": "-c search_path="}
        subprocess.run(psql, input=sql_text(OUTBOX), text=True, check=True, env=environment)
        require_current(conn, OUTBOX)
    assert schema_of(empty_database) == by_migrate
    assert migrate(empty_database, OUTBOX) == []


@pytest.mark.parametrize(
    "name", ["outbox", "outbox_archive", "outbox_fresh", "outbox_event_id", "inbox_dedupe"]
)
def test_a_table_that_migrate_did_not_make_is_refused_and_left_alone(empty_database: str, name: str) -> None:
    with connect(empty_database) as conn:
        conn.execute(sql.SQL("CREATE TABLE {} (mine int)").format(sql.Identifier(name)))
        before = relations(empty_database)
        with pytest.raises(SchemaError, match=rf"public\.{name} exists and was not made by 'relay migrate'"):
            migrate(empty_database, OUTBOX)
    assert relations(empty_database) == before


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TYPE outbox_status AS ENUM ('mine')",
        "CREATE FUNCTION outbox_new_event_id() RETURNS text LANGUAGE sql AS $$ SELECT 'mine' $$",
        "CREATE TABLE outbox_versions (mine int)",
        "CREATE TABLE outbox_versions AS SELECT 1 AS version, 'mine' AS name",
    ],
)
def test_other_foreign_objects_of_these_names_are_refused(empty_database: str, statement: str) -> None:
    with connect(empty_database) as conn:
        conn.execute(statement)
        with pytest.raises(SchemaError, match="was not made by 'relay migrate'"):
            migrate(empty_database, OUTBOX)


def test_a_table_that_only_shares_a_constraints_name_is_no_obstacle(empty_database: str) -> None:
    with connect(empty_database) as conn:
        conn.execute("CREATE TABLE outbox_state (mine int)")
    assert migrate(empty_database, OUTBOX) == EVERYTHING


def test_a_schema_of_a_newer_program_is_refused(database: str) -> None:
    with connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox_versions (version, name)"
            " SELECT max(version) + 1, 'later' FROM outbox_versions"
        )
        with pytest.raises(SchemaError, match="upgrade relay"):
            migrate(database, OUTBOX)
        with pytest.raises(SchemaError, match="upgrade relay"):
            require_current(conn, OUTBOX)


def test_require_current_asks_for_migrate_where_tables_are_missing_or_older(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(empty_database) as conn:
        with pytest.raises(SchemaError, match="run 'relay migrate'"):
            require_current(conn, OUTBOX)
        migrate(empty_database, OUTBOX)
        require_current(conn, OUTBOX)
        real = schema_files.migrations
        more = [*real("outbox"), Migration(len(real("outbox")) + 1, "next", "SELECT 1;")]
        monkeypatch.setattr(
            migrate_module, "migrations", lambda part: more if part == "outbox" else real(part)
        )
        with pytest.raises(SchemaError, match="run 'relay migrate'"):
            require_current(conn, OUTBOX)
        assert migrate(empty_database, OUTBOX) == [("outbox", len(more), "next")]
        require_current(conn, OUTBOX)


def test_a_table_that_was_dropped_behind_its_versions_is_reported(database: str) -> None:
    with connect(database) as conn:
        conn.execute("DROP TABLE outbox CASCADE")
        with pytest.raises(
            SchemaError, match=r"public\.outbox_versions says that public\.outbox exists but it does not"
        ):
            migrate(database, OUTBOX)


def test_a_missing_schema_is_refused(empty_database: str) -> None:
    with pytest.raises(SchemaError, match="there is no schema sales in this database: create it first"):
        migrate(empty_database, TableName("sales", "outbox"))
    with connect(empty_database) as conn:
        conn.execute("DROP SCHEMA public")
    with pytest.raises(SchemaError, match="no schema of the search_path exists"):
        migrate(empty_database, OUTBOX)


def test_a_server_that_is_too_old_is_refused(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate_module, "OLDEST_SERVER", 990000)
    with pytest.raises(SchemaError, match="is too old: the relay needs 99 or newer"):
        migrate(empty_database, OUTBOX)


@pytest.mark.parametrize("text", ["inbox_dedupe", "out%box", "out$fn$box", "$do$"])
def test_names_that_cannot_work_are_refused(empty_database: str, text: str) -> None:
    with pytest.raises(SettingsError, match=r"cannot be used|is not a table name"):
        migrate(empty_database, TableName.parse(text))


def test_a_transaction_that_could_not_see_the_previous_migrate_is_refused(empty_database: str) -> None:
    with connect(empty_database) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(SchemaError, match="READ COMMITTED"):
            migrate(conn, OUTBOX)


def test_migrate_on_a_connection_is_part_of_its_transaction(empty_database: str) -> None:
    with connect(empty_database) as conn:
        with conn.transaction(force_rollback=True):
            assert migrate(conn, OUTBOX) == EVERYTHING
        assert relations(empty_database) == set()


def test_an_upgrade_gives_up_where_others_hold_the_table(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = schema_files.migrations
    more = [*real("outbox"), Migration(len(real("outbox")) + 1, "next", "LOCK TABLE {outbox};")]
    monkeypatch.setattr(migrate_module, "migrations", lambda part: more if part == "outbox" else real(part))
    monkeypatch.setattr(migrate_module, "TABLE_LOCK_TIMEOUT", "50ms")
    with connect(database) as holder, holder.transaction():
        insert(holder, OUTBOX, "k", "held")
        with pytest.raises(SchemaError, match="another session holds the tables of outbox"):
            migrate(database, OUTBOX)
    monkeypatch.undo()
    assert migrate(database, OUTBOX) == []


def test_the_search_path_finds_an_existing_outbox_before_a_new_one_is_made(empty_database: str) -> None:
    migrate(empty_database, OUTBOX)
    with connect(empty_database) as conn:
        conn.execute("CREATE SCHEMA mine")
        conn.execute("SET search_path = mine, public")
        assert migrate(conn, OUTBOX) == []
        assert migrate(conn, TableName("mine", "outbox")) == EVERYTHING


def test_two_outboxes_in_one_database_never_meet(any_postgres: int, empty_database: str) -> None:
    with connect(empty_database) as conn:
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(ODD.schema or "")))
        migrate(empty_database, OUTBOX)
        before = relations(empty_database)
        assert migrate(empty_database, ODD) == EVERYTHING
        new = relations(empty_database) - before
        assert {schema for schema, _ in new} == {ODD.schema}
        assert (ODD.schema, "Out.Box 1_leases") in new
        insert(conn, OUTBOX, "order:1", "same-id")
        insert(conn, ODD, "order:1", "same-id")
        require_current(conn, ODD)
        conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(ODD.schema or "")))
        insert(conn, OUTBOX, "order:1", "another")
    assert relations(empty_database) == before


def test_two_outboxes_of_one_schema_share_its_inbox(empty_database: str) -> None:
    migrate(empty_database, OUTBOX)
    assert migrate(empty_database, TableName(None, "sales")) == [a for a in EVERYTHING if a[0] == "outbox"]


def test_dump_and_restore_keep_ids_sequences_and_order(
    any_postgres: int, empty_database: str, database: str
) -> None:
    rows = (
        "SELECT id, partition_key, partition_bucket, idempotency_key, status::text, created_at, payload::text"
        " FROM outbox ORDER BY id"
    )
    with connect(database) as conn:
        for number in range(50):
            insert(conn, OUTBOX, f"order:{number % 7}", f"evt-{number}")
        conn.execute("DELETE FROM outbox WHERE id = 20")
        conn.execute("SELECT nextval('outbox_generation') FROM generate_series(1, 9)")
        before = conn.execute(rows).fetchall()
    archive = dump(database, "--format=custom")
    restore = [
        program("pg_restore", any_postgres),
        "--exit-on-error",
        "--no-owner",
        "--dbname",
        empty_database,
    ]
    subprocess.run(restore, input=archive, check=True)
    with connect(empty_database) as conn:
        require_current(conn, OUTBOX)
        assert conn.execute(rows).fetchall() == before
        insert(conn, OUTBOX, "order:1", "after")
        assert conn.execute("SELECT id FROM outbox WHERE idempotency_key = 'after'").fetchone() == (51,)
        assert conn.execute("SELECT nextval('outbox_generation')").fetchone() == (10,)
        conn.execute("UPDATE outbox_wake SET asleep_until = 'infinity'")
        channel = conn.execute("SELECT 'relay_wake_' || 'outbox'::regclass::oid").fetchone()
        assert channel is not None
        conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel[0])))
        insert(conn, OUTBOX, "order:1", "wakes")
        assert [note.channel for note in conn.notifies(timeout=10, stop_after=1)] == [channel[0]]


CHANGED_BY_A_CLAIM = {
    "status",
    "claimed_by",
    "claimed_at",
    "lease_expires_at",
    "lease_generation",
    "attempts",
    "losses",
}


def columns_of_indexes(conn: psycopg.Connection[Any]) -> dict[str, set[str]]:
    """Every column that each index of the outbox names, in its keys, expressions or predicate."""
    rows = conn.execute(
        """
        SELECT i.indexrelid::regclass::text, array_agg(DISTINCT a.attname::text)
        FROM pg_index i JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
          AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid > 0
        JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE i.indrelid = 'outbox'::regclass GROUP BY 1
        UNION ALL
        SELECT i.indexrelid::regclass::text, array_agg(a.attname::text) FROM pg_index i
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
        WHERE i.indrelid = 'outbox'::regclass GROUP BY 1
        """
    ).fetchall()
    found: dict[str, set[str]] = {}
    for index, columns in rows:
        found.setdefault(index, set()).update(columns)
    return found


def test_no_index_names_a_column_that_a_claim_changes(any_postgres: int, database: str) -> None:
    with connect(database) as conn:
        found = columns_of_indexes(conn)
        assert {"outbox_fresh", "outbox_later", "outbox_parked", "outbox_event_id"} <= set(found)
        assert {
            index: columns & CHANGED_BY_A_CLAIM
            for index, columns in found.items()
            if columns & CHANGED_BY_A_CLAIM
        } == {}
        conn.execute("CREATE INDEX wrong ON outbox (id) WHERE status = 'dead_letter'")
        assert "status" in columns_of_indexes(conn)["wrong"]


PENDING = {"status": "pending"}
PROCESSING = {
    "status": "processing",
    "claimed_by": "w1",
    "claimed_at": "2026-01-01Z",
    "lease_expires_at": "2026-01-01Z",
    "lease_generation": 1,
    "attempts": 1,
}
COMPLETED = {"status": "completed", "completed_at": "2026-01-01Z"}
DEAD_LETTER = {"status": "dead_letter", "completed_at": "2026-01-01Z", "parked_at": "2026-01-01Z"}
FAILED = {"status": "failed", "parked_at": "2026-01-01Z"}
LONG = "x" * 256

RIGHT: list[dict[str, Any]] = [
    PENDING,
    PROCESSING,
    COMPLETED,
    COMPLETED | {"claimed_by": "w1"},
    DEAD_LETTER,
    FAILED,
    {"partition_key": "x" * 255, "event_type": "é" * 127, "headers": '{"a": "b"}', "destination": "x" * 2048},
    {"headers": "{}"},
]
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("state", PENDING | {"claimed_by": "w1"}),
    ("state", PENDING | {"lease_expires_at": "2026-01-01Z"}),
    ("state", PENDING | {"completed_at": "2026-01-01Z"}),
    ("state", PENDING | {"parked_at": "2026-01-01Z"}),
    *[
        ("state", {k: v for k, v in PROCESSING.items() if k != gone})
        for gone in PROCESSING
        if gone != "status"
    ],
    ("state", PROCESSING | {"completed_at": "2026-01-01Z"}),
    ("state", PROCESSING | {"parked_at": "2026-01-01Z"}),
    ("state", {"status": "completed"}),
    ("state", COMPLETED | {"parked_at": "2026-01-01Z"}),
    ("state", COMPLETED | {"lease_expires_at": "2026-01-01Z"}),
    ("state", {"status": "dead_letter", "parked_at": "2026-01-01Z"}),
    ("state", {"status": "dead_letter", "completed_at": "2026-01-01Z"}),
    ("state", DEAD_LETTER | {"lease_expires_at": "2026-01-01Z"}),
    ("state", {"status": "failed"}),
    ("state", FAILED | {"completed_at": "2026-01-01Z"}),
    ("state", FAILED | {"lease_expires_at": "2026-01-01Z"}),
    ("lengths", {"partition_key": ""}),
    ("lengths", {"partition_key": LONG}),
    ("lengths", {"partition_key": "é" * 128}),
    ("lengths", {"event_type": ""}),
    ("lengths", {"event_type": LONG}),
    ("lengths", {"idempotency_key": ""}),
    ("lengths", {"idempotency_key": LONG}),
    ("lengths", {"destination": ""}),
    ("lengths", {"destination": "x" * 2049}),
    ("headers_are_strings", {"headers": "[]"}),
    ("headers_are_strings", {"headers": '"text"'}),
    ("headers_are_strings", {"headers": "null"}),
    ("headers_are_strings", {"headers": '{"a": 1}'}),
    ("headers_are_strings", {"headers": '{"a": [1]}'}),
    ("headers_are_strings", {"headers": '{"a": {}}'}),
    ("headers_are_strings", {"headers": '{"a": null}'}),
    ("attempts_in_range", {"attempts": -1}),
    ("attempts_in_range", {"max_attempts": 0}),
    ("attempts_in_range", {"losses": -1}),
]


def insert_shape(conn: psycopg.Connection[Any], shape: dict[str, Any]) -> None:
    values = {"partition_key": "k", "event_type": "E", "payload": "{}"} | shape
    conn.execute(
        sql.SQL("INSERT INTO outbox ({}) VALUES ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(map(sql.Literal, values.values())),
        )
    )


def broken(conn: psycopg.Connection[Any], shape: dict[str, Any]) -> str | None:
    """The constraint that refuses the row; None where it was accepted."""
    try:
        insert_shape(conn, shape)
    except psycopg.errors.CheckViolation as error:
        return (error.diag.constraint_name or "").removeprefix("outbox_")
    return None


def test_constraints_accept_every_right_shape_and_no_wrong_one(any_postgres: int, database: str) -> None:
    with connect(database) as conn:
        for shape in RIGHT:
            insert_shape(conn, shape)
        assert [(broken(conn, shape), shape) for _, shape in WRONG] == WRONG


def test_headers_with_an_array_of_strings_are_refused(any_postgres: int, database: str) -> None:
    with connect(database) as conn:
        assert broken(conn, {"headers": '{"a": ["b"]}'}) == "headers_are_strings"


def test_ids_and_buckets_cannot_be_supplied(database: str) -> None:
    with connect(database) as conn:
        for column in ("id", "partition_bucket"):
            with pytest.raises(psycopg.errors.GeneratedAlways):
                insert_shape(conn, {column: 1})


def test_an_event_id_is_in_the_table_once(database: str) -> None:
    with connect(database) as conn:
        insert(conn, OUTBOX, "a", "evt-1")
        with pytest.raises(psycopg.errors.UniqueViolation):
            insert(conn, OUTBOX, "b", "evt-1")


def test_every_name_of_the_outbox_is_used_by_its_migrations() -> None:
    texts = "".join(migration.text for migration in migrations("outbox"))
    assert [word for word in outbox_names(OUTBOX) if f"{{{word}}}" not in texts] == ["versions"]


def test_a_database_that_does_not_answer_is_one_sentence() -> None:
    with pytest.raises(RelayError, match="cannot connect to the database"):
        migrate("postgresql://postgres@127.0.0.1:1/none", OUTBOX)
