"""Outbox Relay: publishes the rows of an outbox table in PostgreSQL, in order per key, at least once.

What producers, consumers and publishers need is here, and is loaded when it is first used: a domain's own
program must not pay for the relay's command line.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.errors import InvalidEvent, NotInTransaction
    from relay.event import Event
    from relay.inbox import Inbox
    from relay.outcome import Delivered, Outcome, Publisher, Refused, Unconfirmed
    from relay.producer import NewEvent, Outbox

    __version__: str

__all__ = [
    "Delivered",
    "Event",
    "Inbox",
    "InvalidEvent",
    "NewEvent",
    "NotInTransaction",
    "Outbox",
    "Outcome",
    "Publisher",
    "Refused",
    "Unconfirmed",
    "__version__",
]

_HOMES = {
    "Delivered": "relay.outcome",
    "Event": "relay.event",
    "Inbox": "relay.inbox",
    "InvalidEvent": "relay.errors",
    "NewEvent": "relay.producer",
    "NotInTransaction": "relay.errors",
    "Outbox": "relay.producer",
    "Outcome": "relay.outcome",
    "Publisher": "relay.outcome",
    "Refused": "relay.outcome",
    "Unconfirmed": "relay.outcome",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value: object = getattr(import_module(_HOMES[name]), name)
    elif name == "__version__":
        value = import_module("importlib.metadata").version("outbox-relay")
    else:
        raise AttributeError(f"module 'relay' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
