"""What is past its retention is found by its place, whatever the table has been through."""

import json
from datetime import timedelta
from typing import Any

import pytest

from relay.store import retention
from relay.store.connection import connect
from relay.store.prune import COMPLETED, Pruning
from relay.store.sqltext import fill
from relay.store.sweep import STEP_BLOCKS, Sweep
from tests.integration.store_kit import Raw, Stage

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("any_postgres")]

WEEK = timedelta(days=7)


def completed(stage: Stage, n: int, days: int, **columns: Any) -> list[int]:
    moment = Raw(f"now() - interval '{days} days'")
    columns = {"status": "completed", "partition_key": Raw("'k' || i"), **columns}
    return stage.insert("", n, completed_at=moment, **columns)


def test_what_is_old_goes_and_all_else_stays(stage: Stage) -> None:
    completed(stage, 3000, days=8)
    parked = completed(stage, 2, days=8, status="dead_letter", parked_at=Raw("now() - interval '8 days'"))
    young, live = completed(stage, 5, days=6), stage.insert("a", 3)
    stage.sql.execute("INSERT INTO outbox_archive SELECT * FROM outbox WHERE status = 'completed'")
    stage.sql.execute(
        "INSERT INTO inbox_dedupe (consumer, event_id, seen_at)"
        " SELECT 'billing', 'e' || i, now() - i * interval '1 day' FROM generate_series(1, 20) i"
    )
    worker = stage.actor()
    assert Pruning(worker.table, WEEK, None, WEEK).prune(worker.conn) == 3000 + 3000 + 14
    assert [row["id"] for row in stage.rows()] == sorted([*parked, *young, *live])
    assert stage.value("SELECT count(*) FROM outbox_archive") == 5
    assert stage.value("SELECT count(*) FROM inbox_dedupe") == 6
    assert Pruning(worker.table, None, WEEK, None).prune(worker.conn) == 2


def test_more_goes_at_once_than_a_fast_relay_completes_in_that_time(stage: Stage) -> None:
    completed(stage, 50_000, days=8)
    worker = stage.actor()
    pruning = Pruning(worker.table, WEEK, None, None)
    calls = 0
    while pruning.prune(worker.conn):
        calls += 1
    assert stage.value("SELECT count(*) FROM outbox") == 0
    assert calls <= 10


def test_a_step_reads_as_many_blocks_in_a_table_whose_space_was_used_again(stage: Stage) -> None:
    """Where an index by ranges of blocks would send it through the whole table."""
    completed(stage, 60_000, days=8)
    worker = stage.actor()
    pruning = Pruning(worker.table, WEEK, None, None)
    while pruning.prune(worker.conn):
        pass
    stage.sql.execute("VACUUM outbox")
    completed(stage, 50_000, days=1)
    completed(stage, 20, days=8)
    stage.sql.execute("ANALYZE outbox")
    blocks = stage.value("SELECT pg_relation_size('outbox') / 8192")
    assert blocks > 3 * STEP_BLOCKS
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {fill(COMPLETED, worker.table.name)}"
    values = {"age": WEEK, "first": f"({STEP_BLOCKS},0)", "end": f"({2 * STEP_BLOCKS},0)"}
    with connect(stage.url) as conn:
        row = conn.execute(explain, values).fetchone()
    assert row is not None
    plan = (row[0] if isinstance(row[0], list) else json.loads(row[0]))[0]["Plan"]
    assert plan["Plans"][0]["Node Type"] == "Tid Range Scan"
    assert plan["Plans"][0]["Shared Hit Blocks"] + plan["Plans"][0]["Shared Read Blocks"] <= STEP_BLOCKS + 8
    sweep = Sweep("outbox", fill(COMPLETED, worker.table.name), {"age": WEEK})
    gone = sweep.step(worker.conn)
    while not sweep.came_around:
        gone += sweep.step(worker.conn)
    assert gone == 20


def test_an_operators_prune_passes_every_place_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ROUND", 700)
    completed(stage, 2000, days=8)
    completed(stage, 30, days=8, status="dead_letter", parked_at=Raw("now() - interval '8 days'"))
    operator = stage.actor("operator")
    places: list[str] = []
    operator.gate.aside = lambda _conn, query, values: (
        places.append(values["after"]) if "ctid >" in query else None
    )
    cutoff = retention.cutoff(operator.conn, WEEK)
    cutoffs: retention.Cutoffs = {"completed": cutoff, "dead_letter": cutoff}
    *_, gone = retention.prune(operator.conn, operator.table, cutoffs, actor="ann")
    assert gone == {"completed": 2000, "dead_letter": 30}
    assert len(places) == len(set(places)) == 3
