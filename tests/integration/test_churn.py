"""In steady state claims are HOT updates and the table stays as large as it is."""

from dataclasses import dataclass

import pytest

from relay.settlement import Settlement
from tests.integration.store_kit import Raw, Stage

pytestmark = pytest.mark.usefixtures("any_postgres")

ROWS = 500
ROUNDS = 24
WARM_UP = 8


COUNTERS = "SELECT pg_stat_get_xact_tuples_updated(%(oid)s), pg_stat_get_xact_tuples_hot_updated(%(oid)s)"


@dataclass
class Updates:
    all: int = 0
    hot: int = 0


def churn(stage: Stage, completion: str) -> tuple[Updates, list[int]]:
    """Insert, claim and settle as many in every round, prune what is kept, vacuum; the claims' updates
    and the size after each round."""
    worker = stage.actor(completion=completion, stepwise=True)
    stage.sql.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)")
    updates = Updates()
    counting = False

    def count(query: str) -> None:
        """From the first statement of a claim to its end: nothing is flushed inside a transaction."""
        sign = {"WITH RECURSIVE ahead": -1, "COMMIT": 1}.get(query.strip()[:20])
        if counting and sign:
            row = worker.conn.cursor().execute(COUNTERS, {"oid": worker.table.oid}).fetchone()
            assert row is not None
            updates.all += sign * row[0]
            updates.hot += sign * row[1]

    worker.gate.before = count
    sizes = []
    key, payload = Raw("'key-' || i %% 100"), Raw("jsonb_build_object('x', repeat('y', 200))")
    stage.insert("", 2 * ROWS, partition_key=key, payload=payload)
    for n in range(ROUNDS):
        counting = n >= WARM_UP
        stage.insert("", ROWS, partition_key=key, payload=payload)
        claim = worker.must_claim(rows=ROWS)
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
    return updates, sizes


@pytest.mark.parametrize("completion", ["keep", "delete"])
def test_claims_are_hot_and_the_table_does_not_grow(stage: Stage, completion: str) -> None:
    updates, sizes = churn(stage, completion)
    assert updates.all == ROWS * (ROUNDS - WARM_UP)
    assert updates.hot >= 0.95 * updates.all
    assert max(sizes[WARM_UP:]) <= 1.25 * sizes[WARM_UP], sizes


def test_without_the_free_half_of_each_page_they_would_not_be_hot(stage: Stage) -> None:
    stage.sql.execute("ALTER TABLE outbox SET (fillfactor = 100)")
    updates, _ = churn(stage, "delete")
    assert updates.hot < 0.8 * updates.all
