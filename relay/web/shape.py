"""Errors that differ only in numbers and ids belong together. Pure.

A group of parked events is named by the error's shape; what its events have in common, word for word, is the
text that finds them again: a filter for an action on the whole group.
"""

import re
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]

# Ids, addresses, numbers: whatever is a word with a digit in it.
_VARIABLE = re.compile(r"(?=[\w.:@-]*\d)[\w.:@-]+")
MOST_GROUPS = 100


def shape(error: str) -> str:
    return _VARIABLE.sub("…", error)


def in_common(error: str) -> str:
    """The longest part of the error that others of its shape share."""
    parts = [part.strip() for part in _VARIABLE.split(error)]
    return max(parts, key=len, default="")


def merged(groups: list[Row]) -> list[Row]:
    """Groups of one type, status and shape of error as one; each with the text that finds its events."""
    found: dict[tuple[str, str, str], Row] = {}
    for group in groups:
        error = group["error"] or ""
        name = (group["event_type"], group["status"], shape(error))
        known = found.get(name)
        if known is None:
            found[name] = group | {"error": error, "contains": error, "variants": 1}
            continue
        if group["last_at"] > known["last_at"]:
            known |= {"event_id": group["event_id"], "last_at": group["last_at"]}
        known["first_at"] = min(known["first_at"], group["first_at"])
        known["events"] += group["events"]
        known["keys"] += group["keys"]
        known["variants"] += 1
        known["error"], known["contains"] = name[2], in_common(error)
    ordered = sorted(found.values(), key=lambda group: (-group["events"], group["event_type"]))
    return ordered[:MOST_GROUPS]
