"""Finds the numbered SQL files of `schema/`, wherever the package was installed.

A wheel carries them as `relay/schema`; an editable install has them beside the package.
"""

import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from relay.errors import SchemaError


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    text: str


def _root() -> Traversable:
    inside = files("relay") / "schema"
    if inside.is_dir():
        return inside
    beside = Path(__file__).resolve().parent.parent / "schema"
    if beside.is_dir():
        return beside
    raise SchemaError("the SQL files are missing from this installation: reinstall outbox-relay")


def migrations(component: str) -> list[Migration]:
    """All migrations of `outbox` or `inbox`, oldest first, numbered 1, 2, 3 …"""
    found = []
    for file in (_root() / component).iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.version)
    if [m.version for m in found] != list(range(1, len(found) + 1)):
        raise SchemaError(f"the SQL files of {component} are not numbered without gaps")
    return found
