"""PostgreSQL dies, is restarted or is replaced by its standby, while two relays and two writers work."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.demo.postgres import PostgresServer
from relay.store.migrate import migrate
from tests.servers import postgres
from tests.servers.proxy import TcpProxy
from tests.system.journal import PUBLISHER, Journal
from tests.system.relays import RelayProcess, insert, statuses, wait_until
from tests.system.writers import Writer, writing

Start = Callable[..., RelayProcess]
# More than a sequence writes ahead to its standbys, so that what they know of it is too little.
CLAIMS_LOST = 80


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    return Journal(tmp_path / "journal")


@dataclass
class Pair:
    """A primary, its standby, and the wire between them."""

    primary: PostgresServer
    standby: postgres.Standby
    wire: TcpProxy

    @property
    def url(self) -> str:
        """Whichever of the two is the primary."""
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def replicas(self) -> list[tuple[Any, ...]]:
        return _rows(self.primary.url(), "SELECT state, sync_state FROM pg_stat_replication")


@pytest.fixture
def pair(own_postgres: PostgresServer) -> Iterator[Pair]:
    with (
        TcpProxy("127.0.0.1", own_postgres.port) as wire,
        postgres.Standby(own_postgres, port=wire.port) as standby,
    ):
        found = Pair(own_postgres, standby, wire)
        wait_until(lambda: found.replicas() == [("streaming", "async")], what="the standby follows")
        migrate(own_postgres.url())
        yield found


@pytest.fixture
def stage() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _rows(database: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as conn:
        return conn.execute(query).fetchall()


def _lives(relay: RelayProcess) -> list[str]:
    """The ids under which it has registered."""
    return re.findall(r"worker (\S+) relays", relay.log)


def _ended(relay: RelayProcess) -> int:
    return len(re.findall(r"worker (\S+) ends", relay.log))


def _publishes_more(journal: Journal, events: int = 200) -> None:
    goal = len(journal) + events
    wait_until(lambda: len(journal) >= goal, what=f"{events} more are published")


def _finish(database: str, writers: list[Writer]) -> dict[str, int]:
    """No more is written; all is published; the events that the server has, with their positions."""
    for writer in writers:
        writer.stop()
    unfinished = "SELECT count(*) FROM outbox WHERE status <> 'completed'"
    wait_until(lambda: _rows(database, unfinished) == [(0,)], what="all is published")
    return dict(_rows(database, "SELECT idempotency_key, id FROM outbox"))


def _survived(relays: list[RelayProcess], lives: int) -> None:
    for relay in relays:
        assert relay.process.poll() is None, relay.log
        assert len(set(_lives(relay))) >= lives
        assert "Traceback" not in relay.log


def _committed(writers: list[Writer]) -> set[str]:
    return {event_id for writer in writers for event_id in writer.committed}


@pytest.mark.parametrize("immediate", [False, True], ids=["fast", "immediate"])
def test_a_restart_of_the_server_loses_nothing_and_ends_no_relay(
    relay: Start, own_postgres: PostgresServer, journal: Journal, stage: ExitStack, immediate: bool
) -> None:
    database = own_postgres.url()
    migrate(database)
    writers = stage.enter_context(writing(database))
    relays = [relay(database, publisher=PUBLISHER) for _ in range(2)]
    wait_until(lambda: len(journal.pids()) == 2, what="both publish")
    for restarts in (1, 2):
        _publishes_more(journal)
        own_postgres.restart(immediate=immediate)
        wait_until(lambda: all(_ended(r) >= restarts for r in relays), what="each relay notices")  # noqa: B023
        wait_until(lambda: all(len(_lives(r)) > restarts for r in relays), what="each registers anew")  # noqa: B023
    _publishes_more(journal)
    events = _finish(database, writers)
    _survived(relays, lives=3)
    assert len(journal.pids()) == 2
    assert all(writer.interruptions >= 2 for writer in writers)
    assert _committed(writers) <= events.keys()
    assert {entry.event_id for entry in journal.entries()} == events.keys()
    assert journal.inversions(events) == []
    assert journal.duplicates() <= len(journal)  # says so where one of them differs


def _fail_over(pair: Pair, relays: list[RelayProcess], journal: Journal) -> int:
    """SIGKILL the primary and promote the standby once the relays know; what was published until then."""
    pair.primary.kill()
    wait_until(lambda: all(_ended(r) for r in relays), what="each relay has lost the primary")
    published = len(journal)
    pair.standby.promote()
    wait_until(lambda: all(len(_lives(r)) > 1 for r in relays), what="each registers anew")
    return published


def _generations_grow(journal: Journal, published: int) -> None:
    entries = journal.entries()
    before, after = entries[:published], entries[published:]
    assert max(entry.generation for entry in before) < min(entry.generation for entry in after)


def test_a_synchronous_standby_takes_over_without_losing_anything(
    relay: Start, pair: Pair, journal: Journal, stage: ExitStack
) -> None:
    with psycopg.connect(pair.primary.url(), autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        conn.execute("SELECT pg_reload_conf()")
    wait_until(lambda: pair.replicas() == [("streaming", "sync")], what="the standby is synchronous")
    writers = stage.enter_context(writing(pair.url))
    relays = [relay(pair.url, publisher=PUBLISHER) for _ in range(2)]
    wait_until(lambda: len(journal.pids()) == 2, what="both publish")
    _publishes_more(journal)
    published = _fail_over(pair, relays, journal)
    _publishes_more(journal)
    events = _finish(pair.standby.url(), writers)
    _survived(relays, lives=2)
    assert all(writer.interruptions for writer in writers)
    assert _committed(writers) <= events.keys()
    assert {entry.event_id for entry in journal.entries()} == events.keys()
    assert journal.inversions(events) == []
    assert journal.duplicates() <= len(journal)
    _generations_grow(journal, published)


def test_what_an_asynchronous_standby_has_is_published_under_higher_generations(
    relay: Start, pair: Pair, journal: Journal, stage: ExitStack
) -> None:
    writers = stage.enter_context(writing(pair.url))
    relays = [relay(pair.url, publisher=PUBLISHER, batch_size=20) for _ in range(2)]
    wait_until(lambda: len(journal.pids()) == 2, what="both publish")
    _publishes_more(journal)
    pair.wire.cut()
    wait_until(lambda: pair.replicas() == [], what="the standby is cut off")
    claims, position = _rows(
        pair.primary.url(), "SELECT last_value, (SELECT max(id) FROM outbox) FROM outbox_generation"
    )[0]
    wait_until(
        lambda: any(
            entry.position > position and entry.generation > claims + CLAIMS_LOST
            for entry in journal.entries()
        ),
        what="events are published that will be lost, by many claims that will be lost",
    )
    published = _fail_over(pair, relays, journal)
    _publishes_more(journal)
    events = _finish(pair.standby.url(), writers)
    _survived(relays, lives=2)
    ids = {entry.event_id for entry in journal.entries()}
    assert ids >= events.keys()
    assert ids - events.keys(), "the standby had everything: nothing was tested"
    assert _committed(writers) - events.keys()
    assert journal.inversions(events) == []
    assert journal.duplicates() > 0, "what was completed after the standby was cut off goes out again"
    _generations_grow(journal, published)


def test_relays_behind_a_pooler_notice_that_it_leads_to_another_server_now(
    relay: Start, pair: Pair, pooler: Callable[[str], str], journal: Journal, stage: ExitStack
) -> None:
    way = stage.enter_context(TcpProxy("127.0.0.1", pair.primary.port))
    pooled = pooler(way.url(pair.primary.url()))
    relays = [relay(pooled, publisher=PUBLISHER, batch_size=1) for _ in range(2)]
    wait_until(lambda: all(_lives(r) for r in relays), what="both register")
    pair.wire.cut()
    insert(pair.primary.url(), CLAIMS_LOST, CLAIMS_LOST, "lost")
    wait_until(lambda: statuses(pair.primary.url()) == {"completed": CLAIMS_LOST})
    pair.standby.promote()
    published = len(journal)
    way.target = ("127.0.0.1", pair.standby.port)
    way.drop()  # whoever is between two transactions is not told
    insert(pair.standby.url(), 10, 10, "kept")
    wait_until(lambda: statuses(pair.standby.url()) == {"completed": 10})
    _survived(relays, lives=1)
    assert any(len(_lives(r)) > 1 for r in relays)
    assert any("has taken over behind the pooler" in r.log for r in relays)
    _generations_grow(journal, published)


def test_a_primary_that_falls_silent_is_left_for_the_one_that_answers(
    relay: Start, pair: Pair, journal: Journal, stage: ExitStack
) -> None:
    way = stage.enter_context(TcpProxy("127.0.0.1", pair.primary.port))
    hosts = f"127.0.0.1:{way.port},127.0.0.1:{pair.standby.port}"
    worker = relay(
        f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=2",
        publisher=PUBLISHER,
        heartbeat_seconds=1,
        stale_seconds=3,
    )
    insert(pair.primary.url(), 10, 10, "before")
    wait_until(lambda: statuses(pair.primary.url()) == {"completed": 10})
    way.stall()  # the connections stand; nothing comes
    pair.standby.promote()
    insert(pair.standby.url(), 10, 10, "after")
    wait_until(lambda: statuses(pair.standby.url()) == {"completed": 20})
    assert "the database has not answered for" in worker.log
    _survived([worker], lives=2)
