"""A floor: below it there is no fresh event, and none will come."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest

import relay.store.floor
from relay.scan import PARTS, Scan
from relay.store.floor import LOWEST, Floor
from relay.store.look import Limits
from tests.integration.store_kit import Actor, Raw, Stage, positions
from tests.integration.test_plans import Explainer

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("any_postgres")]


def rise(floor: Any, worker: Actor, given: int) -> None:
    """As far as a look at all buckets can tell."""
    floor.rise(worker.conn, given, steps=PARTS)


def above(floor: Floor, rows: int = 100) -> Limits:
    return Limits(rows, 1 << 24, floor=floor.value)


def claim(worker: Actor, limits: Limits) -> list[int]:
    return positions(worker.claiming.claim(worker.conn, Scan(), limits).claim)


def test_it_is_the_first_fresh_event_there_is(stage: Stage) -> None:
    first, second = stage.insert("a", 2)
    worker = stage.actor(completion="delete")
    floor = Floor(worker.table)
    assert floor.value == LOWEST
    rise(floor, worker, second)
    assert floor.value == first
    worker.settle(worker.must_claim(rows=1))
    rise(floor, worker, second)
    assert floor.value == second


def test_where_nothing_fresh_is_left_it_is_behind_the_last_position_that_is_known(stage: Stage) -> None:
    (given,) = stage.insert("a")
    worker = stage.actor(completion="delete")
    worker.settle(worker.must_claim())
    (later,) = stage.insert("b")
    floor = Floor(worker.table)
    rise(floor, worker, given)
    assert floor.value == given + 1
    rise(floor, worker, later)
    assert floor.value == later


def test_it_never_falls(stage: Stage) -> None:
    ids = stage.insert("a", 3)
    worker = stage.actor(completion="delete")
    worker.settle(worker.must_claim())
    floor = Floor(worker.table)
    rise(floor, worker, ids[-1])
    rise(floor, worker, ids[0])
    assert floor.value == ids[-1] + 1


def test_behind_a_pooler_it_stays_where_it_is(stage: Stage) -> None:
    """There a crash of the server goes unnoticed, after which events may be back that had gone."""
    (given,) = stage.insert("a")
    worker = stage.actor(completion="delete")
    worker.settle(worker.must_claim())
    worker.conn.pooled = True  # type: ignore[attr-defined]
    floor = Floor(worker.table)
    rise(floor, worker, given)
    assert floor.value == LOWEST


def test_events_in_flight_marked_or_not_and_released_ones_are_still_there(stage: Stage) -> None:
    (first,) = stage.insert("a")
    worker = stage.actor(marks=False)
    floor = Floor(worker.table)
    in_flight = worker.must_claim()
    rise(floor, worker, first)
    assert floor.value == first
    in_flight = worker.settling.mark(worker.conn, in_flight)
    rise(floor, worker, first)
    assert floor.value == first
    worker.settle(in_flight, "release")
    rise(floor, worker, first)
    assert floor.value == first
    assert claim(worker, above(floor)) == [first]


def test_what_waited_or_failed_is_found_below_it(stage: Stage) -> None:
    """They are not fresh, and looks for them have no floor."""
    waited, delayed = stage.insert("a")[0], stage.insert("b", available_at=Raw("now() + interval '1 us'"))[0]
    worker = stage.actor()
    worker.settle(worker.must_claim(), "retry")
    (behind,) = stage.insert("a")
    floor = Floor(worker.table)
    rise(floor, worker, behind)
    assert floor.value == behind
    stage.all_due()
    assert claim(worker, above(floor)) == [waited, delayed], "one that was tried goes alone"


@dataclass(frozen=True)
class Late:
    """Events of the key `a` that are inserted but not committed."""

    ids: list[int]
    commit: Callable[[], Any]
    between: Callable[[], Any] = lambda: None  # after it was asked for the first time


def late_commit(stage: Stage) -> Late:
    writer = stage.session()
    writer.execute("BEGIN")
    return Late(stage.insert("a", conn=writer), lambda: writer.execute("COMMIT"))


def late_commit_behind_a_savepoint(stage: Stage) -> Late:
    writer = stage.session()
    writer.execute("BEGIN")
    writer.execute("SAVEPOINT s")
    stage.insert("a", conn=writer)
    writer.execute("ROLLBACK TO s")
    return Late(stage.insert("a", conn=writer), lambda: writer.execute("COMMIT"))


def prepared(stage: Stage) -> Late:
    writer = stage.session()
    writer.execute("BEGIN")
    ids = stage.insert("a", conn=writer)
    writer.execute("PREPARE TRANSACTION 'floor'")
    return Late(ids, lambda: writer.execute("COMMIT PREPARED 'floor'"))


def prepared_meanwhile(stage: Stage) -> Late:
    writer = stage.session()
    writer.execute("BEGIN")
    return Late(
        stage.insert("a", conn=writer),
        lambda: writer.execute("COMMIT PREPARED 'floor'"),
        lambda: writer.execute("PREPARE TRANSACTION 'floor'"),
    )


def a_position_taken_before_the_row_is_written(stage: Stage) -> Late:
    """The writer waits in the middle of its INSERT: it has a position, but no transaction id yet."""
    stage.sql.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_lock(4711); PERFORM pg_advisory_unlock(4711); RETURN NEW; END';"
        "CREATE TRIGGER wait BEFORE INSERT ON outbox FOR EACH ROW WHEN (NEW.event_type = 'Slow')"
        " EXECUTE FUNCTION wait()"
    )
    gate, writer = stage.session(), stage.session()
    gate.execute("SELECT pg_advisory_lock(4711)")
    position = stage.value("SELECT last_value FROM outbox_id_seq") + 1
    work = stage.in_background(writer, lambda: stage.insert("a", conn=writer, event_type="Slow"))
    assert stage.value("SELECT last_value FROM outbox_id_seq") == position

    def commit() -> None:
        gate.execute("SELECT pg_advisory_unlock(4711)")
        assert work.result() == [position]

    return Late([position], commit)


LATE = [
    late_commit,
    late_commit_behind_a_savepoint,
    prepared,
    prepared_meanwhile,
    a_position_taken_before_the_row_is_written,
]


def overtakes(stage: Stage, scenario: Callable[[Stage], Late], module: ModuleType) -> bool:
    """Whether the floor rises above what is committed late, so that later events of the key go first."""
    worker = stage.actor(completion="delete")
    stage.insert("other")
    late = scenario(stage)
    (seen,) = stage.insert("b")
    while claimed := worker.claim():
        worker.settle(claimed)
    floor = module.Floor(worker.table)
    rise(floor, worker, seen)
    late.between()
    rise(floor, worker, seen)
    late.commit()
    later = stage.insert("a")
    return claim(worker, above(floor)) != late.ids + later


@pytest.mark.parametrize("late", LATE)
def test_it_does_not_rise_above_a_position_that_may_yet_be_committed(
    stage: Stage, late: Callable[[Stage], Late]
) -> None:
    assert not overtakes(stage, late, relay.store.floor)


NOBODY_IS_WAITED_FOR = ("== (server, True):", "== ():")
ONLY_THOSE_WITH_TRANSACTION_IDS = (
    "mode = 'RowExclusiveLock'",
    (
        "mode = 'RowExclusiveLock' AND virtualtransaction IN ("
        "SELECT virtualtransaction FROM pg_catalog.pg_locks WHERE locktype = 'transactionid')"
    ),
)


@pytest.mark.parametrize(
    "late, edit",
    [
        (late_commit, NOBODY_IS_WAITED_FOR),
        (late_commit_behind_a_savepoint, NOBODY_IS_WAITED_FOR),
        (prepared, NOBODY_IS_WAITED_FOR),
        (prepared_meanwhile, NOBODY_IS_WAITED_FOR),
        (a_position_taken_before_the_row_is_written, ONLY_THOSE_WITH_TRANSACTION_IDS),
    ],
)
def test_a_mutant_is_caught(stage: Stage, late: Callable[[Stage], Late], edit: tuple[str, str]) -> None:
    source = inspect.getsource(relay.store.floor)
    assert edit[0] in source, "mend this mutant"
    mutant = ModuleType("mutant")
    exec(compile(source.replace(*edit), "<mutant of floor>", "exec"), mutant.__dict__)
    assert overtakes(stage, late, mutant)


def test_it_rises_when_those_are_gone_who_wrote_then_whoever_writes_now(stage: Stage) -> None:
    writers = [stage.session(), stage.session()]
    writers[0].execute("BEGIN")
    stage.insert("a", conn=writers[0])
    (seen,) = stage.insert("b")
    worker = stage.actor(completion="delete")
    worker.settle(worker.must_claim())
    floor = Floor(worker.table)
    rise(floor, worker, seen)
    writers[1].execute("BEGIN")
    stage.insert("c", conn=writers[1])
    writers[0].execute("ROLLBACK")
    rise(floor, worker, seen)
    assert floor.value == seen + 1


def test_it_tells_whether_it_rises(stage: Stage) -> None:
    ids = stage.insert("a", 2)
    worker = stage.actor(completion="delete")
    floor = Floor(worker.table)
    told = [floor.stuck]

    def tell() -> None:
        rise(floor, worker, ids[-1])
        told.append(floor.stuck)

    tell()
    tell()  # the first event is still there
    writer = stage.session()
    writer.execute("BEGIN")
    stage.insert("b", conn=writer)
    worker.settle(worker.must_claim())
    tell()  # somebody writes
    writer.execute("ROLLBACK")
    tell()
    assert told == [True, False, True, True, False]


def test_each_step_looks_at_a_part_of_the_buckets(stage: Stage) -> None:
    ids = stage.insert("", 300, partition_key=Raw("'key-' || i"))
    worker = stage.actor(completion="delete")
    floor = Floor(worker.table)
    for _ in range(PARTS - 1):
        floor.rise(worker.conn, ids[-1])
    assert floor.value == LOWEST
    worker.settle(worker.must_claim(rows=1000))
    floor.rise(worker.conn, ids[-1])
    assert floor.value in ids, "what has left since does not matter"


def test_a_server_that_was_started_anew_knows_transactions_by_other_names(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (late,) = stage.insert("a")
    (seen,) = stage.insert("b")
    worker = stage.actor(completion="delete")
    floor = Floor(worker.table)
    starts = iter(["then", "now", "now", "now"])
    asked: list[str] = []

    def ask(question: str, **values: Any) -> tuple[Any, ...]:
        answer = Floor._ask(floor, question, **values)
        asked.append(question)
        return (next(starts), *answer[1:]) if len(answer) == 2 else answer

    monkeypatch.setattr(floor, "_ask", ask)
    rise(floor, worker, seen)
    assert asked.count(floor._list) == 2, "it lists them again"
    assert floor.value == late


def test_those_who_only_read_do_not_keep_it_down(stage: Stage) -> None:
    reader = stage.session()
    reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    reader.execute("SELECT FROM outbox")
    (seen,) = stage.insert("a")
    worker = stage.actor(completion="delete")
    worker.settle(worker.must_claim())
    floor = Floor(worker.table)
    rise(floor, worker, seen)
    assert floor.value == seen + 1


def test_events_that_are_gone_but_not_forgotten_cost_a_lap_above_it_no_look_at_their_rows(
    stage: Stage,
) -> None:
    worker = stage.actor(completion="delete", marks=False)
    holder = stage.session()
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT FROM outbox")
    for _ in range(4):
        last = stage.insert("", 5_000, partition_key=Raw("'key-' || i"))[-1]
        while claimed := worker.claim(rows=5_000):
            worker.settle(claimed)
    floor = Floor(worker.table)
    rise(floor, worker, last)
    ids = stage.insert("", 50, partition_key=Raw("'key-' || i"))
    explainer = Explainer(worker, analyze=True)
    scan, limits, taken = Scan(), above(floor), []
    while not scan.laps:
        look = worker.claiming.claim(worker.conn, scan, limits)
        taken += positions(look.claim)
    assert sorted(taken) == ids
    with_floor = sum(seen.pages for seen in explainer.seen)
    explainer.seen.clear()
    scan = Scan()
    while not scan.laps:
        worker.claiming.claim(worker.conn, scan, replace(limits, floor=None))
    assert with_floor < sum(seen.pages for seen in explainer.seen) / 10
