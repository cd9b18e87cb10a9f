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
    slots = list(zip(*(_VARIABLE.findall(error) for error in errors), strict=True))
    known = [values[0] if len(set(values)) == 1 else None for values in slots]
    read = _pieces(fixed, known)
    # What only some of the variants were seen to share may differ in the others.
    sure = read if variants == len(errors) else fixed
    return VARIES.join(read), max((piece.strip() for piece in sure), key=len)


def _pieces(fixed: Sequence[str], slots: Sequence[str | None]) -> list[str]:
    pieces = [fixed[0]]
    for slot, part in zip(slots, fixed[1:], strict=True):
        if slot is None:
            pieces.append(part)
        else:
            pieces[-1] += slot + part
    return pieces
