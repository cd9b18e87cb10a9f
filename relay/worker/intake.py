"""From a claim to the publisher, for all who claim in one worker.

Waits there while the worker has enough in flight: memory is bounded by the batches between here and the
settler.
"""

from collections.abc import Callable
from time import monotonic

from relay.metrics import Metrics
from relay.pause import Subject
from relay.store.look import Look
from relay.worker.channel import Channel
from relay.worker.state import Batch, InFlight


class Intake:
    def __init__(
        self, publish_seconds: float, claimed: Channel[Batch], in_flight: InFlight, metrics: Metrics
    ) -> None:
        self.publish_seconds = publish_seconds
        self._claimed = claimed
        self._in_flight = in_flight
        self._metrics = metrics

    def take(self, claim: Callable[[], Look], probe: Subject | None = None) -> tuple[Look, float]:
        """Claim and hand on. What was seen, and seconds that the claim took."""
        started = monotonic()
        # Whoever waits until nothing is in flight waits for this claim too.
        self._in_flight.enter()
        batch, handed_on = None, False
        try:
            look = claim()
            took = monotonic() - started
            self._metrics.claim_seconds.observe(took)
            if look.claim:
                self._metrics.took(len(look.claim.events))
                batch = Batch(look.claim, started + self.publish_seconds, probe)
                self._in_flight.holds(batch)
                handed_on = self._claimed.put(batch)
            return look, took
        finally:
            if not handed_on:
                self._in_flight.leave(batch)
