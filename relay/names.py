"""Names of everything that belongs to one outbox, derived from the name of its table.

Side tables, types, indexes and functions carry the outbox's own name, so that two outboxes
in one database never meet.
"""

import re
from dataclasses import dataclass

from relay.errors import SettingsError

# Leaves room in PostgreSQL's 63 bytes for the longest suffix below.
MAX_TABLE_BYTES = 40

_TABLES = {
    "leases": "leases",
    "archive": "archive",
    "workers": "workers",
    "pauses": "pauses",
    "audit": "audit",
    "wake": "wake",
    "versions": "versions",
    "status": "status",
    "generation": "generation",
    "new_event_id": "new_event_id",
    "wake_relays": "wake_relays",
}
_BARE = {  # names that PostgreSQL takes without a schema
    "i_fresh": "fresh",
    "i_later": "later",
    "i_due": "due",
    "i_parked": "parked",
    "i_completed": "completed",
    "i_position": "position",
    "i_archive_id": "archive_event_id",
    "i_archive_completed": "archive_completed",
    "i_audit_event": "audit_event_id",
    "c_event_id": "event_id",
    "c_lengths": "lengths",
    "c_headers": "headers_are_strings",
    "c_attempts": "attempts_in_range",
    "c_created": "created_at_in_range",
    "c_state": "state",
    "wake_relays_trigger": "wake_relays",
}
_INBOX_TABLES = ("replays", "fences", "dead_letters", "versions")
_INBOX_BARE = {
    "i_dead_event": "dead_letters_event",
    "i_dead_asked": "dead_letters_asked",
}


@dataclass(frozen=True)
class TableName:
    """A table's name with its schema; no schema means: by the session's search_path."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str) -> "TableName":
        """Read `table` or `schema.table`, either part optionally in double quotes."""
        part = r'(?:"((?:[^"]|"")+)"|([^".]+))'
        match = re.fullmatch(rf"(?:{part}\.)?{part}", text)
        if match is None or "\0" in text or "%" in text:
            raise SettingsError(f"table = {text!r} is not a table name: use 'outbox' or 'schema.outbox'")
        quoted_schema, schema, quoted_table, table = match.groups()
        name = cls(
            quoted_schema.replace('""', '"') if quoted_schema else schema,
            quoted_table.replace('""', '"') if quoted_table else table,
        )
        if len(name.table.encode()) > MAX_TABLE_BYTES:
            raise SettingsError(f"table = {text!r} is too long: {MAX_TABLE_BYTES} bytes at most")
        return name

    def parts(self) -> tuple[str, ...]:
        return (self.schema, self.table) if self.schema else (self.table,)

    def __str__(self) -> str:
        return ".".join(self.parts())


def outbox_names(name: TableName) -> dict[str, tuple[str, ...]]:
    """Identifier parts of every object of the outbox, by the word that SQL texts use for it."""
    prefix = (name.schema,) if name.schema else ()
    names = {"outbox": name.parts()}
    names |= {word: (*prefix, f"{name.table}_{suffix}") for word, suffix in _TABLES.items()}
    names |= {word: (f"{name.table}_{suffix}",) for word, suffix in _BARE.items()}
    return names


def inbox_names(name: TableName) -> dict[str, tuple[str, ...]]:
    prefix = (name.schema,) if name.schema else ()
    names = {"inbox": name.parts()}
    names |= {word: (*prefix, f"{name.table}_{word}") for word in _INBOX_TABLES}
    names |= {word: (f"{name.table}_{suffix}",) for word, suffix in _INBOX_BARE.items()}
    return names
