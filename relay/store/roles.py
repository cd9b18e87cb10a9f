"""The roles that each party needs, as SQL to read, adapt and run: nobody gets more than their part.

Group roles without login, named after the outbox: `outbox_writer` may only INSERT what a writer
supplies, `outbox_relay` runs the relay and cannot change what was written, `outbox_operator` acts on events
that are not in flight and pauses others, without changing what they say either, `outbox_reader` looks,
`outbox_consumer` dedupes. Running the text twice changes nothing.
"""

from typing import Literal, TypeAlias

from psycopg import sql

from relay.names import TableName, inbox_names
from relay.store.migrate import INBOX_TABLE
from relay.store.sqltext import fill

Role: TypeAlias = Literal["writer", "relay", "operator", "reader", "consumer"]

_CREATE = """
DO $do$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {name}) THEN
    CREATE ROLE {role} NOLOGIN;
  END IF;
END $do$;
"""

_GRANTS = """
-- Writers: INSERT alone, and only of what a writer decides. Status, leases and attempts are out of reach.
GRANT USAGE ON SCHEMA {schema} TO {writer};
GRANT INSERT (partition_key, event_type, payload, headers, destination, idempotency_key, available_at,
  max_attempts) ON {outbox} TO {writer};
GRANT EXECUTE ON FUNCTION {new_event_id}() TO {writer};

-- The relay: claims, settles and prunes. It can neither write an event nor change what one says.
GRANT USAGE ON SCHEMA {schema} TO {relay};
GRANT SELECT, DELETE ON {outbox} TO {relay};
GRANT UPDATE (status, attempts, losses, available_at, claimed_by, claimed_at, lease_expires_at,
  lease_generation, completed_at, parked_at, last_error, receipt) ON {outbox} TO {relay};
GRANT SELECT, INSERT, UPDATE, DELETE ON {leases}, {workers}, {pauses} TO {relay};
GRANT SELECT, INSERT, DELETE ON {archive} TO {relay};
GRANT SELECT, UPDATE ON {wake} TO {relay};
GRANT USAGE, UPDATE ON SEQUENCE {generation} TO {relay};
GRANT SELECT ON {versions}, {inbox_versions} TO {relay};
GRANT SELECT, DELETE ON {inbox}, {replays}, {fences} TO {relay};
GRANT SELECT, UPDATE, DELETE ON {dead_letters} TO {relay};

-- Operators: relay retry, skip, replay, pause, resume, prune, doctor. They look as readers do. The audit they
-- can add to and not change; what an event says is out of their reach.
GRANT USAGE ON SCHEMA {schema} TO {operator};
GRANT SELECT ON {outbox}, {archive}, {leases}, {workers}, {pauses}, {audit}, {wake}, {versions}, {inbox},
  {replays}, {fences}, {dead_letters}, {inbox_versions} TO {operator};
GRANT UPDATE (status, attempts, losses, available_at, claimed_by, lease_expires_at, completed_at, parked_at,
  redriven_at, last_error) ON {outbox} TO {operator};
GRANT DELETE ON {outbox}, {archive}, {inbox}, {replays}, {fences} TO {operator};
GRANT UPDATE, DELETE ON {dead_letters} TO {operator};
GRANT INSERT, UPDATE, DELETE ON {pauses} TO {operator};
GRANT INSERT ON {audit} TO {operator};
-- doctor --after-restore moves the generations ahead.
GRANT UPDATE ON {wake} TO {operator};
GRANT USAGE, UPDATE ON SEQUENCE {generation} TO {operator};

-- Readers: relay status, events, show.
GRANT USAGE ON SCHEMA {schema} TO {reader};
GRANT SELECT ON {outbox}, {archive}, {leases}, {workers}, {pauses}, {audit}, {versions}, {inbox},
  {replays}, {fences}, {dead_letters}, {inbox_versions} TO {reader};

-- Consumers: remember what they have applied, forget what is old, park what they cannot apply.
GRANT USAGE ON SCHEMA {schema} TO {consumer};
GRANT SELECT, INSERT, DELETE ON {inbox}, {replays} TO {consumer};
GRANT SELECT, INSERT, UPDATE, DELETE ON {fences}, {dead_letters} TO {consumer};
"""

_MEMBERS = """
-- Then make your login roles members, for example:
--   GRANT {writer} TO shop;
--   GRANT {relay} TO relay;
--   GRANT {operator} TO alice;
--   GRANT {operator} TO relay;    where people act on the pages that it serves (operator_token)
"""


def role_name(table: TableName, role: Role) -> str:
    return f"{table.table}_{role}"


def roles_text(table: TableName) -> str:
    """The statements that make the roles of this outbox, to be run by the owner of its tables."""
    place = table if table.schema else TableName("public", table.table)
    schema = place.schema or "public"
    roles: tuple[Role, ...] = ("writer", "relay", "operator", "reader", "consumer")
    names = {role: role_name(place, role) for role in roles}
    words: dict[str, str] = {role: _identifier(name) for role, name in names.items()}
    inbox = inbox_names(TableName(schema, INBOX_TABLE))
    words |= {word: _identifier(*inbox[word]) for word in ("inbox", "replays", "fences", "dead_letters")}
    words |= {"schema": _identifier(schema), "inbox_versions": _identifier(*inbox["versions"])}
    create = [
        sql.SQL(_CREATE).format(name=sql.Literal(name), role=sql.Identifier(name)).as_string(None)
        for name in names.values()
    ]
    return (
        "BEGIN;\n"
        + "".join(create)
        + fill(_GRANTS, place, **words)
        + "\nCOMMIT;\n"
        + fill(_MEMBERS, place, **words)
    )


def _identifier(*parts: str) -> str:
    return sql.Identifier(*parts).as_string(None)
