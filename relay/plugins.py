"""Finds publishers by name, through the entry-point group `relay.publishers`, or by `module:callable`.

The callable takes the publisher's own settings as a mapping and returns a Publisher: `[kafka]` for `kafka`,
`[publisher_options]` for a plugin of someone else's. Added to either: `format`, `destination`, and
`receipts`, which is false where nobody keeps them.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from relay.errors import SettingsError
from relay.outcome import Publisher
from relay.settings import Settings

GROUP = "relay.publishers"


def publisher_names() -> list[str]:
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def find_publisher(name: str) -> Callable[[Mapping[str, Any]], Publisher]:
    for entry in entry_points(group=GROUP, name=name):
        return _load(entry)
    if ":" in name:
        return _load(EntryPoint(name, name, GROUP))
    known = publisher_names()
    near = get_close_matches(name, known, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
    raise SettingsError(f"publisher = '{name}' is not installed: {hint}")


def _load(entry: EntryPoint) -> Callable[[Mapping[str, Any]], Publisher]:
    try:
        factory: Callable[[Mapping[str, Any]], Publisher] = entry.load()
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"publisher = '{entry.name}' cannot be loaded: {error} (a module must be installed, or be on"
            " PYTHONPATH)"
        ) from error
    return factory


def make_publisher(settings: Settings) -> Publisher:
    return find_publisher(settings.publisher)(settings.publisher_section())
