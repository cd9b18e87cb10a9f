"""Records the outcomes of published batches. Owns one connection.

Where nothing was published for a while, the rows of what is in flight are marked: people who look should
see what a relay waits for. As long as events flow that would cost more than it tells.

A lease that is gone is counted and left alone: another worker has the events, and what was published
here will be published again under the same event ids.
"""

import logging
from collections import Counter
from typing import Any

from psycopg import Connection

from relay.errors import LeaseLost, Overtaken
from relay.metrics import Metrics
from relay.settlement import OnExhausted, Verdict, judge
from relay.store.pauses import Breakers
from relay.store.settle import Settling
from relay.worker.bell import Bell
from relay.worker.channel import Channel
from relay.worker.publishing import TOO_LATE
from relay.worker.state import Batch, Hold, InFlight

log = logging.getLogger(__name__)

MARK_SECONDS = 1.0


class Settler:
    def __init__(
        self,
        conn: Connection[Any],
        settling: Settling,
        on_exhausted: OnExhausted,
        breakers: Breakers,
        published: Channel[Batch],
        in_flight: InFlight,
        bell: Bell,
        hold: Hold,
        metrics: Metrics,
    ) -> None:
        self._conn = conn
        self._settling = settling
        self._on_exhausted = on_exhausted
        self._breakers = breakers
        self._published = published
        self._in_flight = in_flight
        self._bell = bell
        self._hold = hold
        self._metrics = metrics

    def run(self) -> None:
        """Until the publisher has closed its channel and everything in it was settled."""
        while (batch := self._next()) is not None:
            verdict = judge(batch.claim.events, batch.outcomes, self._on_exhausted)
            self._steer(batch, verdict)
            try:
                self._settling.settle(self._conn, batch.claim, verdict.settlements)
                self._count(batch, verdict)
            except LeaseLost as lost:
                self._metrics.fenced_settlements.inc()
                log.warning("%s: its %d events belong to another worker now", lost, len(batch.claim.events))
            except Overtaken as short:
                self._metrics.short_settlements.inc()
                log.error("%s; left to the reaper", short)
            self._in_flight.leave(batch)
            self._bell.ring()

    def _next(self) -> Batch | None:
        while not self._published.ready(MARK_SECONDS):
            for batch in self._in_flight.unmarked():
                batch.claim = self._settling.mark(self._conn, batch.claim)
                batch.marked = True
        return self._published.get()

    def _steer(self, batch: Batch, verdict: Verdict) -> None:
        """Hold back what would fare no better, before the settle lets it be claimed again."""
        if all(outcome is TOO_LATE for outcome in batch.outcomes):
            return  # nobody was asked
        if verdict.settings:
            wait = self._hold.engage(verdict.settings.reason, verdict.settings.retry_after)
            log.error("claiming stops for %.1f s, a setting is wrong: %s", wait, verdict.settings.reason)
        elif not verdict.held:
            self._hold.lift()
        for subject, outcome in verdict.held.items():
            opened = self._breakers.open(self._conn, subject, outcome.reason, outcome.retry_after or 0.0)
            if opened:
                failures, wait = opened
                log.warning("%s is held for %.1f s (failure %d): %s", subject, wait, failures, outcome.reason)
        if batch.probe and not verdict.held and not verdict.settings:
            self._breakers.close(self._conn, batch.probe)
            log.info("%s answers again", batch.probe)

    def _count(self, batch: Batch, verdict: Verdict) -> None:
        acts = Counter([settlement.act for settlement in verdict.settlements])
        for act, number in acts.items():
            self._metrics.settled(act, number)
        if verdict.overtook:
            self._metrics.out_of_order.inc(verdict.overtook)
            log.error("%d events were delivered ahead of one of their key", verdict.overtook)
        if acts["dead_letter"] or acts["block"]:
            self._tell_of_parked(batch, verdict)
        self._metrics.published(batch.claim.events, batch.outcomes)

    def _tell_of_parked(self, batch: Batch, verdict: Verdict) -> None:
        for event, (act, error, *_) in zip(batch.claim.events, verdict.settlements, strict=True):
            if act in ("dead_letter", "block"):
                log.error("event %s of key %s is parked (%s): %s", event.event_id, event.key, act, error)
