"""Who claims beside the claimer, and how what is claimed gets to the publisher."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest

from relay.metrics import Metrics
from relay.scan import Scan
from relay.store.look import Claim, Limits, Look
from relay.testing import make_event
from relay.worker.channel import Channel
from relay.worker.helper import Helper
from relay.worker.intake import Intake
from relay.worker.state import Batch, Hold, InFlight

LIMITS = Limits(10, 1000)
PATIENCE = 10.0


def look(generation: int = 0, *, full: bool = False) -> Look:
    claim = Claim(generation, [make_event("k")], "", "") if generation else None
    return Look(claim, 1, full=full)


class Claims:
    """Answers one claim after another, and waits where there is no answer yet."""

    def __init__(self) -> None:
        self.answers: Channel[Callable[[], Look]] = Channel(100)
        self.asked: Channel[Limits] = Channel(100)
        self.starts: list[int] = []

    def claim(self, conn: Any, scan: Scan, limits: Limits) -> Look:
        self.starts.append(scan.start)
        self.asked.put(limits)
        answer = self.answers.get()
        return answer() if answer else look()

    def answer(self, *looks: Look) -> None:
        for each in looks:
            self.answers.put(lambda each=each: each)  # type: ignore[misc]


class Scene:
    def __init__(self) -> None:
        self.claimed: Channel[Batch] = Channel(100)
        self.in_flight = InFlight()
        self.hold = Hold()
        self.claims = Claims()
        self.intake = Intake(30.0, self.claimed, self.in_flight, Metrics())
        self.helper = Helper(None, self.claims, self.intake, self.hold)  # type: ignore[arg-type]

    @contextmanager
    def working(self) -> Iterator[threading.Thread]:
        thread = threading.Thread(target=self.helper.run, daemon=True)
        thread.start()
        yield thread
        self.helper.stop()
        self.claims.answers.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    def asked(self) -> int:
        """How often it claimed, once it has ended."""
        self.claims.asked.close()
        return sum(1 for _ in iter(self.claims.asked.get, None))

    def generations(self) -> list[int]:
        self.claimed.close()
        return [batch.claim.generation for batch in iter(self.claimed.get, None)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_it_claims_until_a_claim_is_not_filled(scene: Scene) -> None:
    scene.claims.answer(look(1, full=True), look(2, full=True), look(3))
    with scene.working():
        scene.helper.call(LIMITS, 0)
        for _ in range(3):
            assert scene.claims.asked.get() == LIMITS
    assert scene.asked() == 0
    assert scene.generations() == [1, 2, 3]


def test_it_claims_nothing_until_it_is_called(scene: Scene) -> None:
    with scene.working():
        pass
    assert scene.asked() == 0


def test_it_rests_until_it_is_called_and_again_when_a_claim_was_not_filled(scene: Scene) -> None:
    def rests() -> bool:
        return scene.helper.resting

    assert rests()
    with scene.working():
        scene.helper.call(LIMITS, 0)
        assert scene.claims.asked.get() == LIMITS
        assert not rests(), "it may have locked what a lap passes over"
        scene.claims.answer(look(1))
        deadline = monotonic() + PATIENCE
        while not rests():
            assert monotonic() < deadline


def test_it_comes_again_whenever_it_is_called(scene: Scene) -> None:
    scene.claims.answer(look(1), look(2))
    with scene.working():
        for _ in range(2):
            scene.helper.call(LIMITS, 0)
            assert scene.claims.asked.get() == LIMITS
    assert scene.generations() == [1, 2]


def test_it_begins_half_a_lap_away_from_the_claimer(scene: Scene) -> None:
    scene.claims.answer(look(1), look(2))
    with scene.working():
        for at in (100, 900):
            scene.helper.call(LIMITS, at)
            scene.claims.asked.get()
    assert scene.claims.starts == [612, 388]


def test_a_look_that_was_filled_with_what_it_may_not_take_is_no_reason_for_another(scene: Scene) -> None:
    scene.claims.answer(look(full=True))
    with scene.working():
        scene.helper.call(LIMITS, 0)
        scene.claims.asked.get()
    assert scene.asked() == 0


def test_while_claiming_is_held_it_claims_nothing(scene: Scene) -> None:
    scene.hold.engage("a setting is wrong", at_least=60.0)
    with scene.working():
        scene.helper.call(LIMITS, 0)
    assert scene.asked() == 0


def test_after_a_stop_it_claims_nothing_more(scene: Scene) -> None:
    scene.claims.answer(look(1, full=True))
    scene.helper.call(LIMITS, 0)
    scene.helper.stop()
    with scene.working():
        pass
    assert scene.asked() == 0


def test_a_claim_under_way_counts_as_in_flight_until_it_is_settled(scene: Scene) -> None:
    with scene.working():
        scene.helper.call(LIMITS, 0)
        scene.claims.asked.get()
        assert not scene.in_flight.wait_empty(0.0), "it may come back with something"
        scene.claims.answer(look(1))
    assert scene.generations() == [1]
    assert not scene.in_flight.wait_empty(0.0), "the settler lets it go"


def test_what_found_nothing_is_not_in_flight(scene: Scene) -> None:
    scene.intake.take(look)
    assert scene.in_flight.wait_empty(0.0)


def test_what_nobody_takes_any_more_is_not_in_flight(scene: Scene) -> None:
    scene.claimed.close()
    scene.intake.take(lambda: look(1))
    assert scene.in_flight.wait_empty(0.0)


def test_a_claim_that_fails_is_not_in_flight(scene: Scene) -> None:
    def broken() -> Look:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        scene.intake.take(broken)
    assert scene.in_flight.wait_empty(0.0)
