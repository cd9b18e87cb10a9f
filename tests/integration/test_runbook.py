"""docs/runbook.md is true: every alert has its section, queries find what they say.

That its commands exist and its statements run: tests/unit/test_docs.py, test_docs_snippets.py.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import yaml
from psycopg.rows import dict_row

ROOT = Path(__file__).parent.parent.parent
RUNBOOK = (ROOT / "docs/runbook.md").read_text()
RULES = yaml.safe_load((ROOT / "compose/prometheus/alerts.yml").read_text())
ALERTS = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]


class Section(NamedTuple):
    title: str
    text: str

    def blocks(self, language: str) -> list[str]:
        return re.findall(rf"```{language}\n(.*?)```", self.text, re.DOTALL)


def sections() -> dict[str, Section]:
    parts = re.split(r"^#{2,3} (.+)\n", RUNBOOK, flags=re.MULTILINE)[1:]
    return {title: Section(title, text) for title, text in zip(parts[::2], parts[1::2], strict=True)}


def query(title: str) -> str:
    (block,) = sections()[title].blocks("sql")
    return block


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_section_with_what_it_means_three_commands_and_a_fix(alert: str) -> None:
    section = sections()[alert]
    (first,) = section.blocks("sh")
    meaning, _, fix = section.text.partition("```sh\n")
    assert len(meaning.strip()) > 60
    assert len(first.splitlines()) == 3
    assert any(line.startswith("relay ") for line in first.splitlines())
    assert len(fix.partition("```")[2].strip()) > 60


def test_every_section_of_an_alert_is_of_one_that_exists() -> None:
    assert {title for title in sections() if title.startswith("Outbox")} == set(ALERTS)


@pytest.fixture
def conn(database: str) -> Iterator["psycopg.Connection[dict[str, Any]]"]:
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as conn:
        conn.execute(SEED)
        yield conn


SEED = """
INSERT INTO outbox (partition_key, event_type, payload, idempotency_key, created_at, available_at, status,
                    attempts, completed_at, parked_at, last_error, claimed_by, claimed_at, lease_expires_at,
                    lease_generation)
SELECT key, type, '{}', id, now() - age, now() - age + delay, status::outbox_status, attempts,
       CASE WHEN status IN ('completed', 'dead_letter') THEN now() END,
       CASE WHEN status = 'dead_letter' THEN now() END, error,
       CASE WHEN status = 'processing' THEN 'worker-1' END, CASE WHEN status = 'processing' THEN now() END,
       CASE WHEN status = 'processing' THEN now() - interval '1 minute' END,
       CASE WHEN status = 'processing' THEN 7 END
FROM (VALUES
  ('order:9182', 'OrderPaid', 'late', interval '1 hour', interval '2 hours', 'pending', 2, 'timeout'),
  ('order:9182', 'OrderPaid', 'behind', interval '1 minute', interval '0', 'pending', 0, NULL),
  ('order:2', 'OrderPaid', 'oldest', interval '30 minutes', interval '0', 'pending', 0, NULL),
  ('order:3', 'OrderPaid', 'held', interval '5 minutes', interval '0', 'processing', 1, NULL),
  ('order:4', 'OrderPaid', 'done', interval '9 hours', interval '0', 'completed', 1, NULL),
  ('order:5', 'OrderPaid', 'dead-1', interval '2 hours', interval '0', 'dead_letter', 5, 'too large: 2 MB'),
  ('order:5', 'OrderPaid', 'dead-2', interval '1 hour', interval '0', 'dead_letter', 5, 'too large: 2 MB'),
  ('order:6', 'OrderSent', 'dead-3', interval '1 hour', interval '0', 'dead_letter', 5, 'unroutable')
) seed(key, type, id, age, delay, status, attempts, error);
INSERT INTO outbox_workers (id, status) VALUES ('worker-1', 'dead');
INSERT INTO outbox_leases
  (generation, claimed_by, claimed_at, expires_at, size, buckets, keys, firsts, lasts, ids)
SELECT 7, 'worker-1', now(), now() - interval '1 minute', 1, ARRAY[partition_bucket], ARRAY[partition_key],
       ARRAY[id], ARRAY[id], ARRAY[id] FROM outbox WHERE idempotency_key = 'held';
INSERT INTO outbox_audit (actor, action) VALUES ('ann@desk', 'pause');
"""

Conn = psycopg.Connection[dict[str, Any]]


def test_the_oldest_pending_events_are_those_that_could_go_out(conn: Conn) -> None:
    found = conn.execute(query("Oldest pending")).fetchall()
    assert [row["event_id"] for row in found] == ["oldest", "behind"]


def test_what_a_key_waits_for_comes_first(conn: Conn) -> None:
    found = conn.execute(query("What a key waits for")).fetchall()
    assert [(row["event_id"], row["last_error"]) for row in found] == [("late", "timeout"), ("behind", None)]
    assert [row["in_flight_with"] for row in found] == [None, None]


def test_leases_that_ran_out_are_found_with_their_worker(conn: Conn) -> None:
    (found,) = conn.execute(query("Processing beyond lease")).fetchall()
    assert (found["claimed_by"], found["events"], found["worker"]) == ("worker-1", 1, "dead")
    assert found["keys"] == ["order:3"]


def test_dead_letters_are_grouped_by_key_and_by_error(conn: Conn) -> None:
    by_key = conn.execute(query("Dead letters by key")).fetchall()
    assert [(row["partition_key"], row["events"]) for row in by_key] == [("order:5", 2), ("order:6", 1)]
    by_error = conn.execute(query("Dead letters by error")).fetchall()
    assert [(row["error"], row["events"]) for row in by_error] == [("too large: 2 MB", 2), ("unroutable", 1)]


def test_who_holds_vacuum_back_is_named(conn: Conn, database: str) -> None:
    with psycopg.connect(database, application_name="a forgotten report") as holder:
        holder.execute("SELECT pg_current_xact_id()")
        found = conn.execute(query("Who holds VACUUM back")).fetchall()
        named = {row["of"]: row["name"] for row in found if row["what"] == "session"}
        assert named["a forgotten report"] == str(holder.info.backend_pid)


def test_who_did_what_is_told(conn: Conn) -> None:
    (found,) = conn.execute(query("Who did what")).fetchall()
    assert (found["actor"], found["action"]) == ("ann@desk", "pause")
