"""Creates and upgrades the tables of an outbox and of the inbox beside it.

Guarantees: everything happens in one transaction, under one lock per database, or not at all; every
statement names its schema, so that nobody's search_path can change what it means; tables that were
not made here are never touched. Each component records its own versions in a table of its own.

Fails with SchemaError: a schema newer than this program, a foreign table, a missing schema, a
PostgreSQL that is too old, a table that others hold too long.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import psycopg
from psycopg import Connection, sql

from relay.errors import SchemaError, SettingsError
from relay.names import TableName, inbox_names, outbox_names
from relay.schema_files import Migration, migrations
from relay.store.connection import connect, localise
from relay.store.sqltext import fill, fill_inbox

OLDEST_SERVER = 150000
DEFAULT_TABLE = TableName(None, "outbox")
INBOX_TABLE = "inbox_dedupe"
# Any number will do, as long as every migration of every outbox in a database takes the same.
MIGRATION_LOCK = int.from_bytes(b"relaymig")
TABLE_LOCK_TIMEOUT = "10s"

Component: TypeAlias = Literal["outbox", "inbox"]


class Applied(NamedTuple):
    component: Component
    version: int
    name: str


@dataclass(frozen=True)
class Step:
    """One migration with the statements that it runs, as they are sent to the server."""

    applied: Applied
    text: str


@dataclass(frozen=True)
class _Part:
    """One component at its place: its table, and the names of all that belongs to it."""

    component: Component
    name: TableName
    names: dict[str, tuple[str, ...]]

    @property
    def versions(self) -> TableName:
        return TableName(self.name.schema, self.names["versions"][-1])

    def fill(self, text: str) -> str:
        return fill(text, self.name) if self.component == "outbox" else fill_inbox(text, self.name)

    def known(self) -> list[Migration]:
        return migrations(self.component)


def migrate(
    database: str | Connection[Any], table: TableName = DEFAULT_TABLE, *, dry_run: bool = False
) -> list[Applied]:
    """Bring the tables up to this program's version; what was applied, oldest first.

    A dry run runs everything and takes it back. On a connection that is inside a transaction the
    migration is part of that transaction.
    """
    return [step.applied for step in steps(database, table, dry_run=dry_run)]


def steps(database: str | Connection[Any], table: TableName, *, dry_run: bool) -> list[Step]:
    """What `migrate` does, with the text of each step."""
    with _connection(database) as conn:
        _require_server(conn)
        done: list[Step] = []
        try:
            with conn.transaction(force_rollback=dry_run):
                localise(conn)
                _lock(conn)
                for part in _parts(_locate(conn, table)):
                    done += _upgrade(conn, part)
        except psycopg.errors.LockNotAvailable as error:
            raise SchemaError(
                f"another session holds the tables of {table} and nothing was changed: "
                "end its transaction, or try again when there is less traffic"
            ) from error
        return done


def require_current(conn: Connection[Any], table: TableName) -> None:
    """SchemaError unless the tables are exactly of the version that this program works with."""
    _require_server(conn)
    for part in _parts(_locate(conn, table)):
        if len(_recorded(conn, part)) < len(part.known()):
            raise SchemaError(f"the tables of {part.name} are missing or too old: run 'relay migrate'")


def installed(conn: Connection[Any], table: TableName) -> dict[Component, int]:
    """The version of each component as the database records it; 0 where there is none."""
    return {part.component: len(_recorded(conn, part)) for part in _parts(_locate(conn, table))}


def sql_text(table: TableName) -> str:
    """All statements of a fresh installation, for people who run their own migrations."""
    place = table if table.schema else TableName("public", table.table)
    fresh = [_step(part, file) for part in _parts(place) for file in part.known()]
    head = f"-- What 'relay migrate' makes (for PostgreSQL {OLDEST_SERVER // 10000} or newer).\n"
    return head + "BEGIN;\n\n" + "\n".join(step.text for step in fresh) + "\nCOMMIT;\n"


@contextmanager
def _connection(database: str | Connection[Any]) -> Iterator[Connection[Any]]:
    if isinstance(database, str):
        with connect(
            database, "migrate", statement_timeout="0", lock_timeout="0", enable_seqscan="on"
        ) as conn:
            yield conn
    else:
        yield database


def _require_server(conn: Connection[Any]) -> None:
    version = conn.info.server_version
    if version < OLDEST_SERVER:
        raise SchemaError(
            f"PostgreSQL {version // 10000} is too old: the relay needs {OLDEST_SERVER // 10000} or newer"
        )


def _lock(conn: Connection[Any]) -> None:
    row = conn.execute("SHOW transaction_isolation").fetchone()
    if row is None or row[0] != "read committed":
        # What follows must see what the previous owner of the lock has committed.
        raise SchemaError("migrate needs a READ COMMITTED transaction: open one with that isolation level")
    conn.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])


_SCHEMA_OF = """
SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""


def _locate(conn: Connection[Any], table: TableName) -> TableName:
    """The table with its schema: where the search_path finds an outbox, else where it would be created."""
    if table.schema is not None:
        if conn.execute("SELECT FROM pg_namespace WHERE nspname = %s", [table.schema]).fetchone() is None:
            raise SchemaError(f"there is no schema {table.schema} in this database: create it first")
        return table
    versions = sql.Identifier(*outbox_names(table)["versions"]).as_string(conn)
    row = conn.execute(_SCHEMA_OF, [versions]).fetchone()
    if row is None:
        row = conn.execute("SELECT current_schema()").fetchone()
    if row is None or row[0] is None:
        raise SchemaError(
            f"no schema of the search_path exists: name the table with its schema, as in 'public.{table}'"
        )
    return TableName(row[0], table.table)


def _parts(table: TableName) -> list[_Part]:
    inbox = TableName(table.schema, INBOX_TABLE)
    if table.table == INBOX_TABLE:
        raise SettingsError(f"table = {table} cannot be used: {INBOX_TABLE} is the table of consumers")
    parts = [_Part("outbox", table, outbox_names(table)), _Part("inbox", inbox, inbox_names(inbox))]
    tags = {tag for part in parts for file in part.known() for tag in re.findall(r"\$\w*\$", file.text)}
    for word in sorted(tags | {"%"}):  # would end a function's body, or be taken for a parameter
        if word in f"{table.schema} {table.table}":
            raise SettingsError(f"table = {table} cannot be used: choose a name without {word}")
    return parts


_RECORDED = "SELECT version, name FROM {versions} ORDER BY version"


def _recorded(conn: Connection[Any], part: _Part) -> list[tuple[int, str]]:
    """Versions that the database has; SchemaError if they are not this program's."""
    if not _exists(conn, part.versions):
        return []
    try:
        with conn.transaction():
            rows = conn.execute(part.fill(_RECORDED)).fetchall()
    except (psycopg.errors.UndefinedColumn, psycopg.errors.WrongObjectType) as error:
        raise _foreign(part, [part.versions.table]) from error
    known = [(migration.version, migration.name) for migration in part.known()]
    if len(rows) > len(known):
        raise SchemaError(
            f"the tables of {part.name} are of version {rows[-1][0]} and this program knows {len(known)}: "
            "upgrade relay"
        )
    if rows != known[: len(rows)]:
        raise _foreign(part, [part.versions.table])
    if rows and not _exists(conn, part.name):
        raise SchemaError(
            f"{part.versions} says that {part.name} exists but it does not: drop {part.versions} "
            "and what else is left of it, then run 'relay migrate'"
        )
    return rows


def _exists(conn: Connection[Any], name: TableName) -> bool:
    identifier = sql.Identifier(*name.parts()).as_string(conn)
    row = conn.execute("SELECT to_regclass(%s) IS NOT NULL", [identifier]).fetchone()
    return row is not None and bool(row[0])


_TAKEN = """
WITH place AS (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s)
SELECT relname FROM place JOIN pg_class ON relnamespace = place.oid WHERE relname = ANY(%(names)s)
UNION SELECT typname FROM place JOIN pg_type ON typnamespace = place.oid WHERE typname = ANY(%(names)s)
UNION SELECT proname FROM place JOIN pg_proc ON pronamespace = place.oid WHERE proname = ANY(%(names)s)
ORDER BY 1
"""


def _require_free(conn: Connection[Any], part: _Part) -> None:
    # Constraints other than the primary key share no name space with tables.
    names = {parts[-1] for word, parts in part.names.items() if word[:2] != "c_" or word == "c_event_id"}
    names.discard(part.versions.table)  # found empty: ours to use
    rows = conn.execute(_TAKEN, {"schema": part.name.schema, "names": list(names)}).fetchall()
    if rows:
        raise _foreign(part, [row[0] for row in rows])


def _foreign(part: _Part, names: Sequence[str]) -> SchemaError:
    found = ", ".join(f"{part.name.schema}.{name}" for name in names)
    return SchemaError(
        f"{found} exists and was not made by 'relay migrate': rename it, or choose another table"
    )


def _upgrade(conn: Connection[Any], part: _Part) -> list[Step]:
    recorded = _recorded(conn, part)
    if not recorded:
        _require_free(conn, part)
    conn.execute("SELECT set_config('lock_timeout', %s, true)", [TABLE_LOCK_TIMEOUT])
    todo = [_step(part, file) for file in part.known()[len(recorded) :]]
    for step in todo:
        conn.execute(step.text)
    return todo


_VERSIONS = """
CREATE TABLE IF NOT EXISTS {versions} (
  version    int PRIMARY KEY,
  name       text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
);
"""
_RECORD = "INSERT INTO {} (version, name) VALUES ({}, {});\n"


def _step(part: _Part, file: Migration) -> Step:
    versions = part.fill(_VERSIONS) if file.version == 1 else ""
    record = sql.SQL(_RECORD).format(sql.Identifier(*part.names["versions"]), file.version, file.name)
    text = part.fill(file.text).rstrip() + "\n" + versions + record.as_string(None)
    return Step(Applied(part.component, file.version, file.name), text)
