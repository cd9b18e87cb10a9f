"""What the gauges cost does not depend on how large the outbox is.

Costs are pages that the statements touch, of which the server counts every one. For larger tables than a test
should make: `RELAY_TEST_ROWS=10000000 pytest tests/integration/test_metrics_cost.py --timeout 3600`.
"""

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest
from psycopg import Connection, Cursor

from relay.store.gauges import ROWS_FOR_GAUGES, Gauges
from tests.integration.store_kit import Stage
from tests.integration.test_plans import outbox_scans

pytestmark = pytest.mark.slow

Tell = Callable[[str, object], None]

ROWS = int(os.environ.get("RELAY_TEST_ROWS", "300000"))
# So many rows are looked at in each of four ways (fresh, waiting, blocked, parked), each at the cost of its
# own page and a few of the index.
MOST_PAGES = 6 * ROWS_FOR_GAUGES

# Of a hundred: 45 pending, 35 that wait for a retry, 10 completed, 5 dead letters, 5 that block their key.
FILL = """
INSERT INTO outbox
  (partition_key, event_type, payload, status, attempts, available_at, completed_at, parked_at)
SELECT 'order:' || i / 2, 'OrderPaid', jsonb_build_object('order_id', i),
       (CASE WHEN k < 80 THEN 'pending' WHEN k < 90 THEN 'completed' WHEN k < 95 THEN 'dead_letter'
             ELSE 'failed' END)::outbox_status,
       CASE WHEN k < 45 THEN 0 ELSE 1 END,
       CASE WHEN k < 45 THEN now() WHEN k < 80 THEN now() + k * interval '1 minute'
            WHEN k >= 95 THEN 'infinity' ELSE now() END,
       CASE WHEN k >= 80 AND k < 95 THEN now() END, CASE WHEN k >= 90 THEN now() END
FROM (SELECT i, (i::bigint * 7919) %% 100 AS k FROM generate_series(%s + 1, %s) i) r
"""


def fill(stage: Stage, start: int, end: int) -> None:
    for first in range(start, end, 1_000_000):
        stage.sql.execute(FILL, [first, min(end, first + 1_000_000)])
    stage.sql.execute("ANALYZE outbox")


class Costs:
    """Runs every statement of a reading once before, to see what it touches."""

    def __init__(self) -> None:
        self.pages = 0
        self.access: set[str] = set()

    def explain(self, conn: Connection[Any], query: str, parameters: Any) -> None:
        if "outbox" not in query:
            return
        with Cursor(conn) as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {query}", parameters)
            ((found,),) = cursor.fetchall()
        plan = found[0]["Plan"]
        self.pages += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        self.access |= {str(node.get("Index Name", node["Node Type"])) for node in outbox_scans(plan)}


def pages_of_a_reading(stage: Stage) -> int:
    """Pages that one reading touches; no statement of it may scan the table."""
    actor, costs = stage.actor(f"worker-{perf_counter()}"), Costs()
    actor.gate.aside = costs.explain
    reading = Gauges(actor.table).read(actor.conn)
    assert reading is not None
    assert not reading.pending.exact
    assert costs.access <= {"outbox_fresh", "outbox_due", "outbox_parked"}
    return costs.pages


def milliseconds_of_a_reading(stage: Stage) -> float:
    actor = stage.actor(f"worker-{perf_counter()}")
    gauges, times = Gauges(actor.table), []
    for _ in range(5):
        started = perf_counter()
        assert gauges.read(actor.conn)
        times.append(perf_counter() - started)
    return sorted(times)[2] * 1000


def test_a_reading_costs_the_same_on_a_table_ten_times_as_large(stage: Stage, record_property: Tell) -> None:
    small, large = ROWS // 10, ROWS
    fill(stage, 0, small)
    before = pages_of_a_reading(stage)
    fill(stage, small, large)
    after = pages_of_a_reading(stage)
    told = f"gauges: {before} pages at {small} rows, {after} pages at {large} rows"
    record_property("tells", f"{told}, {milliseconds_of_a_reading(stage):.0f} ms")
    assert after < 2 * before
    assert after < MOST_PAGES


def test_estimates_are_close_to_the_truth(stage: Stage) -> None:
    fill(stage, 0, 60_000)
    actor = stage.actor()
    reading = Gauges(actor.table).read(actor.conn)
    assert reading is not None
    assert reading.pending.value == pytest.approx(48_000, rel=0.1)
    assert reading.retrying.value == pytest.approx(21_000, rel=0.1)
    assert (reading.failed.value, reading.failed.exact) == (3_000, True)
    assert (reading.dead_letter.value, reading.dead_letter.exact) == (3_000, True)
    assert reading.blocked_keys.value == pytest.approx(3_000, rel=0.01)
