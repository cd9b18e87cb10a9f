"""What writers do in their transactions, as a relay sees it: nothing early, nothing lost, nobody held up."""

import psycopg
import pytest
from psycopg import IsolationLevel

from relay.errors import LeaseLost
from tests.integration.store_kit import Raw, Stage, insert, orphans, positions

pytestmark = pytest.mark.usefixtures("any_postgres")


def test_a_rolled_back_writer_publishes_nothing(stage: Stage) -> None:
    writer, worker = stage.session(), stage.actor()
    with writer.transaction(force_rollback=True):
        insert(writer, "a", 3)
        assert worker.claim() is None
    assert worker.claim() is None
    assert stage.rows() == []


def test_a_writer_idle_in_its_transaction_holds_up_nobody(stage: Stage) -> None:
    """Neither the committed events of its key, before and behind its own, nor other keys."""
    writer, worker = stage.session(), stage.actor()
    before = stage.insert("a", 2)
    with writer.transaction():
        open_ones = insert(writer, "a", 2)
        behind = stage.insert("a", 2)
        other = stage.insert("b", 1)
        claim = worker.must_claim()
        assert positions(claim) == before + behind + other
        worker.settle(claim)
        stage.vacuum()
    assert positions(worker.claim()) == open_ones


def test_events_that_commit_late_are_published_however_far_others_have_got(stage: Stage) -> None:
    worker = stage.actor()
    writers = [stage.session() for _ in range(5)]
    expected = []
    for n, writer in enumerate(writers):
        writer.execute("BEGIN")
        expected += insert(writer, f"key-{n % 2}", 2)
    stage.insert("key-0", 50)
    stage.insert("", 50, partition_key=Raw("'other-' || i"))
    published = []
    for writer in reversed(writers):
        while claim := worker.claim(rows=20):
            published += positions(claim)
            worker.settle(claim)
        writer.execute("COMMIT")
    while claim := worker.claim(rows=20):
        published += positions(claim)
        worker.settle(claim)
    assert len(published) == len(set(published)) == 110
    assert set(expected) <= set(published)


def test_a_late_event_goes_before_those_of_its_key_that_are_still_there(stage: Stage) -> None:
    writer, worker = stage.session(), stage.actor()
    with writer.transaction():
        late = insert(writer, "a", 1)
        later = stage.insert("a", 2)
        claim = worker.must_claim()
        assert positions(claim) == later
    worker.settle(claim, "release")
    assert positions(worker.claim()) == late + later


def test_a_savepoint_that_was_rolled_back_leaves_no_event(stage: Stage) -> None:
    writer, worker = stage.session(), stage.actor()
    with writer.transaction():
        kept = insert(writer, "a", 1)
        with writer.transaction(force_rollback=True):
            insert(writer, "a", 1)
        kept += insert(writer, "a", 1)
    assert positions(worker.claim()) == kept


def test_a_serializable_writer_and_the_relay_do_not_abort_each_other(stage: Stage) -> None:
    """The relay claims, settles and reaps around open serializable transactions that write the same keys."""
    writers = [stage.session() for _ in range(3)]
    for writer in writers:
        writer.isolation_level = IsolationLevel.SERIALIZABLE
    worker, reaper = stage.actor("worker"), stage.actor("reaper")
    stage.sql.execute("UPDATE outbox_wake SET asleep_until = clock_timestamp() + interval '1 minute'")
    stage.insert("a", 4)
    for writer in writers:
        writer.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        writer.execute("SELECT count(*) FROM outbox_wake")
        insert(writer, "a", 1)
    claim = worker.must_claim(rows=2)
    for writer in writers[:2]:
        insert(writer, "a", 1)
    stage.sql.execute("UPDATE outbox_wake SET asleep_until = '-infinity'")
    worker.settle(claim, ["complete", "release"])
    lost = worker.claim() or worker.must_claim()  # the first look goes on behind the key
    reaper.reap(gone=["worker"])
    for writer in writers:
        insert(writer, "b", 1)
        writer.execute("COMMIT")
    with pytest.raises(LeaseLost):
        worker.settle(lost)
    assert len(stage.rows()) == 4 + 3 + 2 + 3
    assert orphans(stage.sql) == []


def test_where_the_database_defaults_to_serializable_the_relay_still_reads_committed(stage: Stage) -> None:
    name = stage.value("SELECT current_database()")
    stage.sql.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    first, second = stage.actor("first"), stage.actor("second")
    stage.insert("a", 4)
    stage.insert("b", 4)
    for _ in range(4):
        with stage.uncommitted_claim(first, rows=1) as claiming:
            second.reap()
            other = second.claim(rows=1)
        if claim := claiming.result():
            first.settle(claim)
        if other:
            second.settle(other)
    assert first.conn.execute("SHOW default_transaction_isolation").fetchone() == ("read committed",)


def test_an_insert_never_waits_for_a_claim_and_a_claim_never_for_an_insert(stage: Stage) -> None:
    stage.insert("a", 3)
    writer, worker = stage.session(), stage.actor()
    writer.execute("SET lock_timeout = '1ms'")
    with stage.uncommitted_claim(worker):
        insert(writer, "a", 3)
    worker.conn.execute("SET lock_timeout = '1ms'")
    with writer.transaction():
        insert(writer, "c", 3)
        stage.insert("d", 1)
        assert worker.claim() is not None


def test_a_writer_that_deletes_its_own_uncommitted_event_publishes_nothing(stage: Stage) -> None:
    writer, worker = stage.session(), stage.actor()
    with writer.transaction():
        insert(writer, "a", 1)
        writer.execute("DELETE FROM outbox")
    assert worker.claim() is None


def test_a_role_that_may_only_insert_can_write_with_and_without_a_sleeping_relay(stage: Stage) -> None:
    role = f"writer_{stage.value('SELECT md5(random()::text)')}"
    stage.sql.execute(f"CREATE ROLE {role} LOGIN; GRANT INSERT ON outbox TO {role}")
    try:
        writer = psycopg.connect(stage.url, autocommit=True)
        writer.execute(f"SET ROLE {role}")
        for asleep in ("'-infinity'", "'infinity'"):
            stage.sql.execute(f"UPDATE outbox_wake SET asleep_until = {asleep}")
            writer.execute(
                "INSERT INTO outbox (partition_key, event_type, payload) VALUES ('a', 'Tested', '{}')"
            )
        writer.close()
        assert len(stage.actor().must_claim().events) == 2
    finally:
        stage.sql.execute(f"REVOKE ALL ON outbox FROM {role}; DROP ROLE {role}")
