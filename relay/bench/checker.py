"""The verdict on a stage of the bench: what was read back against what was committed. Pure.

An event is known by its position. Lost: committed, gone from the table, and not found. Inverted: a first
occurrence behind a later one of its key. Unknown: found, and committed by nobody.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class Found(NamedTuple):
    """A message as it was read back, each key's messages in the order in which they arrived."""

    key: str
    position: int


@dataclass(frozen=True)
class Verdict:
    stage: str
    source: str  # where the messages were read
    committed: int
    left: int  # still in the table, and meant to be
    found: int
    duplicates: int
    lost: int
    inverted: int
    unknown: int

    @property
    def clean(self) -> bool:
        return not (self.lost or self.inverted or self.unknown)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"clean": self.clean}


def check(
    stage: str, source: str, committed: Collection[int], left: Collection[int], messages: Iterable[Found]
) -> Verdict:
    """`committed`: the positions of all events; `left`: of those that the table still holds unpublished."""
    seen: set[int] = set()
    latest: dict[str, int] = {}
    total = inverted = 0
    for key, position in messages:
        total += 1
        if position in seen:
            continue
        seen.add(position)
        if position < latest.get(key, 0):
            inverted += 1
        else:
            latest[key] = position
    known = committed if isinstance(committed, range | set) else set(committed)
    unknown = sum(position not in known for position in seen)
    found = len(seen) - unknown
    # What was published and not settled is in the table and in the broker.
    unsettled = sum(position in seen for position in left)
    return Verdict(
        stage,
        source,
        committed=len(committed),
        left=len(left),
        found=found,
        duplicates=total - len(seen),
        lost=len(committed) - len(left) - found + unsettled,
        inverted=inverted,
        unknown=unknown,
    )
