"""The database of the demo: the outbox, the orders it is about, and billing's ledger.

On the throwaway server everything is in `public`. On a server of the user's everything is in a schema
made for this run and dropped with it: what is there already is never touched.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import Connection, sql

from relay.demo.postgres import PostgresServer
from relay.errors import RelayError
from relay.names import TableName, outbox_names
from relay.store.migrate import INBOX_TABLE, migrate

ORDERS = 200
CONNECT_SECONDS = 10

# The ledger has no constraint against an event that is applied twice: that is the inbox's to prevent.
TABLES = """
CREATE TABLE {orders} (
  id         int PRIMARY KEY,
  status     text NOT NULL DEFAULT 'open',
  payments   int NOT NULL DEFAULT 0,
  paid_cents bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO {orders} (id) SELECT generate_series(1, {count});
CREATE TABLE {ledger} (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id text NOT NULL,
  order_id int NOT NULL,
  cents    bigint NOT NULL
);
"""


@dataclass(frozen=True)
class Database:
    url: str
    schema: str = "public"

    @property
    def outbox(self) -> TableName:
        return TableName(self.schema, "outbox")

    @property
    def inbox(self) -> TableName:
        return TableName(self.schema, INBOX_TABLE)

    def connect(self) -> Connection[Any]:
        try:
            return psycopg.connect(
                self.url,
                autocommit=True,
                application_name="outbox-relay demo",
                connect_timeout=CONNECT_SECONDS,
            )
        except psycopg.Error as error:
            raise RelayError(f"cannot connect to the database: {first_line(error)}") from error

    def fill(self, text: str) -> str:
        """The statement with the names of this demo's tables."""
        names = outbox_names(self.outbox) | {word: (self.schema, word) for word in ("orders", "ledger")}
        identifiers = {word: sql.Identifier(*parts) for word, parts in names.items()}
        return sql.SQL(text).format(**identifiers, count=sql.Literal(ORDERS)).as_string(None)


@contextmanager
def throwaway(directory: Path) -> Iterator[Database]:
    """A server of our own with its data in `directory`."""
    with PostgresServer.embedded(within=directory) as server:
        database = Database(server.url())
        _create(database)
        yield database


@contextmanager
def on_server(url: str) -> Iterator[Database]:
    """A schema of our own on the user's server."""
    database = Database(url, f"outbox_relay_demo_{secrets.token_hex(4)}")
    name = sql.Identifier(database.schema)
    with database.connect() as conn:
        try:
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        except psycopg.errors.InsufficientPrivilege as error:
            raise RelayError(
                f"the role may not create a schema in this database: {first_line(error)}; "
                "GRANT CREATE ON DATABASE, or leave out --database-url"
            ) from error
    try:
        _create(database)
        yield database
    finally:
        with database.connect() as conn:
            conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(name))


def _create(database: Database) -> None:
    migrate(database.url, database.outbox)
    with database.connect() as conn:
        conn.execute(database.fill(TABLES))


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
