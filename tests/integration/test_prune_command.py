"""`relay prune`: deletes what is past its retention and nothing else, in batches, each recorded."""

import json
import signal
from datetime import timedelta
from typing import Any

import pytest

from relay.reading import Count
from relay.store import retention
from tests.integration.cli_kit import failure, invoke, nowhere
from tests.integration.operator_kit import answer, audit, done, rows, url
from tests.integration.store_kit import Stage

__all__ = ["nowhere", "url"]
pytestmark = pytest.mark.usefixtures("nowhere", "url")

# One of each status, each ten days old; then one that was completed just now.
OUTBOX = """
INSERT INTO outbox (created_at, available_at, partition_key, event_type, idempotency_key, payload, status,
  attempts, claimed_by, claimed_at, lease_generation, lease_expires_at, completed_at, parked_at)
SELECT at, at, 'k', 'E', id, '{}', status::outbox_status, 1,
       CASE WHEN status = 'processing' THEN 'w' END, CASE WHEN status = 'processing' THEN at END,
       CASE WHEN status = 'processing' THEN 1 END, CASE WHEN status = 'processing' THEN at END,
       CASE WHEN status IN ('completed', 'dead_letter') THEN at END,
       CASE WHEN status IN ('failed', 'dead_letter') THEN at END
FROM (SELECT id, status, now() - age * interval '1 day' AS at FROM (VALUES
  ('old-completed', 'completed', 10), ('old-dead', 'dead_letter', 10), ('old-failed', 'failed', 10),
  ('old-pending', 'pending', 10), ('old-processing', 'processing', 10), ('new-completed', 'completed', 0),
  ('new-dead', 'dead_letter', 0)) v(id, status, age)) x
"""
ARCHIVE = """
INSERT INTO outbox_archive (id, created_at, available_at, partition_bucket, status, attempts, max_attempts,
  losses, partition_key, event_type, idempotency_key, payload, completed_at)
SELECT n, at, at, 0, 'completed', 1, 5, 0, 'k', 'E', 'archived-' || n, '{}', at
FROM (SELECT n, now() - n * interval '1 day' AS at FROM generate_series(1, 10) n) x
"""


def fill_up(stage: Stage) -> None:
    stage.sql.execute(OUTBOX)
    stage.sql.execute(ARCHIVE)


def left(url: str) -> set[str]:
    return {row["idempotency_key"] for row in rows(url, "SELECT idempotency_key FROM outbox")}


ALL = {
    "old-completed",
    "old-dead",
    "old-failed",
    "old-pending",
    "old-processing",
    "new-completed",
    "new-dead",
}


@pytest.mark.usefixtures("any_postgres")
def test_completed_and_archived_events_past_their_retention_go_and_nothing_else(
    stage: Stage, url: str
) -> None:
    fill_up(stage)
    assert done(invoke("prune", "--actor", "ann")).splitlines() == [
        "completed, older than 7 d: 1 event deleted",
        "archived, older than 7 d: 4 events deleted",
    ]
    assert left(url) == ALL - {"old-completed"}
    assert stage.value("SELECT array_agg(id ORDER BY id) FROM outbox_archive") == [1, 2, 3, 4, 5, 6]
    assert audit(url) == [("ann", "prune", None), ("ann", "prune", None)]
    details = rows(url, "SELECT details FROM outbox_audit ORDER BY id")[1]["details"]
    assert (details["kind"], details["events"]) == ("archived", 4)


@pytest.mark.usefixtures("any_postgres")
def test_dead_letters_go_only_when_asked_for_each_with_its_own_audit(stage: Stage, url: str) -> None:
    fill_up(stage)
    said = answer("prune", "--dead-letters", "--older-than", "9 days", "--actor", "ann")
    assert said["deleted"] == {"completed": 1, "archived": 2, "dead_letter": 1}
    assert left(url) == ALL - {"old-completed", "old-dead"}
    assert ("ann", "prune", "old-dead") in audit(url)


def test_a_dry_run_counts_and_deletes_nothing(stage: Stage, url: str) -> None:
    fill_up(stage)
    said = answer("prune", "--dead-letters", "--older-than", "0s", "--dry-run")
    assert {kind: count["value"] for kind, count in said["matched"].items()} == {
        "completed": 2,
        "archived": 10,
        "dead_letter": 2,
    }
    assert said["deleted"] == {"completed": 0, "archived": 0, "dead_letter": 0}
    assert "2 events would be deleted" in done(invoke("prune", "--older-than", "0s", "--dry-run"))
    assert (left(url), audit(url)) == (ALL, [])
    assert stage.value("SELECT count(*) FROM outbox_archive") == 10


def test_without_an_age_nothing_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(invoke("prune", "--dead-letters"), 2) == (
        'dead_letter_retention is "never": say --older-than with --dead-letters'
    )
    monkeypatch.setenv("RELAY_RETENTION", "never")
    assert failure(invoke("prune"), 2) == 'retention is "never": say --older-than'
    assert failure(invoke("prune", "--older-than", "soon"), 2).startswith("--older-than soon is no duration")
    result = invoke("prune", "--older-than", "1d")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "nothing is that old\n")


def many(stage: Stage, n: int, status: str = "completed") -> None:
    stage.sql.execute(
        "INSERT INTO outbox (partition_key, event_type, payload, status, completed_at, parked_at)"
        " SELECT 'k' || i, 'E', '{}', %s::outbox_status, now() - interval '10 days',"
        "  CASE WHEN %s = 'dead_letter' THEN now() - interval '10 days' END"
        " FROM generate_series(1, %s) i",
        [status, status, n],
    )


@pytest.mark.usefixtures("any_postgres")
def test_many_events_go_in_small_batches_and_live_ones_beside_them_stay(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROUND", 2500)
    many(stage, 7000)
    stage.insert("a", 10)
    operator = stage.actor("operator")
    cutoffs: retention.Cutoffs = {"completed": retention.cutoff(operator.conn, timedelta(days=7))}
    steps = [
        step["completed"] for step in retention.prune(operator.conn, operator.table, cutoffs, actor="ann")
    ]
    assert steps[-1] == 7000
    assert max(b - a for a, b in zip([0, *steps], steps, strict=False)) == retention.ROWS_PER_BATCH
    assert stage.value("SELECT count(*) FROM outbox") == 10
    assert stage.value("SELECT sum((details ->> 'events')::int) FROM outbox_audit") == 7000


def test_counts_are_exact_up_to_a_bound(stage: Stage) -> None:
    many(stage, 20)
    operator = stage.actor("operator")
    cutoffs: retention.Cutoffs = {"completed": retention.cutoff(operator.conn, timedelta(0))}
    counts = [retention.preview(operator.conn, operator.table, cutoffs, n)["completed"] for n in (20, 19)]
    assert counts == [Count(20), Count(19, exact=False)]


def test_dead_letters_are_deleted_in_numbers_only_by_those_who_mean_it(stage: Stage) -> None:
    many(stage, 101, "dead_letter")
    arguments = ("prune", "--dead-letters", "--older-than", "1d")
    assert failure(invoke(*arguments), 2) == (
        "to delete concerns 101 events: add --yes to do it without asking"
    )
    assert stage.value("SELECT count(*) FROM outbox") == 101
    done(invoke(*arguments, "--yes"))
    assert stage.value("SELECT count(*) FROM outbox") == 0
    assert stage.value("SELECT count(DISTINCT event_id) FROM outbox_audit") == 101


def test_what_the_settings_delete_anyway_is_deleted_without_asking(stage: Stage) -> None:
    many(stage, 101)
    done(invoke("prune"))
    assert stage.value("SELECT count(*) FROM outbox") == 0


def test_ctrl_c_stops_between_two_batches(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    many(stage, 2500)
    pruning = retention.prune

    def interrupted(*arguments: Any, **words: Any) -> Any:
        for step in pruning(*arguments, **words):
            signal.raise_signal(signal.SIGINT)
            yield step

    monkeypatch.setattr(retention, "prune", interrupted)
    result = invoke("prune", "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["deleted"]["completed"] == 1000
    assert stage.value("SELECT count(*) FROM outbox") == 1500
    assert stage.value("SELECT sum((details ->> 'events')::int) FROM outbox_audit") == 1000
    assert "stopped: the others are as they were" in result.stderr
