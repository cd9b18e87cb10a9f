"""From a publisher's outcomes to what is written on the rows. Pure.

Only the first event of a key that was not delivered is judged. What stands behind it in the same call
is released, its attempt given back: it was held up, not tried. A publisher that reports such an event
as delivered broke the seam's rule; it is counted, and the event goes out again behind its predecessor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, assert_never

from relay.backoff import retry_delay
from relay.event import Event
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed
from relay.pause import Subject, subject_of

Act: TypeAlias = Literal["complete", "retry", "dead_letter", "block", "release"]
OnExhausted: TypeAlias = Literal["dead_letter", "block"]


class Settlement(NamedTuple):
    """What to do with one event of a claim. A release gives the attempt back."""

    act: Act
    error: str | None = None
    delay: float = 0.0
    receipt: str | None = None


COMPLETE = Settlement("complete")


@dataclass(frozen=True)
class Verdict:
    settlements: list[Settlement]
    held: dict[Subject, Unconfirmed]  # what others would fare no better with now
    settings: Unconfirmed | None  # nothing gets through until somebody changes a setting
    overtook: int  # events reported delivered behind one of their key that was not


def judge(events: Sequence[Event], outcomes: Sequence[Outcome], on_exhausted: OnExhausted) -> Verdict:
    """One settlement per event, in the same order."""
    settlements: list[Settlement] = []
    stopped: set[str] = set()
    held: dict[Subject, Unconfirmed] = {}
    settings: Unconfirmed | None = None
    overtook = 0
    for event, outcome in zip(events, outcomes, strict=True):
        if stopped and event.key in stopped:
            overtook += isinstance(outcome, Delivered)
            settlements.append(Settlement("release"))
            continue
        if type(outcome) is Delivered:
            receipt = outcome.receipt
            settlements.append(COMPLETE if receipt is None else Settlement("complete", receipt=receipt))
            continue
        stopped.add(event.key)
        settlements.append(_judge_failure(event, outcome, on_exhausted))
        match outcome:
            case Unconfirmed(scope="settings"):
                settings = outcome
            case Unconfirmed(scope="destination" | "broker", holds=str(scope)):
                held[subject_of(scope, event)] = outcome
    return Verdict(settlements, held, settings, overtook)


def _judge_failure(event: Event, outcome: Outcome, on_exhausted: OnExhausted) -> Settlement:
    match outcome:
        case Unconfirmed(reason, scope="event") if event.attempt < event.max_attempts:
            wait = outcome.retry_after
            return Settlement("retry", reason, retry_delay(event.attempt) if wait is None else wait)
        case Unconfirmed(reason, scope="event"):
            return Settlement(on_exhausted, reason)
        case Unconfirmed(reason):
            return Settlement("release", reason)
        case Refused(reason):
            return Settlement(on_exhausted, reason)
        case Delivered():
            raise AssertionError("a delivered event is not a failure")
    assert_never(outcome)
