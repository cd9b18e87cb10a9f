"""The model's rows change as PostgreSQL's do: the same lanes and acts, put to the real statements."""

from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

import pytest

from relay.settlement import Act, Settlement
from relay.store.redrive import Filter, retry, skip
from tests.integration.operator_kit import last
from tests.integration.store_kit import LOST_MORE, LOST_ONCE, Actor, Raw, Stage, positions
from tests.model.lanes import run_of
from tests.model.protocol import reaped_row, settled_row
from tests.model.state import Row, World, initial

pytestmark = pytest.mark.usefixtures("any_postgres")

LONG_AGO = Raw("now() - interval '2 hours'")
SOON = Raw("now() + interval '1 hour'")
PAST = Raw("now() - interval '1 hour'")
OVER = {"completed_at": PAST}
CLAIMED = {"claimed_by": "other", "claimed_at": PAST, "lease_expires_at": PAST, "lease_generation": 1}
# Each kind of row that a claim may meet: in the model, and as it lies in the table.
KINDS: list[tuple[Row, dict[str, Any]]] = [
    (Row(), {}),
    (Row(due=False), {"available_at": SOON}),
    (Row(attempts=1), {"available_at": PAST}),
    (Row(due=False, attempts=1), {"available_at": SOON}),
    (Row(losses=1), {}),
    (Row(losses=2, attempts=1), {"available_at": PAST}),
    (Row(losses=2), {"available_at": PAST}),
    (Row("processing", attempts=1), CLAIMED),
    (Row("failed"), {"available_at": Raw("'infinity'"), "parked_at": PAST}),
    (Row("dead_letter"), OVER | {"parked_at": PAST}),
]


@pytest.fixture
def stage(database: str) -> Iterator[Stage]:
    stage = Stage(database)
    yield stage
    stage.close()


def test_a_claim_takes_of_every_short_lane_what_the_model_says(stage: Stage) -> None:
    world = World("aaa", max_attempts=3)
    expected: dict[str, list[int]] = {}
    with stage.sql.transaction():
        for number, lane in enumerate(product(KINDS, repeat=3)):
            ids = [_insert(stage, f"key:{number}", row, columns) for row, columns in lane]
            state = initial(world)._replace(rows=tuple(row for row, _ in lane))
            expected[f"key:{number}"] = [ids[event] for event in run_of(world, state, "a")]
    worker = stage.actor()
    taken: dict[str, list[int]] = {key: [] for key in expected}
    for losses in ((0, 0), LOST_ONCE, LOST_MORE):
        for key, runs in _claim_everything(worker, losses).items():
            taken[key] += runs[:1] if losses == LOST_MORE else runs
    assert taken == expected
    assert 100 < sum(len(run) > 0 for run in taken.values()) < len(taken)


def _insert(stage: Stage, key: str, row: Row, columns: dict[str, Any]) -> int:
    decided = {"status": row.status, "attempts": row.attempts, "losses": row.losses}
    return stage.insert(key, **{"created_at": LONG_AGO, "available_at": LONG_AGO} | decided | columns)[0]


def _claim_everything(worker: Actor, losses: tuple[int, int]) -> dict[str, list[int]]:
    """What claims of this class take, by key, until three laps brought nothing."""
    taken: dict[str, list[int]] = {}
    last = worker.scan.laps
    while worker.scan.laps < last + 3:
        if claim := worker.claim(rows=1000, losses=losses):
            last = worker.scan.laps
            for event in claim.events:
                taken.setdefault(event.key, []).append(event.position)
    return taken


BEFORE = [Row(attempts=attempts, losses=losses) for attempts in (0, 1) for losses in (0, 1, 2)]


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("act", get_args(Act))
def test_a_settle_leaves_a_row_as_the_model_says(stage: Stage, act: Act, marks: bool) -> None:
    worker = stage.actor(marks=marks)
    for row in BEFORE:
        position = _insert(stage, "key", row, {})
        claim = worker.must_claim(losses=(row.losses, row.losses))
        assert positions(claim) == [position]
        assert _as_in_the_model(stage, position) == (_claimed(row) if marks else row)
        worker.settle(claim, Settlement(act, "error", 60.0))
        assert _as_in_the_model(stage, position) == settled_row(_claimed(row), act)
        _clear(stage)


@pytest.mark.parametrize("on_exhausted", ["dead_letter", "block"])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("marks", [True, False])
def test_a_reap_leaves_a_row_as_the_model_says(
    stage: Stage, marks: bool, alone: bool, on_exhausted: Any
) -> None:
    worker = stage.actor(on_exhausted=on_exhausted, marks=marks)
    world = World("aa", max_attempts=2, losses=3, on_exhausted=on_exhausted)
    for row in BEFORE:
        position = _insert(stage, "key", row, {"max_attempts": 2})
        if not alone:
            _insert(stage, "another", row, {})
        worker.must_claim(losses=(row.losses, row.losses))
        assert worker.reap(gone=[worker.name]).leases == 1
        assert _as_in_the_model(stage, position) == reaped_row(world, _claimed(row), alone)
        _clear(stage)


@pytest.mark.parametrize("parked", ["dead_letter", "block"])
def test_a_redrive_leaves_a_row_as_the_model_says(stage: Stage, parked: Act) -> None:
    worker = stage.actor()
    for row in BEFORE:
        position = _insert(stage, "key", row, {})
        worker.settle(worker.must_claim(losses=(row.losses, row.losses)), Settlement(parked, "error"))
        assert last(retry(worker.conn, worker.table, Filter(), actor="ann")).changed == 1
        assert _as_in_the_model(stage, position) == Row()
        _clear(stage)


@pytest.mark.parametrize("act", ["block", "retry", "release"])
def test_a_skip_leaves_a_row_as_the_model_says(stage: Stage, act: Act) -> None:
    worker = stage.actor()
    for row in BEFORE:
        position = _insert(stage, "key", row, {})
        worker.settle(worker.must_claim(losses=(row.losses, row.losses)), Settlement(act, "error", 60.0))
        assert last(skip(worker.conn, worker.table, Filter(), actor="ann", reason="x")).changed == 1
        assert _as_in_the_model(stage, position) == Row("dead_letter")
        _clear(stage)


def _claimed(row: Row) -> Row:
    return Row("processing", True, row.attempts + 1, row.losses)


def _as_in_the_model(stage: Stage, position: int) -> Row:
    row = stage.row(position)
    if row["status"] not in ("pending", "processing"):
        return Row(row["status"])
    due = stage.value("SELECT available_at <= clock_timestamp() FROM outbox WHERE id = %s", position)
    return Row(row["status"], due, row["attempts"], row["losses"])


def _clear(stage: Stage) -> None:
    stage.sql.execute("TRUNCATE outbox, outbox_leases")
