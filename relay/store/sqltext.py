"""Fills the names of one outbox into static SQL texts."""

from functools import cache

from psycopg import sql

from relay.names import TableName, inbox_names, outbox_names


@cache
def _identifiers(name: TableName) -> dict[str, sql.Composable]:
    return {word: sql.Identifier(*parts) for word, parts in outbox_names(name).items()}


def fill(text: str, name: TableName, **more: str) -> str:
    """The statement `text` for the outbox `name`; `more` are fixed SQL fragments of our own."""
    fragments = {word: sql.SQL(fragment) for word, fragment in more.items()}
    return sql.SQL(text).format(**_identifiers(name), **fragments).as_string(None)


def regclass(name: TableName, word: str) -> str:
    """The object as a literal that does not depend on the search_path."""
    return f"{sql.Literal(_identifiers(name)[word].as_string(None)).as_string(None)}::regclass"


def fill_inbox(text: str, name: TableName) -> str:
    identifiers = {word: sql.Identifier(*parts) for word, parts in inbox_names(name).items()}
    return sql.SQL(text).format(**identifiers).as_string(None)
