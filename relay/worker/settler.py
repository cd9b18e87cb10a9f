"""Records the outcomes of published batches. Owns one connection.

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
from relay.store.settle import Settling
from relay.worker.channel import Channel
from relay.worker.state import Batch, Hold, InFlight

log = logging.getLogger(__name__)


class Settler:
    def __init__(
        self,
        conn: Connection[Any],
        settling: Settling,
        on_exhausted: OnExhausted,
        published: Channel[Batch],
        in_flight: InFlight,
        hold: Hold,
        metrics: Metrics,
    ) -> None:
        self._conn = conn
        self._settling = settling
        self._on_exhausted = on_exhausted
        self._published = published
        self._in_flight = in_flight
        self._hold = hold
        self._metrics = metrics

    def run(self) -> None:
        """Until the publisher has closed its channel and everything in it was settled."""
        while (batch := self._published.get()) is not None:
            verdict = judge(batch.claim.events, batch.outcomes, self._on_exhausted)
            self._steer(verdict)
            try:
                self._settling.settle(self._conn, batch.claim, verdict.settlements)
                self._count(batch, verdict)
            except LeaseLost as lost:
                self._metrics.fenced_settlements.inc()
                log.warning("%s: its %d events belong to another worker now", lost, len(batch.claim.events))
            except Overtaken as short:
                self._metrics.short_settlements.inc()
                log.error("%s; left to the reaper", short)
            self._in_flight.leave()

    def _steer(self, verdict: Verdict) -> None:
        """Pause claiming where others would fare no better, go on where something got through."""
        if verdict.hold:
            wait = self._hold.engage(verdict.hold.reason, verdict.hold.retry_after)
            log.warning("claiming pauses for %.1f s: %s", wait, verdict.hold.reason)
        elif any(settlement.act == "complete" for settlement in verdict.settlements):
            self._hold.lift()

    def _count(self, batch: Batch, verdict: Verdict) -> None:
        for act, number in Counter(settlement.act for settlement in verdict.settlements).items():
            self._metrics.settled(act, number)
        if verdict.overtook:
            self._metrics.out_of_order.inc(verdict.overtook)
            log.error("%d events were delivered ahead of one of their key", verdict.overtook)
        for event, settlement in zip(batch.claim.events, verdict.settlements, strict=True):
            if settlement.act in ("dead_letter", "block"):
                log.error(
                    "event %s of key %s is parked (%s): %s",
                    event.event_id,
                    event.key,
                    settlement.act,
                    settlement.error,
                )
        self._metrics.published(batch.claim.events, batch.outcomes)
