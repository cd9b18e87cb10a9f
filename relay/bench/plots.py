"""Small pictures of numbers for a terminal. Pure."""

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"
_PARTS = " ▏▎▍▌▋▊▉█"


def sparkline(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """One character a value, from nothing at the bottom to the highest at the top."""
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    top = max(values, default=0)
    if top <= 0:
        return blocks[0] * len(values)
    return "".join(blocks[min(int(value / top * len(blocks)), len(blocks) - 1)] for value in values)


def bar(value: float, top: float, width: int, *, ascii_only: bool = False) -> str:
    """A horizontal bar that is `width` characters long at `top`."""
    if top <= 0:
        return ""
    eighths = round(min(value / top, 1.0) * width * 8)
    if ascii_only:
        return "#" * round(eighths / 8)
    full, part = divmod(eighths, 8)
    return "█" * full + (_PARTS[part] if part else "")
