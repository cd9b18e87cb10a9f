"""A relay for which laps are dear, as behind a held transaction: nothing is left lying, nothing overtakes."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from relay import scan
from relay.event import Event
from relay.metrics import Metrics
from relay.outcome import Delivered, Outcome
from relay.settings import Settings
from relay.store.floor import LOWEST, Floor
from relay.store.look import block_of
from relay.worker import claimer
from relay.worker.registration import Registration
from relay.worker.state import Hold
from tests.integration.store_kit import Raw, Stage, wait_until

pytestmark = pytest.mark.server

PATIENCE = 60.0


class Published:
    def __init__(self) -> None:
        self.by_key: dict[str, list[int]] = defaultdict(list)

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        for event in events:
            self.by_key[event.key].append(event.position)
        return [Delivered()] * len(events)

    def close(self) -> None:
        pass

    @property
    def positions(self) -> set[int]:
        return {position for of_key in list(self.by_key.values()) for position in list(of_key)}


@pytest.fixture(autouse=True)
def every_lap_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a million dead entries, where a lap that finds nothing takes a second."""
    monkeypatch.setattr(scan, "DEAR_SECONDS", -1.0)
    monkeypatch.setattr(claimer, "LONGEST_SLEEP", 0.01)


@contextmanager
def relaying(stage: Stage, published: Published) -> Iterator[Registration]:
    settings = Settings(
        database_url=SecretStr(stage.url), publisher="stdout", completion="delete", batch_size=200
    )
    registration = Registration(settings, published, Hold(), Metrics())
    thread = threading.Thread(target=registration.run, daemon=True)
    thread.start()
    wait_until(lambda: registration._claimer._laps.dear, "laps are dear")
    try:
        yield registration
    finally:
        registration.drain()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@contextmanager
def held(stage: Stage) -> Iterator[None]:
    with closing(psycopg.connect(stage.url)) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT FROM outbox")
        yield


def count_steps(floor: Floor) -> Iterator[int]:
    """How often it was asked to rise, whenever that is asked."""
    taken = 0
    rise = floor.rise

    def counted(conn: Any, given: int, *, steps: int = 1) -> None:
        nonlocal taken
        rise(conn, given, steps=steps)
        taken += steps

    floor.rise = counted  # type: ignore[method-assign]
    while True:
        yield taken


def test_late_commits_go_out_in_order_although_the_floor_rises(stage: Stage) -> None:
    published = Published()
    with held(stage), relaying(stage, published) as registration:
        floor = registration._claimer._floor
        steps = count_steps(floor)
        committed: set[int] = set()
        for number in range(5):
            late = stage.session()
            late.execute("BEGIN")
            first = stage.insert("late", conn=late)
            committed |= set(stage.insert("", 300, partition_key=Raw(f"'key-' || (i + {number})")))
            wait_until(lambda: published.positions >= committed, "the others are out", PATIENCE)  # noqa: B023
            enough = next(steps) + 3 * scan.PARTS
            wait_until(lambda: next(steps) > enough, "it had the time to rise", PATIENCE)  # noqa: B023
            assert floor.value <= first[0]
            late.execute("COMMIT")
            committed |= {*first, *stage.insert("late", 3)}
            wait_until(lambda: published.positions >= committed, "the late ones are out", PATIENCE)  # noqa: B023
            wait_until(lambda: floor.value > max(committed), "the floor has risen", PATIENCE)  # noqa: B023
    assert floor.value > LOWEST
    for key, positions in published.by_key.items():
        assert positions == sorted(positions), key


def test_a_backlog_is_taken_in_whole_laps_above_the_floor(stage: Stage) -> None:
    published = Published()
    with held(stage), relaying(stage, published) as registration:
        laps = registration._claimer._laps
        seen = threading.Event()
        helper = registration._helper
        called = helper.call

        def call(limits: object, at: int) -> None:
            if laps.behind:
                seen.set()
            called(limits, at)  # type: ignore[arg-type]

        helper.call = call  # type: ignore[method-assign]
        ids = set(stage.insert("", 20_000, partition_key=Raw("'key-' || (i %% 3000)")))
        wait_until(lambda: published.positions >= ids, "all are out", PATIENCE)
        wait_until(lambda: not laps.behind, "the backlog is gone", PATIENCE)
        assert seen.is_set()
        assert laps.dear
    for key, positions in published.by_key.items():
        assert positions == sorted(positions), key


def test_an_event_in_a_hole_of_the_table_is_found_soon_after_it_came(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the parts of one lap, which do not wait for as many sleeps."""
    hole = stage.insert("", 200, partition_key=Raw("'hole-' || i"))
    stage.insert("", 10_000, partition_key=Raw("'waits-' || i"), available_at=Raw("now() + interval '1 day'"))
    stage.sql.execute("DELETE FROM outbox WHERE id = ANY(%s)", [hole])
    stage.sql.execute("VACUUM outbox")
    published = Published()
    with relaying(stage, published) as registration:
        monkeypatch.setattr(claimer, "LONGEST_SLEEP", PATIENCE)
        laps = registration._claimer._laps
        wait_until(lambda: not laps._prompt, "the first lap is made")
        writer = stage.session()
        writer.execute("BEGIN")
        (event,) = stage.insert("in-the-hole", conn=writer)
        (tid,) = writer.execute("SELECT ctid::text FROM outbox WHERE id = %s", [event]).fetchone() or ("",)
        assert block_of(tid) < stage.value("SELECT pg_relation_size('outbox') / 8192") - scan.TAIL_BLOCKS
        writer.execute("COMMIT")
        wait_until(lambda: event in published.positions, "it is out", PATIENCE / 4)


def test_what_is_held_at_the_end_of_the_table_does_not_keep_others_waiting(stage: Stage) -> None:
    stage.sql.execute(
        "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by)"
        " VALUES ('event_type', 'Held', 'operator', '', '')"
    )
    published = Published()
    with held(stage), relaying(stage, published):
        stage.insert("", 2_000, partition_key=Raw("'held-' || i"), event_type="Held")
        ids = set(stage.insert("", 20, partition_key=Raw("'free-' || i")))
        wait_until(lambda: published.positions >= ids, "the others are out", PATIENCE)
    assert published.positions == ids
