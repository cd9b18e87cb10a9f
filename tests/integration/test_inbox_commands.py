"""`relay inbox`: operators see what consumers have parked, have it tried again, and give it up."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from relay.consumers.applying import Applying
from relay.consumers.message import Message, Raw
from relay.names import TableName
from relay.store.connection import connect_for_handlers
from tests.integration.cli_kit import failure, invoke, nowhere  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("nowhere")

INBOX = TableName(None, "inbox_dedupe")


@pytest.fixture
def url(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RELAY_DATABASE_URL", database)
    return database


def park(
    url: str, *event_ids: str, consumer: str = "billing", key: str = "order:1", error: str = "no"
) -> None:
    applying = Applying(consumer, lambda *_: None, INBOX, fence=False)
    with connect_for_handlers(url, "test") as conn:
        for event_id in event_ids:
            headers = {"event_id": event_id, "partition_key": key, "event_type": "OrderPaid", "tenant": "é"}
            raw = Raw(b'{"amount": 10.00}', headers, "orders[0]@7")
            assert applying.park(conn, raw, "failed", error, 5)


def park_unreadable(url: str) -> None:
    with connect_for_handlers(url, "test") as conn:
        Applying("billing", lambda *_: None, INBOX, fence=False).park(
            conn, Raw(b"\xff{", {}, "orders[0]@9"), "malformed", "the message has no event_id", 0
        )


def retrying(url: str, handler: Callable[[Any, Message], object]) -> list[bool]:
    """What a consumer does when it looks for retries: until there is none."""
    answers: list[bool] = []
    with connect_for_handlers(url, "test") as conn:
        applying = Applying("billing", handler, INBOX, fence=False)
        while not answers or answers[-1]:
            answers.append(applying.retry_one(conn))
    return answers


def parked(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(invoke("inbox", "list", "--json", *arguments).stdout)
    return found


def ask(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as conn:
        return conn.execute(statement).fetchall()


def test_list_shows_what_is_parked_newest_first_and_filters(url: str) -> None:
    assert invoke("inbox", "list").stderr == "nothing is parked\n"
    park(url, "evt-1", "evt-2", error="ValueError: no such account")
    park(url, "evt-1", consumer="shipping", key="order:2")
    park_unreadable(url)
    assert [row["event_id"] for row in parked()] == [None, "evt-1", "evt-2", "evt-1"]
    assert [row["event_id"] for row in parked("--consumer", "shipping")] == ["evt-1"]
    assert [row["id"] for row in parked("--key", "order:1", "--error", "ACCOUNT")] == [2, 1]
    assert [row["source"] for row in parked("--as", "malformed")] == ["orders[0]@9"]
    assert parked("--since", "2100-01-01") == []
    table = invoke("inbox", "list", "--limit", "2")
    assert "there may be more: --before 3" in table.stderr
    assert "malformed" in table.stdout
    assert "evt-2" in invoke("inbox", "list", "--before", "3").stdout


def test_show_has_all_of_a_message_and_survives_bytes_that_are_no_text(url: str) -> None:
    park(url, "evt-1")
    park_unreadable(url)
    shown = json.loads(invoke("inbox", "show", "1", "--json").stdout)
    assert shown["payload"] == '{"amount": 10.00}'
    assert shown["headers"]["tenant"] == "é"
    assert shown["attempts"] == 5
    assert "\\xff{" in invoke("inbox", "show", "2").stdout
    assert failure(invoke("inbox", "show", "9")) == "there is no dead letter 9: look with 'relay inbox list'"


def test_retry_has_the_consumer_apply_the_message_once_and_removes_it(url: str) -> None:
    park(url, "evt-1", "evt-2")
    seen: list[str] = []
    assert retrying(url, lambda _, message: seen.append(message.event_id)) == [False]
    assert invoke("inbox", "retry", "1", "2", "--dry-run").stdout.startswith("2 messages would be")
    assert retrying(url, lambda _, message: seen.append(message.event_id)) == [False]
    told = json.loads(invoke("inbox", "retry", "2", "--actor", "ann", "--reason", "fixed", "--json").stdout)
    assert told == {"action": "retry", "dry_run": False, "matched": 1, "changed": 1, "stopped": False}
    assert "retry asked" in invoke("inbox", "list").stdout
    assert retrying(url, lambda _, message: seen.append(message.event_id)) == [True, False]
    assert seen == ["evt-2"]
    assert [row["event_id"] for row in parked()] == ["evt-1"]
    ((actor, action, event_id, details),) = ask(
        url, "SELECT actor, action, event_id, details FROM outbox_audit"
    )
    assert (actor, action, event_id) == ("ann", "inbox_retry", "evt-2")
    assert (details["consumer"], details["reason"], details["dead_letter"]) == ("billing", "fixed", 2)
    # Its mark stays: a duplicate that comes later is not applied.
    assert ask(url, "SELECT count(*) FROM inbox_dedupe WHERE event_id = 'evt-2'") == [(1,)]


def test_a_retry_that_fails_again_keeps_the_message_with_its_new_error(url: str) -> None:
    park(url, "evt-1")

    def fail(conn: psycopg.Connection[Any], message: Message) -> None:
        conn.execute("CREATE TABLE left_behind ()")
        raise LookupError("still no account")

    assert invoke("inbox", "retry", "--all").exit_code == 0
    assert retrying(url, fail) == [True, False]
    (row,) = parked()
    assert (row["error"], row["attempts"], row["retry_asked_at"]) == (
        "LookupError: still no account",
        6,
        None,
    )
    assert ask(url, "SELECT to_regclass('left_behind')") == [(None,)]


def test_retries_of_one_key_keep_their_order_whoever_takes_them(url: str) -> None:
    park(url, "evt-1", "evt-2")
    park(url, "evt-3", key="order:2")
    invoke("inbox", "retry", "--all")
    seen: list[str] = []
    other = Applying("billing", lambda _, message: seen.append(message.event_id), INBOX, fence=False)

    def meanwhile(conn: psycopg.Connection[Any], message: Message) -> None:
        seen.append(message.event_id)
        if message.event_id == "evt-1":
            with connect_for_handlers(url, "test") as second:
                assert other.retry_one(second)
                assert not other.retry_one(second)

    retrying(url, meanwhile)
    assert seen == ["evt-1", "evt-3", "evt-2"]


def test_discard_deletes_and_says_so_in_the_audit(url: str) -> None:
    park(url, "evt-1", "evt-2")
    assert invoke("inbox", "discard", "1").exit_code == 2  # without a reason
    assert invoke("inbox", "discard", "1", "--reason", "a test order").stdout == "1 message discarded\n"
    assert [row["event_id"] for row in parked()] == ["evt-2"]
    assert ask(url, "SELECT action, event_id, details->>'reason' FROM outbox_audit") == [
        ("inbox_discard", "evt-1", "a test order")
    ]
    assert failure(invoke("inbox", "retry", "1")).startswith("none of these is parked")


def test_who_names_nothing_changes_nothing(url: str) -> None:
    park(url, "evt-1")
    for arguments in (["retry"], ["discard", "--reason", "x"], ["retry", "--all", "--key", "order:1"]):
        assert "Name numbers or filters, or --all alone" in failure(invoke("inbox", *arguments), code=2)
    assert len(parked()) == 1


def test_many_are_changed_in_batches_after_a_yes(url: str) -> None:
    park(url, *(f"evt-{n}" for n in range(150)))
    assert "add --yes" in failure(invoke("inbox", "discard", "--all", "--reason", "x"), code=2)
    assert invoke("inbox", "discard", "--all", "--reason", "x", "--yes").stdout == "150 messages discarded\n"
    assert parked() == []


def test_prune_forgets_old_marks_but_not_those_of_parked_events(url: str) -> None:
    park(url, "evt-parked")
    with psycopg.connect(url) as conn:
        conn.execute(
            "INSERT INTO inbox_dedupe (consumer, event_id) SELECT c, 'evt-' || n"
            " FROM generate_series(1, 4500) n, unnest(ARRAY['billing', 'shipping']) c"
        )
        conn.execute(
            "INSERT INTO inbox_dedupe_replays (consumer, event_id, replay_id) VALUES ('billing', 'e', 'r')"
        )
        conn.execute("INSERT INTO inbox_dedupe_fences (consumer, key, generation) VALUES ('billing', 'k', 7)")
        for name in ("inbox_dedupe", "inbox_dedupe_replays", "inbox_dedupe_fences"):
            conn.execute(f"UPDATE {name} SET seen_at = now() - interval '10 days'")
        conn.execute("INSERT INTO inbox_dedupe (consumer, event_id) VALUES ('billing', 'evt-new')")
    assert "4,500 marks would be" in invoke("inbox", "prune", "--dry-run", "--consumer", "billing").stdout
    assert "4,502 rows" in invoke("inbox", "prune", "--consumer", "billing").stdout
    assert ask(url, "SELECT consumer, count(*) FROM inbox_dedupe GROUP BY 1 ORDER BY 1") == [
        ("billing", 2),
        ("shipping", 4500),
    ]
    assert "add --yes" in failure(invoke("inbox", "prune", "--older-than", "9d"), code=2)
    pruned = json.loads(invoke("inbox", "prune", "--older-than", "9d", "--yes", "--json").stdout)
    assert pruned["deleted"] == 4500
    assert ask(url, "SELECT event_id FROM inbox_dedupe ORDER BY 1") == [("evt-new",), ("evt-parked",)]
    assert ask(url, "SELECT count(*) FROM inbox_dedupe_fences") == [(0,)]
