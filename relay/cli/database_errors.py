"""Says in a sentence what the database refused and what to do about it, down to the GRANT that is missing."""

import getpass
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from relay.names import TableName
from relay.settings import Settings
from relay.store.roles import role_name

Part = Literal["reader", "operator", "relay", "owner"]


class _Actor(NamedTuple):
    """Who does what: decides which grant helps."""

    user: str
    table: TableName
    part: Part


_actor: ContextVar[_Actor | None] = ContextVar("actor", default=None)


@contextmanager
def acting(settings: Settings, part: Part) -> Iterator[None]:
    """While inside, a refusal by the database is explained for this part. Left set where it fails."""
    parameters = conninfo_to_dict(settings.database_url.get_secret_value())
    user = parameters.get("user") or os.environ.get("PGUSER") or _operating_system_user()
    if part != "relay":
        # The driver's own warnings, for example after Ctrl-C, say nothing that our sentence does not.
        logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    token = _actor.set(_Actor(str(user), settings.table_name, part))
    yield
    _actor.reset(token)


def _operating_system_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name; libpq says what it makes of that
        return str(os.getuid())


def explain_database_error(error: Exception) -> str:
    said = _first_line(error)
    match error:
        case psycopg.errors.InsufficientPrivilege():
            return f"{said}: {_grant(said)}"
        case psycopg.errors.ReadOnlySqlTransaction():
            return f"{said}: connect to the primary, for example with ?target_session_attrs=read-write"
        case psycopg.errors.QueryCanceled():
            return f"the database ended the statement ({said}): try again when it is less busy"
        case psycopg.errors.UndefinedTable() | psycopg.errors.UndefinedColumn():
            return f"{said}: run 'relay migrate'"
        case psycopg.OperationalError():
            return f"lost the connection to the database: {said}"
        case _:
            return f"the database refused: {said}"


_MADE_BY = "'relay sql --roles' makes that role"


def _grant(said: str) -> str:
    actor = _actor.get()
    if actor is None:
        return "'relay sql --roles' prints the grants that each part needs"
    user = sql.Identifier(actor.user).as_string(None)
    if actor.part == "owner":
        schema = re.search(r"permission denied for schema (.+)", said)
        if schema:
            return f"GRANT CREATE ON SCHEMA {sql.Identifier(schema[1]).as_string(None)} TO {user}"
        return "run it as the owner of the tables"
    if schema := re.search(r"permission denied for schema (.+)", said):
        return f"GRANT USAGE ON SCHEMA {sql.Identifier(schema[1]).as_string(None)} TO {user}"
    role = sql.Identifier(role_name(actor.table, actor.part)).as_string(None)
    table = re.search(r"permission denied for (?:table|view) (.+)", said)
    if table and actor.part == "reader":
        names = [actor.table.schema, table[1]] if actor.table.schema else [table[1]]
        name = sql.Identifier(*names).as_string(None)
        return f"GRANT SELECT ON {name} TO {user}, or GRANT {role} TO {user} ({_MADE_BY})"
    return f"GRANT {role} TO {user} ({_MADE_BY})"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
