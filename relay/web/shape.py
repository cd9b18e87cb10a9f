"""What the errors of a group of parked events have in common. Pure.

The errors differ in ids and numbers alone. Where all say the same it is said; the longest part that surely
all share, word for word, is the text that finds them again: a filter for an action on the whole group.
"""

import re
from collections.abc import Sequence

from relay.store.overview import VARIABLE

_VARIABLE = re.compile(VARIABLE)
VARIES = "…"


def in_common(errors: Sequence[str], variants: int) -> tuple[str, str]:
    """The error of the group as people read it, and what it contains; `errors` are some of the variants."""
    if variants == 1:
        return errors[0], errors[0]
    fixed = _VARIABLE.split(errors[0])
    # The database made the group: a shape that it sees otherwise must not cost people the page.
    slots = zip(*(_VARIABLE.findall(error) for error in errors), strict=False)
    read = _pieces(fixed, [values[0] if len(set(values)) == 1 else None for values in slots])
    # What only some of the variants were seen to share may differ in the others.
    sure = [piece.strip() for piece in (read if variants == len(errors) else fixed)]
    shared = [piece for piece in sure if all(piece in error for error in errors)]
    return VARIES.join(read), max(shared, key=len, default="")


def _pieces(fixed: Sequence[str], slots: Sequence[str | None]) -> list[str]:
    pieces = [fixed[0]]
    for slot, part in zip([*slots, *[None] * len(fixed)], fixed[1:], strict=False):
        if slot is None:
            pieces.append(part)
        else:
            pieces[-1] += slot + part
    return pieces
