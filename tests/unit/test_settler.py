"""What the settler does while nothing comes from the publisher."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import relay.worker.settler
from relay.metrics import Metrics
from relay.outcome import Delivered
from relay.pause import Subject
from relay.store.look import Claim
from relay.testing import make_event
from relay.worker.bell import Bell
from relay.worker.channel import Channel
from relay.worker.publishing import TOO_LATE
from relay.worker.settler import Settler
from relay.worker.state import Batch, Hold, InFlight


class Store:
    def __init__(self) -> None:
        self.marked: Channel[int] = Channel(100)
        self.settled: list[str] = []

    def mark(self, conn: Any, claim: Claim) -> Claim:
        self.marked.put(claim.generation)
        return replace(claim, tids="moved")

    def settle(self, conn: Any, claim: Claim, settlements: Any) -> None:
        self.settled.append(claim.tids)


class Scene:
    def __init__(self) -> None:
        self.store = Store()
        self.published: Channel[Batch] = Channel(10)
        self.in_flight = InFlight()
        self.bell = Bell()
        self.hold = Hold()
        self.settler = Settler(
            None,  # type: ignore[arg-type]
            self.store,  # type: ignore[arg-type]
            "dead_letter",
            None,  # type: ignore[arg-type]
            self.published,
            self.in_flight,
            self.bell,
            self.hold,
            Metrics(),
        )
        self.thread = threading.Thread(target=self.settler.run, daemon=True)

    def batch(self, generation: int) -> Batch:
        batch = Batch(Claim(generation, [make_event("k")], "there", "{1}"), 0.0, outcomes=[Delivered()])
        self.in_flight.enter()
        self.in_flight.holds(batch)
        return batch


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(relay.worker.settler, "MARK_SECONDS", 0.01)
    scene = Scene()
    yield scene
    scene.published.close()
    scene.thread.join(10)
    assert not scene.thread.is_alive()
    scene.bell.close()


def test_what_lasts_is_marked_once_and_settled_where_the_mark_has_left_it(scene: Scene) -> None:
    first, second = scene.batch(1), scene.batch(2)
    scene.thread.start()
    assert {scene.store.marked.get(), scene.store.marked.get()} == {1, 2}
    third = scene.batch(3)
    assert scene.store.marked.get() == 3, "those that were marked are not marked again"
    for batch in (first, second, third):
        scene.published.put(batch)
    assert scene.in_flight.wait_empty(10)
    assert scene.store.settled == ["moved"] * 3


def test_a_batch_that_was_never_published_says_nothing_about_its_broker(scene: Scene) -> None:
    """The breaker that its probe asks about stays as it is (there is none here: to close it would fail)."""
    subject = Subject("destination", "orders")
    batch = scene.batch(1)
    batch.outcomes, batch.probe = [TOO_LATE], subject
    scene.hold.engage("wrong password", 60.0)
    scene.published.put(batch)
    scene.thread.start()
    assert scene.in_flight.wait_empty(10)
    assert scene.store.settled == ["there"]
    assert scene.hold.remaining() > 0


def test_while_events_flow_nothing_is_marked(scene: Scene) -> None:
    batches = [scene.batch(generation) for generation in range(1, 6)]
    for batch in batches:
        scene.published.put(batch)
    scene.thread.start()
    assert scene.in_flight.wait_empty(10)
    assert scene.store.settled == ["there"] * 5
