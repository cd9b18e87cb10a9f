"""Hands claimed batches to the publisher, one at a time.

A batch that waited past its deadline is not published any more: its lease may go to another worker. A
publisher that raises is not trusted with the batch as a whole again: each event is tried alone, so that
the one at fault is found and the others go out. One that does not return keeps its batch until the lease runs
out, and this worker from publishing: overdue() says so.
"""

import logging
from collections.abc import Sequence
from time import monotonic

from relay.event import Event
from relay.metrics import Metrics
from relay.outcome import HELD_UP, Delivered, Outcome, Publisher, Unconfirmed
from relay.worker.channel import Channel
from relay.worker.state import Batch

log = logging.getLogger(__name__)

TOO_LATE = Unconfirmed("not published in time: released", scope="broker", holds=None)


class Publishing:
    def __init__(
        self, publisher: Publisher, claimed: Channel[Batch], published: Channel[Batch], metrics: Metrics
    ) -> None:
        self._publisher = publisher
        self._claimed = claimed
        self._published = published
        self._metrics = metrics
        self._due: float | None = None  # of the call that is under way

    def overdue(self) -> float:
        """Seconds that the publisher has not returned after its deadline; 0: it is in time."""
        due = self._due
        return 0.0 if due is None else max(0.0, monotonic() - due)

    def run(self) -> None:
        """Until the claimer has closed its channel and everything in it was handled."""
        while (batch := self._claimed.get()) is not None:
            batch.outcomes = self._publish(batch.claim.events, batch.deadline)
            if not self._published.put(batch):
                return
        self._published.close()

    def _publish(self, events: Sequence[Event], deadline: float) -> list[Outcome]:
        started = monotonic()
        if started >= deadline:
            return [TOO_LATE] * len(events)
        self._due = deadline
        try:
            outcomes = list(self._publisher.publish(events, deadline))
            if len(outcomes) != len(events):
                raise ValueError(f"{len(outcomes)} outcomes for {len(events)} events")
        except Exception:
            log.exception("the publisher failed on a batch of %d events; trying each alone", len(events))
            outcomes = self._publish_alone(events, deadline)
        finally:
            self._due = None
        self._metrics.publish_seconds.observe(monotonic() - started)
        self._metrics.incidents(getattr(self._publisher, "incidents", {}))
        return outcomes

    def _publish_alone(self, events: Sequence[Event], deadline: float) -> list[Outcome]:
        outcomes: list[Outcome] = []
        stopped: set[str] = set()
        for event in events:
            if event.key in stopped:
                outcomes.append(HELD_UP)
                continue
            outcome: Outcome
            if monotonic() >= deadline:
                outcome = TOO_LATE
            else:
                try:
                    (outcome,) = self._publisher.publish([event], deadline)
                except Exception as error:
                    log.exception("the publisher failed on event %s", event.event_id)
                    outcome = Unconfirmed(f"{type(error).__name__}: {error}")
            if not isinstance(outcome, Delivered):
                stopped.add(event.key)
            outcomes.append(outcome)
        return outcomes
