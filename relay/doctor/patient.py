"""The outbox under examination: its settings, a connection, and its table where there is one."""

from dataclasses import dataclass
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from relay.names import TableName
from relay.settings import Settings
from relay.store.connection import StoreConnection, Table, connect, transaction

CONNECT_SECONDS = 5
STATEMENT_SECONDS = 5

# What keeps an examination from holding up what it looks at.
LIMITS: dict[str, Any] = {
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "lock_timeout": "2s",
    "enable_seqscan": "on",
    "enable_bitmapscan": "on",  # the only way to a BRIN index
}


def reach(settings: Settings) -> StoreConnection:
    """A connection on which every statement has a time limit; RelayError where there is no server."""
    url = settings.database_url.get_secret_value()
    if "connect_timeout" not in conninfo_to_dict(url):
        url = make_conninfo(url, connect_timeout=CONNECT_SECONDS)
    return connect(url, "doctor", **LIMITS)


@dataclass(frozen=True)
class Patient:
    settings: Settings
    conn: StoreConnection
    table: Table

    @property
    def name(self) -> TableName:
        return self.table.name

    @property
    def schema(self) -> str:
        return self.table.name.schema or "public"

    def rows(self, statement: str, parameters: Any = None) -> list[dict[str, Any]]:
        with transaction(self.conn):
            return self.conn.cursor(row_factory=dict_row).execute(statement, parameters).fetchall()

    def row(self, statement: str, parameters: Any = None) -> dict[str, Any]:
        (row,) = self.rows(statement, parameters)
        return row
