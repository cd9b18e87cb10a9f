"""Fills the names of one outbox into static SQL texts."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from psycopg import Connection, RawCursor, sql
from psycopg.pq import Format
from psycopg.rows import tuple_row

from relay.names import TableName, inbox_names, outbox_names


@cache
def _identifiers(name: TableName) -> dict[str, sql.Composable]:
    return {word: sql.Identifier(*parts) for word, parts in outbox_names(name).items()}


def fill(text: str, name: TableName, **fragments: str) -> str:
    """The statement `text` for the outbox `name`; {FRAGMENTS} are texts of our own and may hold others."""
    while (expanded := _expand(text, fragments)) != text:
        text = expanded
    return sql.SQL(text).format(**_identifiers(name)).as_string(None)


def _expand(text: str, fragments: dict[str, str]) -> str:
    for word, fragment in fragments.items():
        text = text.replace(f"{{{word}}}", fragment)
    return text


class Statement:
    """A text whose %(places)s are numbered once: in a long one the driver looks for them at every run."""

    def __init__(self, text: str) -> None:
        self._names: dict[str, int] = {}
        self._text = re.sub(r"%\((\w+)\)s|%%", self._numbered, text)

    def _numbered(self, place: re.Match[str]) -> str:
        name = place[1]
        return f"${self._names.setdefault(name, len(self._names) + 1)}" if name else "%"

    def run(
        self, conn: Connection[Any], values: Mapping[str, Any], row_factory: Any = tuple_row
    ) -> RawCursor[Any]:
        """Execute it, with results in binary; what `values` holds beside its places is left out."""
        make: type[RawCursor[Any]] = getattr(conn, "raw_cursor_factory", RawCursor)
        cursor = make(conn, row_factory=row_factory)
        cursor.format = Format.BINARY
        return cursor.execute(self._text, [values[name] for name in self._names])


def verbatim(text: str) -> str:
    """A text that passes through fill() and the driver's placeholders unchanged."""
    return text.replace("{", "{{").replace("}", "}}").replace("%", "%%")


def regclass(name: TableName, word: str) -> str:
    """The object as a literal that does not depend on the search_path."""
    return f"{sql.Literal(_identifiers(name)[word].as_string(None)).as_string(None)}::regclass"


def fill_inbox(text: str, name: TableName) -> str:
    identifiers = {word: sql.Identifier(*parts) for word, parts in inbox_names(name).items()}
    return sql.SQL(text).format(**identifiers).as_string(None)


def storable(text: str | None) -> str | None:
    """Brokers answer with anything; what PostgreSQL cannot store must not keep it from being recorded."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def destination_expression(template: str) -> str:
    """SQL for an event's destination: the row's own, else the template with its fields filled in."""
    default = sql.Literal(template).as_string(None)
    if "{event_type}" in template:
        default = f"replace({default}, '{{event_type}}', o.event_type)"
    if "{key_type}" in template:
        default = f"replace({default}, '{{key_type}}', split_part(o.partition_key, ':', 1))"
    return verbatim(f"coalesce(o.destination, {default})")
