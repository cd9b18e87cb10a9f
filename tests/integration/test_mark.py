"""A claim writes its lease and nothing else; where it lasts, its rows say so, and nothing depends on that."""

import pytest

from relay.settlement import Settlement
from relay.store import listing, waiting
from relay.store.inspect import Filters, events, show
from relay.store.listing import Query
from tests.integration.store_kit import LOST_ONCE, RELEASE, Raw, Stage, held, positions

pytestmark = pytest.mark.usefixtures("any_postgres")


def test_a_claim_leaves_its_rows_as_they_were_and_its_lease_names_them(stage: Stage) -> None:
    ids = [*stage.insert("a", 3), *stage.insert("b", 2)]
    before = stage.rows()
    claim = stage.actor(marks=False).must_claim()
    assert stage.rows() == before
    (lease,) = stage.leases()
    assert (sorted(lease["ids"]), lease["size"]) == (ids, 5)
    runs = zip(lease["keys"], lease["firsts"], lease["lasts"], strict=True)
    assert {key: (first, last) for key, first, last in runs} == {
        "a": (ids[0], ids[2]),
        "b": (ids[3], ids[4]),
    }
    assert [event.attempt for event in claim.events] == [1] * 5


def test_a_mark_says_who_has_the_events_since_when_and_until_when(stage: Stage) -> None:
    stage.insert("a", 2)
    worker = stage.actor(marks=False)
    claim = worker.settling.mark(worker.conn, worker.must_claim())
    (lease,) = stage.leases()
    for row in stage.rows():
        assert (row["status"], row["attempts"]) == ("processing", 1)
        assert (row["claimed_by"], row["lease_generation"]) == (worker.name, claim.generation)
        assert stage.value("SELECT claimed_at FROM outbox WHERE id = %s", row["id"]) == lease["claimed_at"]
        expiry = stage.value("SELECT lease_expires_at FROM outbox WHERE id = %s", row["id"])
        assert expiry == lease["expires_at"]


@pytest.mark.parametrize("completion", ["keep", "archive"])
def test_a_completed_event_tells_the_same_whether_it_was_marked_or_not(stage: Stage, completion: str) -> None:
    stage.insert("a", 1, attempts=2)
    stage.insert("b", 1, attempts=2)
    for marks in (True, False):
        worker = stage.actor(f"worker-{marks}", completion=completion, marks=marks)
        claim = worker.must_claim(rows=1)
        claimed_at = stage.leases()[0]["claimed_at"]
        worker.settle(claim, Settlement("complete", receipt="here"))
        table = "outbox" if completion == "keep" else "outbox_archive"
        row = stage.sql.execute(
            "SELECT attempts, claimed_by, claimed_at, lease_generation, lease_expires_at, status::text,"
            f" receipt FROM {table} WHERE id = %s",
            positions(claim),
        ).fetchone()
        assert row == (3, worker.name, claimed_at, claim.generation, None, "completed", "here")


def test_a_mark_under_a_lease_that_is_gone_or_over_changes_nothing(stage: Stage) -> None:
    stage.insert("a", 2)
    worker, other = stage.actor("worker", marks=False), stage.actor("other", marks=False)
    late = worker.must_claim()
    stage.expire(late)
    before = stage.everything()
    assert worker.settling.mark(worker.conn, late) == late
    assert stage.everything() == before
    other.reap()
    other.must_claim(losses=LOST_ONCE)
    before = stage.everything()
    assert worker.settling.mark(worker.conn, late) == late
    assert stage.everything() == before


def test_rows_that_have_moved_stay_unmarked_and_are_settled_all_the_same(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    ids = stage.insert("a", 3)
    worker = stage.actor(marks=False)
    claim = worker.must_claim()
    stage.sql.execute("UPDATE outbox SET headers = '{}' WHERE id = %s", [ids[1]])
    assert worker.settling.mark(worker.conn, claim) == claim
    assert "stay unmarked" in caplog.text
    assert {status for _, status in stage.statuses()} == {"pending"}
    worker.settle(claim)
    assert {status for _, status in stage.statuses()} == {"completed"}


@pytest.mark.parametrize("completion", ["keep", "delete", "archive"])
def test_a_large_claim_is_settled_at_once_where_a_mark_has_left_it(
    stage: Stage, completion: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage.insert("", 1200, partition_key=Raw("'key-' || i %% 50"))
    worker = stage.actor(completion=completion)
    claim = worker.must_claim(rows=2000)
    assert len(claim.events) == 1200
    assert {status for _, status in stage.statuses()} == {"processing"}
    worker.settle(claim, [Settlement("complete", receipt=event.event_id) for event in claim.events])
    assert caplog.text == ""
    if completion != "delete":
        table = "outbox" if completion == "keep" else "outbox_archive"
        assert stage.value(f"SELECT count(*) FROM {table} WHERE receipt = idempotency_key") == 1200


def test_a_mark_that_meets_a_reap_waits_and_changes_nothing(stage: Stage) -> None:
    stage.insert("a", 3)
    worker, reaper = stage.actor("worker", marks=False), stage.actor("reaper")
    claim = worker.must_claim()
    with held(reaper, "WITH lost", lambda: reaper.reap(gone=["worker"])) as reaping:
        marking = stage.in_background(worker, lambda: worker.settling.mark(worker.conn, claim))
        assert not marking.finished()
    assert reaping.result().events == 3
    assert marking.result() == claim
    assert [row["status"] for row in stage.rows()] == ["pending"] * 3
    assert stage.leases() == []


def test_a_reap_finds_rows_that_were_marked_after_it_began(stage: Stage) -> None:
    """Its locks come first: what a mark has moved by then is seen where it is."""
    stage.insert("a", 3)
    worker, reaper = stage.actor("worker", marks=False), stage.actor("reaper")
    claim = worker.must_claim()
    with reaper.conn.transaction():
        reaper.conn.execute("SELECT FROM outbox")
        worker.settling.mark(worker.conn, claim)
        assert reaper.reap(gone=["worker"]).events == 3
    assert [row["status"] for row in stage.rows()] == ["pending"] * 3


@pytest.mark.parametrize("marks", [True, False])
def test_lists_tell_what_is_in_flight_whether_its_row_says_so_or_not(stage: Stage, marks: bool) -> None:
    taken, behind = stage.insert("a", 2)
    worker = stage.actor(marks=marks)
    worker.must_claim(rows=1)
    conn, table = worker.conn, worker.table
    for status, expected in (("processing", [taken]), ("pending", [behind])):
        found = events(conn, table, Filters(status=status))  # type: ignore[arg-type]
        assert [(row["position"], row["status"]) for row in found] == [(expected[0], status)]
        for query in (Query(status=status), Query(status=status, key="a")):  # type: ignore[arg-type]
            page = listing.page(conn, table, query)
            assert [(row["position"], row["status"]) for row in page.events] == [(expected[0], status)]
        shown = show(conn, table, stage.row(expected[0])["idempotency_key"])
        assert shown is not None
        assert shown["status"] == status
    head = waiting.lane_of(conn, table, "a", behind)
    assert head is not None
    assert (head["status"], head["ahead"]) == ("processing", 1)


def test_a_mark_that_was_made_is_not_made_again(stage: Stage) -> None:
    stage.insert("a", 2)
    worker = stage.actor(marks=False)
    claim = worker.settling.mark(worker.conn, worker.must_claim())
    before = stage.rows()
    worker.settling.mark(worker.conn, claim)
    assert stage.rows() == before
    worker.settle(claim, RELEASE)
    assert {row["attempts"] for row in stage.rows()} == {0}


@pytest.mark.parametrize("marks", [True, False])
def test_what_is_committed_between_the_events_of_a_lease_is_not_its_own(stage: Stage, marks: bool) -> None:
    """Neither the settle nor the reaper takes it for one of them."""
    writer = stage.session()
    stage.insert("a")
    with writer.transaction():
        (late,) = stage.insert("a", 1, writer)
        stage.insert("a")
        worker = stage.actor(marks=marks)
        claim = worker.must_claim()
    assert len(claim.events) == 2
    stage.vacuum("FULL")
    worker.settle(claim, RELEASE)
    assert worker.reap().events == 0
    again = worker.must_claim(rows=1)
    assert positions(again) != [late]
    assert worker.reap(gone=[worker.name]).events == 1
    assert stage.row(late)["losses"] == 0
