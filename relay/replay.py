"""Publishes published events again, from this process, beside relays that run.

Guarantees: no row changes. Each key's events go out in their order; one that is not confirmed is published
again until it is, and those of its key behind it. How far it came is recorded every few seconds, and when it
ends or stops: a replay that goes on under the same replay_id may repeat a few events, and omits none.

Fails with RelayError: the broker confirms nothing for too long, a setting is wrong, the publisher raises.
What was recorded until then holds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

import psycopg
from psycopg import Connection

from relay.backoff import Rising
from relay.errors import RelayError
from relay.event import Event
from relay.outcome import Delivered, Outcome, Publisher, Refused, Unconfirmed
from relay.pace import Pace
from relay.store import replay as store
from relay.store.connection import Table
from relay.store.replay import Place, Record, Tally

EVENTS_PER_BATCH = 200
SECONDS_BETWEEN_RECORDS = 5.0
PATIENCE = 120.0
LONGEST_SLEEP = 0.2


class Stopped(Exception):
    """Somebody asked the replay to stop while it waited."""


class Replay:
    def __init__(
        self,
        conn: Connection[Any],
        table: Table,
        publisher: Publisher,
        replay_id: str,
        record: Record,
        *,
        actor: str,
        destination: str,
        publish_seconds: float,
        rate: float | None,
        patience: float = PATIENCE,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._conn = conn
        self._table = table
        self._publisher = publisher
        self._id = replay_id
        self._selection = record.selection
        self._actor = actor
        self._destination = destination
        self._publish_seconds = publish_seconds
        self._pace = Pace(rate, monotonic()) if rate else None
        self._patience = patience
        self._stopping = stopping
        self._after = record.after
        self._recorded_at = monotonic()
        self.tally = self._settled = record.tally  # the second: up to `_after`
        self.done = False

    def run(self) -> Iterator[Tally]:
        """Publish what is left; yields after each batch. `done` says whether it came to the end."""
        try:
            yield from self._publish_pages()
            self._record("done")
            self.done = True
        except Stopped:
            self._record("stopped")
        except BaseException:
            with suppress(psycopg.Error, RelayError):
                self._record("stopped")
            raise

    def _publish_pages(self) -> Iterator[Tally]:
        while places := store.page(self._conn, self._table, self._selection, self._after):
            start = 0
            while start < len(places):
                batch = places[start : start + self._allowed()]
                self._publish_batch(batch)
                start += len(batch)
                self._after, self._settled = batch[-1], self.tally
                if monotonic() - self._recorded_at >= SECONDS_BETWEEN_RECORDS:
                    self._record("running")
                yield self.tally
            if len(places) < store.ROWS_PER_PAGE:
                return

    def _allowed(self) -> int:
        """How many events may go out now; waits until one may."""
        while True:
            if self._stopping():
                raise Stopped
            allowed = EVENTS_PER_BATCH
            if self._pace:
                allowed = min(allowed, self._pace.available(monotonic()))
            if allowed > 0:
                return allowed
            sleep(LONGEST_SLEEP / 10)

    def _publish_batch(self, places: Sequence[Place]) -> None:
        events = store.read(self._conn, self._table, places, self._destination, self._id)
        if self._pace:
            self._pace.take(len(places))
        self.tally = replace(self.tally, missing=self.tally.missing + len(places) - len(events))
        waits, moved = Rising(0.25, 15.0), monotonic()
        while events:
            left, reason = self._publish_once(events)
            if len(left) < len(events):
                waits, moved = Rising(0.25, 15.0), monotonic()
            elif monotonic() - moved >= self._patience:
                raise RelayError(
                    f"event {left[0].event_id} was not confirmed within {self._patience:g} s: {reason}"
                )
            events = left
            if events:
                self._wait(waits.step())

    def _publish_once(self, events: Sequence[Event]) -> tuple[list[Event], str]:
        """The events that must be published again, and why the first of them must."""
        left: list[Event] = []
        held: set[str] = set()
        reason = ""
        for event, outcome in zip(events, self._outcomes(events), strict=True):
            if event.key in held:
                left.append(event)
                continue
            match outcome:
                case Delivered():
                    self.tally = replace(self.tally, published=self.tally.published + 1)
                    continue
                case Refused(why):
                    store.record_refusal(self._conn, self._table, self._actor, self._id, event, why)
                    self.tally = replace(self.tally, refused=self.tally.refused + 1)
                case Unconfirmed(why, scope="settings"):
                    raise RelayError(f"the publisher's settings are wrong: {why}")
                case Unconfirmed(why):
                    left.append(event)
                    reason = reason or why
            held.add(event.key)
        return left, reason

    def _outcomes(self, events: Sequence[Event]) -> Sequence[Outcome]:
        try:
            outcomes = self._publisher.publish(events, monotonic() + self._publish_seconds)
        except Exception as error:
            raise RelayError(f"the publisher failed: {type(error).__name__}: {error}") from error
        if len(outcomes) != len(events):
            raise RelayError(f"the publisher failed: {len(outcomes)} outcomes for {len(events)} events")
        return outcomes

    def _wait(self, seconds: float) -> None:
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            if self._stopping():
                raise Stopped
            sleep(min(left, LONGEST_SLEEP))

    def _record(self, state: store.State) -> None:
        store.remember(self._conn, self._table, self._actor, self._id, state, self._after, self._settled)
        self._recorded_at = monotonic()
