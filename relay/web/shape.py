"""Errors that differ only in numbers and ids belong together. Pure.

A group of parked events is named by what its errors have in common; the longest part of that, word for word,
is the text that finds them again: a filter for an action on the whole group.
"""

import re
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]

# Ids, addresses, numbers.
_VARIABLE = re.compile(r"[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*|\d+")
MOST_GROUPS = 100
VARIES = "…"


def shape(error: str) -> tuple[str, ...]:
    """The parts of the error that do not vary."""
    return tuple(_VARIABLE.split(error))


class _Group:
    def __init__(self, row: Row, error: str) -> None:
        self.row = row | {"variants": 0, "events": 0, "keys": 0}
        self._fixed = shape(error)
        self._varying: list[str | None] = list(_VARIABLE.findall(error))

    def add(self, row: Row, error: str) -> None:
        known = self.row
        if row["last_at"] > known["last_at"]:
            known |= {"event_id": row["event_id"], "last_at": row["last_at"]}
        known["first_at"] = min(known["first_at"], row["first_at"])
        known["events"] += row["events"]
        known["keys"] += row["keys"]
        known["variants"] += 1
        others = _VARIABLE.findall(error)
        self._varying = [
            one if one == other else None for one, other in zip(self._varying, others, strict=True)
        ]

    def told(self) -> Row:
        """Where all say the same it is said; `contains` is the longest part that all share."""
        pieces = [self._fixed[0]]
        for varying, fixed in zip(self._varying, self._fixed[1:], strict=True):
            if varying is None:
                pieces.append(fixed)
            else:
                pieces[-1] += varying + fixed
        contains = max((piece.strip() for piece in pieces), key=len)
        return self.row | {"error": VARIES.join(pieces), "contains": contains}


def merged(rows: list[Row]) -> list[Row]:
    """Groups of one type, status and shape of error as one, the largest first."""
    found: dict[tuple[str, str, tuple[str, ...]], _Group] = {}
    for row in rows:
        error = row["error"] or ""
        name = (row["event_type"], row["status"], shape(error))
        found.setdefault(name, _Group(row, error)).add(row, error)
    groups = [group.told() for group in found.values()]
    return sorted(groups, key=lambda group: (-group["events"], group["event_type"]))[:MOST_GROUPS]
