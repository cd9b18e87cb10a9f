"""What a settle may come to write, given what the broker got: the relay's own judgement of all outcomes."""

from datetime import UTC, datetime
from functools import cache
from itertools import product

from relay.event import Event
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed
from relay.settlement import Act, OnExhausted, judge

UNANSWERED = Unconfirmed("no answer to this event")
BROKER_GONE = Unconfirmed("the broker is gone, or it was too late", scope="broker")
REFUSED = Refused("never")
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@cache
def possible_acts(
    keys: tuple[str, ...],
    attempts: tuple[int, ...],
    accepted: tuple[bool, ...],
    handed: int,
    max_attempts: int,
    on_exhausted: OnExhausted,
) -> list[tuple[Act, ...]]:
    """The acts, one per event, for every set of outcomes that an honest publisher may report."""
    events = [
        Event(n, key, str(n), "Tested", "events", b"{}", None, LONG_AGO, 0, attempts[n], max_attempts)
        for n, key in enumerate(keys)
    ]
    found: dict[tuple[Act, ...], None] = {}
    for outcomes in product(*(_outcomes(accepted[n], n < handed) for n in range(len(keys)))):
        verdict = judge(events, outcomes, on_exhausted)
        if not verdict.overtook:
            found[tuple(settlement.act for settlement in verdict.settlements)] = None
    return list(found)


def _outcomes(accepted: bool, handed: bool) -> list[Outcome]:
    """A broker may confirm less than it took, never more."""
    if accepted:
        return [Delivered(), UNANSWERED, BROKER_GONE]
    return [UNANSWERED, BROKER_GONE, REFUSED] if handed else [BROKER_GONE]
