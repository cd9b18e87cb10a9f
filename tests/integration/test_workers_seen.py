"""`relay workers`: who runs, which share each has, and how far it is behind."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from relay.ring import shares
from relay.store import workers_seen
from relay.store.workers import Registry
from tests.integration.cli_kit import invoke, nowhere
from tests.integration.store_kit import Actor, wait_until

__all__ = ["nowhere"]
pytestmark = pytest.mark.usefixtures("nowhere")


@pytest.fixture
def url(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RELAY_DATABASE_URL", database)
    return database


@contextmanager
def working(url: str, *names: str) -> Iterator[list[Actor]]:
    """Workers that are registered and connected."""
    actors = [Actor(url, name) for name in names]
    for actor in actors:
        metadata = {"host": f"host-of-{actor.name}", "pid": 7, "version": "1.2.3", "publisher": "kafka"}
        Registry(actor.table, 30.0).register(actor.conn, actor.name, metadata)
    try:
        yield actors
    finally:
        for actor in actors:
            actor.close()


def change(url: str, statement: str) -> None:
    with psycopg.connect(url) as conn:
        conn.execute(statement)


def add(url: str, keys: int, age: str = "0 s") -> None:
    change(
        url,
        "INSERT INTO outbox (partition_key, event_type, payload, created_at, available_at)"
        f" SELECT 'order:' || i, 'OrderPaid', '{{}}', now() - interval '{age}', now() - interval '{age}'"
        f" FROM generate_series(1, {keys}) i",
    )


def seen() -> dict[str, dict[str, Any]]:
    result = invoke("workers", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["table"], found["buckets"]) == ("public.outbox", 1024)
    return {worker["id"]: worker for worker in found["workers"]}


def test_each_worker_is_shown_with_its_share_and_what_it_holds(any_postgres: int, url: str) -> None:
    add(url, 5)
    with working(url, "w1", "w2", "w3") as (first, *_):
        first.must_claim(rows=3)
        found = seen()
        owned = shares(["w1", "w2", "w3"])
        assert {name: worker["buckets"] for name, worker in found.items()} == {
            name: len(buckets) for name, buckets in owned.items()
        }
        assert [found[name]["in_flight"] for name in ("w1", "w2", "w3")] == [3, 0, 0]
        assert found["w1"]["oldest_lease_seconds"] >= 0
        assert found["w2"]["oldest_lease_seconds"] is None
        worker = found["w2"]
        assert (worker["host"], worker["pid"], worker["version"]) == ("host-of-w2", 7, "1.2.3")
        assert (worker["status"], worker["connected"], worker["remark"]) == ("alive", True, None)
        result = invoke("workers")
    assert result.stderr == ""
    line = r"w1 +alive +\d+ \(\d+%\) +3 +\d+\.\d s +\S+( s)? +\d+\.\d s ago +1\.2\.3 +host-of-w1"
    assert re.search(rf"^{line}$", result.stdout, re.MULTILINE), result.stdout


def test_how_far_a_worker_is_behind_is_the_age_of_the_oldest_event_in_its_buckets(url: str) -> None:
    add(url, 200, "10 s")
    change(
        url,
        "INSERT INTO outbox (partition_key, event_type, payload, created_at, available_at)"
        " VALUES ('old', 'E', '{}', now() - interval '2 h', now() - interval '2 h'),"
        " ('tomorrow', 'E', '{}', now() - interval '9 h', now() + interval '1 day')",
    )
    with psycopg.connect(url) as conn:
        row = conn.execute("SELECT partition_bucket FROM outbox WHERE partition_key = 'old'").fetchone()
    assert row is not None
    with working(url, "w1", "w2"):
        found = seen()
    owned = shares(["w1", "w2"])
    for name, worker in found.items():
        expected = 7200 if row[0] in owned[name] else 10
        assert expected <= worker["lag_seconds"] < expected + 600
        assert worker["lag_exact"]


def test_an_event_that_is_retried_ages_from_its_birth(url: str) -> None:
    change(
        url,
        "INSERT INTO outbox (partition_key, event_type, payload, created_at, available_at, attempts)"
        " VALUES ('retried', 'E', '{}', now() - interval '3 h', now() + interval '1 min', 1)",
    )
    with working(url, "w1"):
        assert 10_800 <= seen()["w1"]["lag_seconds"] < 12_000


def test_nothing_pending_is_not_behind(url: str) -> None:
    with working(url, "w1"):
        assert (seen()["w1"]["lag_seconds"], seen()["w1"]["lag_exact"]) == (None, True)


def test_a_look_at_a_part_of_a_bucket_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_seen, "ROWS_PER_BUCKET", 2)
    for _ in range(3):
        add(url, 1, "1 min")
    with working(url, "w1"):
        assert not seen()["w1"]["lag_exact"]
        assert re.search(r" >= \d\d\.\d s ", invoke("workers").stdout)


def test_a_lag_that_takes_too_long_is_left_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_seen, "LAG_SECONDS", 0.05)
    with working(url, "w1"), psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE outbox")
        assert (seen()["w1"]["lag_seconds"], seen()["w1"]["lag_exact"]) == (None, False)
        assert seen()["w1"]["buckets"] == 1024


def test_those_on_their_way_out_and_the_dead_are_shown_without_a_share(url: str) -> None:
    add(url, 1)
    with working(url, "staying", "leaving", "fallen") as (_, leaving, fallen):
        fallen.must_claim()
        Registry(leaving.table, 30.0).heartbeat(leaving.conn, "leaving", "draining")
        change(url, "UPDATE outbox_workers SET status = 'dead' WHERE id = 'fallen'")
        found = seen()
    assert list(found) == ["staying", "fallen", "leaving"]
    assert [(worker["status"], worker["buckets"]) for worker in found.values()] == [
        ("alive", 1024),
        ("dead", 0),
        ("draining", 0),
    ]
    assert found["fallen"]["remark"] == "its events come back with the next relay"
    assert found["leaving"]["remark"] is None


def test_a_worker_that_nobody_has_buried_yet_is_found_out(url: str) -> None:
    with working(url, "gone") as (gone,):
        pid = gone.pid()
        gone.close()
        with psycopg.connect(url, autocommit=True) as watcher:
            session = "SELECT FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: watcher.execute(session, [pid]).fetchone() is None, "the session ends")
        worker = seen()["gone"]
        assert (worker["status"], worker["connected"]) == ("alive", False)
        assert worker["remark"] == "its process is gone"
        assert invoke("workers").stderr == "no worker relays: start one with 'relay run'\n"


def test_a_silent_worker_is_found_out_by_its_heartbeat(url: str) -> None:
    # Behind a pooler a worker has no session of its own.
    change(
        url,
        """INSERT INTO outbox_workers (id, status, last_seen_at, metadata) VALUES
           ('quiet', 'alive', now() - interval '31 s', '{"has_session": false}'),
           ('talking', 'alive', now(), '{"has_session": false}')""",
    )
    found = seen()
    assert (found["quiet"]["connected"], found["talking"]["connected"]) == (None, None)
    assert found["quiet"]["remark"] == "silent for too long: frozen or cut off"
    assert found["talking"]["remark"] is None


def test_where_nobody_relays_it_says_what_to_do(url: str) -> None:
    result = invoke("workers")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no worker relays: start one with 'relay run'\n"
    assert seen() == {}


def test_a_worker_cannot_write_to_the_terminal_that_shows_it(url: str) -> None:
    change(
        url,
        r"""INSERT INTO outbox_workers (id, status, metadata)
            VALUES (E'w\x1b[2J', 'alive', '{"host": "h\u001b[2J\n", "version": "\u202e"}')""",
    )
    text = invoke("workers").stdout
    assert not set(text) & {"\x1b", "\u202e"}
    assert "w\\x1b[2J" in text
    assert "h\\x1b[2J\\n" in text
