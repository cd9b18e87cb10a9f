"""In steady state a claim changes no row, and the table stays as large as it is."""

from dataclasses import dataclass

import pytest

from relay.settlement import Settlement
from tests.integration.store_kit import Actor, Raw, Stage

pytestmark = pytest.mark.usefixtures("any_postgres")

ROWS = 500
ROUNDS = 24
WARM_UP = 8


COUNTERS = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'outbox'::regclass"


@dataclass
class Updates:
    all: int = 0
    hot: int = 0


def updates(worker: Actor) -> Updates:
    worker.conn.execute("SELECT pg_stat_force_next_flush()")
    row = worker.conn.execute(COUNTERS).fetchone()
    assert row is not None
    return Updates(*row)


def churn(stage: Stage, completion: str, *, marks: bool) -> tuple[Updates, list[int]]:
    """Insert, claim and settle as many in every round, prune what is kept, vacuum; the claims' updates
    and the size after each round."""
    worker = stage.actor(completion=completion, marks=marks)
    stage.sql.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)")
    made = Updates()
    sizes = []
    key, payload = Raw("'key-' || i %% 100"), Raw("jsonb_build_object('x', repeat('y', 200))")
    stage.insert("", 2 * ROWS, partition_key=key, payload=payload)
    for n in range(ROUNDS):
        stage.insert("", ROWS, partition_key=key, payload=payload)
        before = updates(worker)
        claim = worker.must_claim(rows=ROWS)
        if n >= WARM_UP:
            after = updates(worker)
            made.all += after.all - before.all
            made.hot += after.hot - before.hot
        assert len(claim.events) == ROWS
        retried = {event.key for event in claim.events[:3]}
        worker.settle(
            claim,
            [
                Settlement("retry", "x", 0.0)
                if event.key in retried and event.attempt < 3
                else Settlement("complete")
                for event in claim.events
            ],
        )
        stage.sql.execute("DELETE FROM outbox WHERE completed_at IS NOT NULL")
        stage.vacuum("TRUNCATE off")
        sizes.append(stage.value("SELECT pg_relation_size('outbox')"))
    return made, sizes


@pytest.mark.parametrize("completion", ["keep", "delete"])
def test_claims_change_no_row_and_the_table_does_not_grow(stage: Stage, completion: str) -> None:
    made, sizes = churn(stage, completion, marks=False)
    assert made.all == 0
    assert max(sizes[WARM_UP:]) <= 1.25 * sizes[WARM_UP], sizes


def test_where_every_claim_is_marked_the_table_does_not_grow_either(stage: Stage) -> None:
    made, sizes = churn(stage, "delete", marks=True)
    assert made.all == ROWS * (ROUNDS - WARM_UP)
    assert max(sizes[WARM_UP:]) <= 1.25 * sizes[WARM_UP], sizes
