"""What wakes a worker that sleeps, and what does not make it look in vain."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from pydantic import SecretStr

from relay.event import Event
from relay.metrics import Metrics
from relay.outcome import Delivered, Outcome
from relay.scan import BUCKETS, Scan
from relay.settings import Settings
from relay.store import wake
from relay.store.look import Limits
from relay.worker import claimer
from relay.worker.bell import Bell
from relay.worker.registration import Registration
from relay.worker.state import Hold
from tests.integration.store_kit import Stage, wait_until

PATIENCE = 30.0


class Gate:
    """A publisher that keeps its first batch until it is opened."""

    def __init__(self, *, is_open: bool) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.published: list[str] = []
        if is_open:
            self.opened.set()

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        self.published += [event.event_id for event in events]
        return [Delivered()] * len(events)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that nothing wakes sleeps longer than these tests wait."""
    monkeypatch.setattr(claimer, "LONGEST_SLEEP", 4 * PATIENCE)
    monkeypatch.setattr(wake, "FLAG_SECONDS", 40 * PATIENCE)


@contextmanager
def relaying(stage: Stage, publisher: Gate, metrics: Metrics) -> Iterator[Registration]:
    settings = Settings(database_url=SecretStr(stage.url), publisher="stdout")
    registration = Registration(settings, publisher, Hold(), metrics)
    thread = threading.Thread(target=registration.run, daemon=True)
    thread.start()
    flag = "SELECT asleep_until > clock_timestamp() FROM outbox_wake"
    wait_until(lambda: stage.value(flag), "it sleeps")
    try:
        yield registration
    finally:
        publisher.opened.set()
        registration.drain()
        stage.insert("the last one", 1)  # wakes it
        thread.join(PATIENCE)
        assert not thread.is_alive()


def looks(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("relay_claim_seconds_count") or 0.0


def test_an_event_behind_one_in_flight_goes_out_when_that_is_settled(stage: Stage) -> None:
    gate, metrics = Gate(is_open=False), Metrics()
    with relaying(stage, gate, metrics):
        stage.insert("a", 1, idempotency_key="first")
        assert gate.entered.wait(PATIENCE)
        before = looks(metrics)
        stage.insert("a", 1, idempotency_key="second")
        wait_until(lambda: looks(metrics) > before, "it has met the second")
        gate.opened.set()
        wait_until(lambda: gate.published == ["first", "second"], "both are out")


def test_a_single_event_costs_a_single_look(stage: Stage) -> None:
    gate, metrics = Gate(is_open=True), Metrics()
    with relaying(stage, gate, metrics):
        before = 0.0
        for number in range(11):
            stage.insert(f"key {number}", 1, idempotency_key=f"event {number}")
            wait_until(lambda: len(gate.published) == number + 1, "it is out")  # noqa: B023
            wait_until(lambda: stage.value("SELECT count(*) FROM outbox_leases") == 0, "it is settled")
            before = before or looks(metrics)
        # The notification of an event that an earlier look has found makes one look in vain.
        assert looks(metrics) - before < 15


def test_a_lap_is_in_vain_only_where_buckets_were_seen_from_their_first_key(stage: Stage) -> None:
    gate, metrics = Gate(is_open=True), Metrics()
    stage.insert("a", 1)
    bucket = stage.value("SELECT partition_bucket FROM outbox")
    settings = Settings(database_url=SecretStr(stage.url), publisher="stdout")
    registration = Registration(settings, gate, Hold(), metrics)
    # Somebody had the bucket locked when this worker came by: its cursor stayed there.
    scan = registration._claimer._scan
    scan.keys, scan.start = {bucket: "a"}, (bucket + 1) % BUCKETS
    assert registration._claimer._found_in_a_lap()
    registration.run(until_empty=True)
    assert len(gate.published) == 1


def test_a_look_from_a_cursor_on_is_not_one_at_everything(stage: Stage) -> None:
    stage.insert("b", 2)
    actor = stage.actor()
    bucket = stage.value("SELECT min(partition_bucket) FROM outbox")
    limits = Limits(10, 1_000_000)
    look = actor.claiming.claim(actor.conn, Scan(keys={bucket: "a"}), limits)
    assert look.claim is not None
    assert not look.whole
    stage.insert("c", 1)
    look = actor.claiming.claim(actor.conn, Scan(), limits)
    assert look.claim is not None
    assert look.whole


def test_a_stroke_that_came_before_one_listened_is_not_waited_for() -> None:
    bell = Bell()
    before = bell.strokes
    bell.ring()
    assert not bell.await_next(before)
    assert bell.await_next(bell.strokes)
    bell.ring()
    assert not bell.await_next(bell.strokes - 1)
    bell.close()
