"""How often each event has failed here. Survives a rebalance or a new connection to the broker. Pure."""

from collections import OrderedDict
from dataclasses import dataclass

from relay.consumers.message import Message

REMEMBERED = 10_000


@dataclass(slots=True)
class Tally:
    failures: int = 0  # of the handler
    losses: int = 0  # of the database's connection while it ran
    error: str = ""


class Tallies:
    def __init__(self) -> None:
        self._tallies: OrderedDict[tuple[str, str | None], Tally] = OrderedDict()

    def of(self, message: Message) -> Tally:
        """A new one where nothing is held against the event."""
        return self._tallies.get(_name(message)) or Tally()

    def keep(self, message: Message, tally: Tally) -> None:
        self._tallies[_name(message)] = tally
        if len(self._tallies) > REMEMBERED:
            self._tallies.popitem(last=False)

    def forget(self, message: Message) -> None:
        self._tallies.pop(_name(message), None)


def _name(message: Message) -> tuple[str, str | None]:
    return (message.event_id, message.replay_id)
