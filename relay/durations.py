"""Durations as people write them: seconds, or text such as '7 days', '36h' or '1h 30m'.

What cannot be read, is negative, or longer than a century is a ValueError that says how to write it.
"""

import math
import re
from datetime import timedelta

# No clock and no timer overflows by it: not PostgreSQL's, not Python's.
LONGEST = 36_525 * 86_400

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_WORDS = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d", "week": "w"}


def seconds(value: object) -> float:
    """A duration: a number of seconds, or text such as '7 days', '36h' or '1h 30m'."""
    if isinstance(value, timedelta):
        total = value.total_seconds()
    elif isinstance(value, float):
        total = value
    elif isinstance(value, int) and not isinstance(value, bool):
        total = float(max(-1, min(value, LONGEST + 1)))  # beyond that it may be too large for a float
    else:
        total = _spelled_out(str(value).strip().lower())
    if not math.isfinite(total) or total < 0:
        raise ValueError("a duration is a finite number that is not negative")
    if total > LONGEST:
        raise ValueError("a duration is 100 years (36525 days) at most")
    return total


def _spelled_out(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    part = r"(\d+(?:\.\d+)?)\s*([a-z]+)"
    if not re.fullmatch(rf"{part}(?:\s*{part})*", text):
        raise ValueError("write a duration as seconds or as text such as '90 s', '36h' or '7 days'")
    total = 0.0
    for number, word in re.findall(part, text):
        unit = _WORDS.get(word.removesuffix("s") if len(word) > 2 else word, word)
        if unit not in _UNITS:
            raise ValueError(f"'{word}' is no unit of time: use ms, s, m, h, d or w")
        total += float(number) * _UNITS[unit]
    return total
