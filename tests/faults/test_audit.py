"""The trigger that watches the table lets the checker see who changed a row without holding its lease."""

import psycopg
import pytest

from tests.faults import audit
from tests.faults.checker import Evidence, Message, check

WORKER = "host-1-aaaa"


def change(database: str, session: str, statement: str, generation: str = "") -> None:
    with psycopg.connect(database, application_name=f"outbox-relay {session}") as conn:
        conn.execute("SELECT set_config('faults.generation', %s, true)", [generation])
        conn.execute(statement)


def claim(database: str, lease: str = "1 minute") -> None:
    change(
        database,
        "claimer 1-aaaa",
        f"INSERT INTO outbox_leases SELECT 7, '{WORKER}', now(), now() + interval '{lease}', 1,"
        " ARRAY[partition_bucket], ARRAY[partition_key], ARRAY[id], ARRAY[id], ARRAY[id] FROM outbox",
    )


MARK = (
    f"UPDATE outbox SET status = 'processing', claimed_by = '{WORKER}', claimed_at = now(), attempts = 1,"
    " lease_generation = 7, lease_expires_at = now()"
)


COMPLETE = "UPDATE outbox SET status = 'completed', completed_at = now(), lease_expires_at = NULL"


def violations(database: str) -> list[str]:
    with psycopg.connect(database) as conn:
        return list(
            check(
                Evidence(audit.rows(conn), [Message("evt", "order:1", 1, 7)], audit.changes(conn))
            ).violations
        )


@pytest.fixture
def watched(database: str) -> str:
    with psycopg.connect(database) as conn:
        audit.install(conn)
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload, idempotency_key)"
            " VALUES ('order:1', 'OrderPaid', '{}', 'evt')"
        )
    return database


@pytest.mark.parametrize("marks", [True, False])
def test_a_settlement_by_the_one_who_holds_the_lease_is_fine(watched: str, marks: bool) -> None:
    claim(watched)
    if marks:
        change(watched, "settler 1-aaaa", MARK)
    change(watched, "settler 1-aaaa", COMPLETE, "7")
    assert violations(watched) == []


@pytest.mark.parametrize(
    "session,generation,lease",
    [
        ("settler 2-bbbb", "7", "1 minute"),
        ("settler 1-aaaa", "6", "1 minute"),
        ("settler 1-aaaa", "7", "0 s"),
        ("claimer 1-aaaa", "7", "1 minute"),
    ],
    ids=["another worker", "another generation", "too late", "no settler"],
)
def test_a_settlement_by_anybody_else_is_seen(
    watched: str, session: str, generation: str, lease: str
) -> None:
    claim(watched, lease)
    change(watched, session, COMPLETE, generation)
    assert violations(watched) == ["stale settlement"]


def test_a_mark_by_anybody_else_is_seen(watched: str) -> None:
    claim(watched)
    change(watched, "settler 2-bbbb", MARK)
    change(watched, "settler 1-aaaa", COMPLETE, "7")
    assert violations(watched) == ["stale settlement"]


def test_a_settlement_of_what_nobody_has_claimed_and_a_deletion_are_seen(watched: str) -> None:
    change(watched, "settler 1-aaaa", COMPLETE, "7")
    assert violations(watched) == ["stale settlement"]
    change(watched, "settler 1-aaaa", "DELETE FROM outbox")
    assert "stale settlement" in violations(watched)
    assert "published but never committed" in violations(watched)
