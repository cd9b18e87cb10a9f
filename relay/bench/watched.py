"""A publisher that writes down when its events were confirmed, and refuses the poisoned one."""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from relay.bench.journal import Journal
from relay.bench.plan import POISON_KEY, POISON_TYPE, key_number
from relay.event import Event
from relay.outcome import Delivered, Outcome, Publisher, Refused, Unconfirmed

REFUSED = Refused("poisoned by the bench")
HELD_UP = Unconfirmed("held up behind the poisoned event")


class Watched:
    """`with_keys`: its journal is all there will be to check the order by."""

    def __init__(self, publisher: Publisher, journal: Journal, with_keys: bool = False) -> None:
        self._publisher = publisher
        self._journal = journal
        self._with_keys = with_keys
        self._enough: int | None = None
        self._on_enough: Callable[[], None] = lambda: None

    @property
    def incidents(self) -> Mapping[str, int]:
        counts: Mapping[str, int] = getattr(self._publisher, "incidents", {})
        return counts

    def enough_after(self, events: int | None, call: Callable[[], None]) -> None:
        self._enough, self._on_enough = events, call

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        if any(event.event_type == POISON_TYPE for event in events):
            outcomes: Sequence[Outcome] = self._around_poison(events, deadline)
        else:
            outcomes = self._publisher.publish(events, deadline)
        now = monotonic()
        delivered = [e for e, outcome in zip(events, outcomes, strict=True) if type(outcome) is Delivered]
        keys = [key_number(event.key) for event in delivered] if self._with_keys else ()
        self._journal.write(now, [event.position for event in delivered], keys)
        if self._enough is not None and self._journal.events >= self._enough:
            self._on_enough()
        return outcomes

    def _around_poison(self, events: Sequence[Event], deadline: float) -> list[Outcome]:
        innocent = iter(self._publisher.publish([e for e in events if e.key != POISON_KEY], deadline))
        return [
            next(innocent)
            if event.key != POISON_KEY
            else (REFUSED if event.event_type == POISON_TYPE else HELD_UP)
            for event in events
        ]

    def close(self) -> None:
        self._publisher.close()
