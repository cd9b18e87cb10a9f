"""The books of one publish call: what was reported of each event, and what may be said of it in the end.

A record that was refused in a batch is only a suspect: any of its mates may be at fault. It is refused when
the broker refuses it alone. What has no report at the end is unconfirmed, and nothing behind an undelivered
event of its key counts as delivered.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

from confluent_kafka import KafkaError

from publishers import classify
from publishers.classify import Trouble
from relay.event import Event
from relay.outcome import HELD_UP, Delivered, Outcome, Refused, Unconfirmed

log = logging.getLogger(__name__)

STRANDED = "_PURGE_INFLIGHT"
NOT_IN_TIME = Unconfirmed("not published in time", "broker")
_PURGED = {
    STRANDED: Unconfirmed("sent, but not confirmed in time", "broker"),
    "_PURGE_QUEUE": Unconfirmed("not sent in time: the broker did not take it", "broker"),
}
DELIVERED = Delivered()
Result: TypeAlias = Outcome | KafkaError | None


class Call:
    def __init__(self, events: Sequence[Event], deadline: float, incidents: Counter[str]) -> None:
        self.events = events
        self.deadline = deadline
        self.results: list[Result] = [None] * len(events)
        self.stopped: set[str] = set()  # keys of which nothing more may be sent
        self._incidents = incidents

    def delivered(self, *indexes: int) -> bool:
        results = self.results
        return all(type(results[index]) is Delivered for index in indexes)

    def stop(self, index: int, outcome: Outcome) -> None:
        """This event was not sent, and nothing behind it may be."""
        self.results[index] = outcome
        self.stopped.add(self.events[index].key)

    def suspects(self, sent: Sequence[int]) -> list[int]:
        """Those of a finished round that are to be sent alone; keys that failed otherwise are stopped."""
        # Not `stopped`: a key may have been stopped by an event behind the ones looked at here.
        suspects: list[int] = []
        undelivered: dict[str, Event] = {}  # the first of each key
        failed: set[str] = set()
        overtaken: Counter[str] = Counter()
        for index in sent:
            event, result = self.events[index], self.results[index]
            key = event.key
            if type(result) is Delivered:
                if key in undelivered:
                    overtaken[key] += 1
                continue
            undelivered.setdefault(key, event)
            if key in failed:
                continue
            if isinstance(result, KafkaError) and _batch_was_refused(result):
                suspects.append(index)
            else:
                failed.add(key)
        for key, number in overtaken.items():
            self._incidents["overtaken"] += number
            log.error(
                "%d events of key %s were delivered ahead of %s, which was not: their order is lost",
                number,
                key,
                undelivered[key].event_id,
            )
        self.stopped |= failed
        return suspects

    def convict(self, index: int) -> None:
        """Judge an event that was sent alone."""
        result = self.results[index]
        if isinstance(result, KafkaError) and trouble_of(result) is Trouble.RECORD:
            self.results[index] = Refused(f"the broker refused it: {result.str()}")

    def conclude(self, ended: Outcome | None) -> list[Outcome]:
        """One outcome per event; `ended` is what kept everything from getting through, if anything did."""
        outcomes: list[Outcome] = [result for result in self.results if type(result) is Delivered]
        if len(outcomes) == len(self.results):
            return outcomes
        outcomes.clear()
        held: set[str] = set()
        for event, result in zip(self.events, self.results, strict=True):
            if held and event.key in held:
                outcomes.append(HELD_UP)
            elif type(result) is Delivered:
                outcomes.append(result)
            else:
                held.add(event.key)
                outcomes.append(_failure(result, ended))
        return outcomes


def confirm(results: list[Result], index: int, error: KafkaError | None, message: Any) -> None:
    """The delivery callback of one event."""
    if error is None:
        results[index] = Delivered(f"{message.topic()}[{message.partition()}]@{message.offset()}")
    else:
        results[index] = error


def confirm_without_receipt(
    results: list[Result], index: int, error: KafkaError | None, message: Any
) -> None:
    """The same where nobody keeps the receipt: writing it takes as long as everything else here."""
    results[index] = DELIVERED if error is None else error


def trouble_of(error: KafkaError) -> Trouble:
    trouble = classify.kafka(error.name())
    return Trouble.FATAL if error.fatal() and trouble is not Trouble.SETTINGS else trouble


def _batch_was_refused(error: KafkaError) -> bool:
    return trouble_of(error) is Trouble.RECORD or error.name() == "_INVALID_DIFFERENT_RECORD"


def _failure(result: Result, ended: Outcome | None) -> Outcome:
    if not isinstance(result, KafkaError):
        return result or ended or NOT_IN_TIME
    if _batch_was_refused(result):
        return Unconfirmed(
            f"its batch was refused ({result.str()}), and there was no time to send it alone", "broker"
        )
    if purged := _PURGED.get(result.name()):
        return ended or purged
    hint = ": is this machine's clock right?" if result.name() == "INVALID_TIMESTAMP" else ""
    return classify.outcome(trouble_of(result), result.str() + hint)
