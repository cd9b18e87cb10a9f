"""What a claim takes, in which order, how much of it, and that everybody gets a turn."""

from collections import Counter
from collections.abc import Sequence

import psycopg
import pytest

import relay.scan
from relay.event import Event
from relay.scan import BUCKETS_PER_CLAIM, Scan, Tail, part_of
from relay.settlement import Settlement
from relay.store.claim_sql import HEADS_PER_CLAIM, LATER_ROWS_PER_CLAIM
from relay.store.look import Claim, Limits
from tests.integration.store_kit import (
    LOST_MORE,
    LOST_ONCE,
    Actor,
    Raw,
    Stage,
    keys_of_bucket,
    overlapping_keys,
    positions,
)

IN_AN_HOUR = Raw("now() + interval '1 hour'")
A_MOMENT_LATER = Raw("now() + interval '1 microsecond'")


def keys(claim: Claim | None) -> list[str]:
    return [event.key for event in claim.events] if claim else []


# What is taken


@pytest.mark.usefixtures("any_postgres")
def test_a_claim_takes_the_head_and_the_due_events_behind_it_in_order(stage: Stage) -> None:
    a = stage.insert("a", 3)
    b = stage.insert("b", 2)
    claim = stage.actor().must_claim()
    assert positions(claim) == a + b
    assert keys(claim) == ["a"] * 3 + ["b"] * 2


@pytest.mark.usefixtures("any_postgres")
def test_a_claim_returns_each_column_as_the_writer_wrote_it(stage: Stage) -> None:
    (position,) = stage.insert(
        "order:1",
        event_type="Paid",
        idempotency_key="paid-1",
        payload='{"b": [1, 2.50], "a": "ü\\u0001"}',
        headers='{"h": "é"}',
        destination="elsewhere",
        max_attempts=7,
    )
    (event,) = stage.actor().must_claim().events
    row = stage.row(position)
    assert event == Event(
        position=position,
        key="order:1",
        event_id="paid-1",
        event_type="Paid",
        destination="elsewhere",
        payload=stage.value("SELECT payload::text FROM outbox").encode(),
        headers={"h": "é"},
        created_at=stage.value("SELECT created_at FROM outbox"),
        generation=row["lease_generation"],
        attempt=1,
        max_attempts=7,
    )
    assert row["status"] == "processing"
    assert row["claimed_by"] == "worker-1"
    assert row["attempts"] == 1


def test_a_head_in_processing_waiting_or_failed_holds_its_key(stage: Stage) -> None:
    worker = stage.actor()
    for key in ("processing", "waiting", "failed"):
        stage.insert(key, 1)
    claim = worker.must_claim()
    acts = {"processing": "release", "waiting": "retry", "failed": "block"}
    worker.settle(claim, [Settlement(acts[event.key], "x", 3600.0) for event in claim.events])  # type: ignore[arg-type]
    assert keys(worker.claim()) == ["processing"]
    for key in ("processing", "waiting", "failed", "free"):
        stage.insert(key, 2)
    assert keys(worker.claim()) == ["free", "free"]


@pytest.mark.usefixtures("any_postgres")
def test_a_delayed_event_holds_what_is_behind_it_until_it_is_due_and_not_what_is_before_it(
    stage: Stage,
) -> None:
    before = stage.insert("a", 2)
    delayed = stage.insert("a", 1, available_at=IN_AN_HOUR)
    behind = stage.insert("a", 2)
    worker = stage.actor()
    claim = worker.must_claim()
    assert positions(claim) == before
    worker.settle(claim)
    assert worker.claim() is None
    stage.all_due()
    assert positions(worker.claim()) == delayed + behind


def test_a_run_merges_events_that_waited_with_those_that_did_not_in_id_order(stage: Stage) -> None:
    expected = []
    for _ in range(5):
        expected += stage.insert("a", 1, available_at=A_MOMENT_LATER) + stage.insert("a", 2)
    assert positions(stage.actor().claim(rows=11)) == expected[:11]


def test_an_event_created_in_the_future_waits_until_then_and_holds_its_key(stage: Stage) -> None:
    stage.insert("a", created_at=IN_AN_HOUR, available_at=IN_AN_HOUR)
    stage.insert("a")
    assert stage.actor().claim() is None


def test_an_event_that_was_tried_before_goes_alone(stage: Stage) -> None:
    first, *_ = stage.insert("a", 3)
    worker = stage.actor()
    claim = worker.must_claim()
    worker.settle(claim, [Settlement("retry", "x", 0.0), Settlement("release"), Settlement("release")])
    assert positions(worker.claim()) == [first]


@pytest.mark.usefixtures("any_postgres")
def test_a_key_with_a_lease_is_not_claimed_even_where_other_events_stand_before_its_run(stage: Stage) -> None:
    writer = stage.session()
    with writer.transaction():
        late = stage.insert("a", 4, writer)
        stage.insert("a", 2)
        in_flight = stage.actor("first").must_claim()
    assert stage.actor("second").claim() is None
    assert overlapping_keys(stage.sql) == []
    stage.actor("first").settle(in_flight)
    assert positions(stage.actor("second").claim()) == late


def test_a_redriven_event_before_a_run_in_flight_waits_for_it(stage: Stage) -> None:
    (first,) = stage.insert("a")
    worker = stage.actor()
    worker.settle(worker.must_claim(), "dead_letter")
    stage.insert("a", 2)
    in_flight = worker.must_claim()
    stage.sql.execute(
        "UPDATE outbox SET status = 'pending', completed_at = NULL, parked_at = NULL, attempts = 0,"
        " claimed_by = NULL, available_at = clock_timestamp() WHERE id = %s",
        [first],
    )
    assert stage.actor("second").claim() is None
    worker.settle(in_flight)
    assert positions(stage.actor("second").claim()) == [first]


def test_claims_leave_a_completed_and_a_dead_lettered_event_alone(stage: Stage) -> None:
    stage.insert("a", 2)
    worker = stage.actor()
    worker.settle(worker.must_claim(), ["complete", "dead_letter"])
    assert worker.claim() is None


def test_the_cursor_of_a_rolled_back_claim_does_not_lose_events(stage: Stage) -> None:
    ids = stage.insert("a", 3)
    worker = stage.actor(stepwise=True)

    def fail(query: str) -> None:
        if query == "COMMIT":
            raise KeyboardInterrupt

    worker.gate.before = fail
    with pytest.raises(KeyboardInterrupt):
        worker.claim()
    worker.gate.before = None
    assert stage.leases() == []
    assert positions(worker.claim()) == ids


def test_a_claim_in_one_trip_holds_its_locks_until_it_has_claimed(stage: Stage) -> None:
    """Both statements are one transaction, although nobody said BEGIN: the second waits for a lease here."""
    ids = stage.insert("a", 2)
    worker, person = stage.actor(), stage.session()
    with person.transaction(force_rollback=True):
        person.execute(
            "INSERT INTO outbox_leases VALUES (1, '', now(), now(), 1, '{}', '{}', '{}', '{}', '{}')"
        )
        claiming = stage.in_background(worker, worker.claim)
        assert not claiming.finished()
        locks = stage.sql.execute(
            "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = %s", [worker.pid()]
        ).fetchall()
        assert locks == [(stage.value("SELECT partition_bucket FROM outbox WHERE id = %s", ids[0]),)]
        assert stage.actor("other").claim() is None
    assert positions(claiming.result()) == ids


def test_outboxes_of_two_names_do_not_meet(stage: Stage) -> None:
    from relay.names import TableName
    from relay.store.migrate import migrate

    stage.sql.execute("CREATE SCHEMA sales")
    migrate(stage.url, TableName.parse("sales.outbox"))
    stage.insert("a")
    sales = stage.actor("sales", table=TableName.parse("sales.outbox"))
    assert sales.claim() is None
    with stage.uncommitted_claim(stage.actor("plain")):
        stage.sql.execute(
            "INSERT INTO sales.outbox (partition_key, event_type, payload) VALUES ('a', 'Tested', '{}')"
        )
        assert keys(sales.claim()) == ["a"]


@pytest.mark.parametrize("hard", [False, True], ids=["easy", "hard"])
def test_events_of_a_key_come_in_order_however_their_rows_lie_and_however_many(
    stage: Stage, hard: bool
) -> None:
    ids = [position for key in "ab" for position in stage.insert(key, 600)]
    stage.sql.execute("UPDATE outbox SET idempotency_key = to_char(100000 - id, 'fm000000')")
    stage.sql.execute("CLUSTER outbox USING outbox_event_id")
    if hard:
        stage.insert("a", available_at=Raw("now() + interval '1 hour'"))
    claim = stage.actor(marks=False).must_claim(rows=2000)
    assert sorted(positions(claim)) == ids
    for key in "ab":
        lane = [event.position for event in claim.events if event.key == key]
        assert lane == sorted(lane)
    assert claim.ids == "{" + ",".join(map(str, positions(claim))) + "}"


def test_a_deep_backlog_is_taken_from_its_oldest_events_on_and_to_the_last(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay.scan, "DEEP", 1000)
    monkeypatch.setattr(relay.scan, "LEAST_OF_DEEP", 1500)
    stage.insert("", 12_000, partition_key=Raw("'key-' || i %% 500"))
    worker = stage.actor(completion="delete", marks=False)
    taken: list[int] = []
    lap = 0
    while worker.scan.laps < lap + 2:
        if claim := worker.claim(rows=200):
            taken += positions(claim)
            worker.settle(claim)
            lap = worker.scan.laps
    assert sorted(taken) == list(range(1, 12_001))
    first_quarter = taken[:3000]
    assert sum(position <= 6000 for position in first_quarter) > 2500, "the older ones come first"


# How much


def test_a_claim_takes_at_most_its_rows_and_goes_on_behind_them(stage: Stage) -> None:
    for key in "abcdef":
        stage.insert(key, 4)
    worker = stage.actor()
    sizes: list[int] = []
    taken: list[int] = []
    while claim := worker.claim(rows=5):
        sizes.append(len(claim.events))
        taken += positions(claim)
        worker.settle(claim)
    assert max(sizes) == 5
    assert sorted(taken) == sorted(set(taken)) == sorted(position for position, _ in stage.statuses())


def payload_of(size: int, compressible: bool) -> Raw:
    """A JSON string of `size` bytes, a multiple of 32."""
    text = (
        f"repeat('x', {size})"
        if compressible
        else f"(SELECT string_agg(md5(i || '-' || s), '') FROM generate_series(1, {size // 32}) s)"
    )
    return Raw(f"to_jsonb({text})")


@pytest.mark.usefixtures("any_postgres")
@pytest.mark.parametrize("compressible", [False, True], ids=["random", "compressible"])
@pytest.mark.parametrize("size", [96, 4_992, 199_968])
def test_a_claim_takes_less_than_its_bytes_and_one_event(stage: Stage, size: int, compressible: bool) -> None:
    for key in ("a", "b"):
        stage.insert(key, 6, payload=payload_of(size, compressible))
    budget = 3 * size + size // 2
    worker = stage.actor()
    taken = 0
    while claim := worker.claim(size=budget):
        weight = sum(len(event.payload) for event in claim.events)
        assert weight - len(claim.events[-1].payload) <= budget
        assert len(claim.events) == 4 or taken >= 8
        taken += len(claim.events)
        worker.settle(claim)
    assert taken == 12


def test_an_event_larger_than_the_budget_goes_alone(stage: Stage) -> None:
    small = stage.insert("a", 1)
    large = stage.insert("b", 1, payload=payload_of(48_000, False))
    larger = stage.insert("c", 1, payload=payload_of(96_000, True))
    worker = stage.actor()
    claims = []
    while claim := worker.claim(size=10):
        claims.append(positions(claim))
        worker.settle(claim)
    assert sorted(claims) == [small, large, larger]


# That everybody gets a turn


def test_under_overload_every_key_is_served_evenly(stage: Stage) -> None:
    """Sixty keys, each with more events than are ever claimed."""
    stage.insert("", 60 * 40, partition_key=Raw("'key-' || i %% 60"))
    worker = stage.actor()
    served: Counter[str] = Counter()
    for _ in range(60):
        claim = worker.must_claim(rows=20)
        served.update(keys(claim))
        worker.settle(claim, "complete")
        stage.insert("", 30, partition_key=Raw("'key-' || i %% 60"))
    assert len(served) == 60
    assert max(served.values()) <= 20 + min(served.values())


def test_every_key_of_one_deep_bucket_is_served(stage: Stage) -> None:
    deep = keys_of_bucket(7, 700, stage.sql)
    stage.sql.cursor().executemany(
        "INSERT INTO outbox (partition_key, event_type, payload) VALUES (%s, 'Tested', '{}')",
        [(key,) for key in deep for _ in range(2)],
    )
    worker = stage.actor()
    served: Counter[str] = Counter()
    for _ in range(700 // 50):
        claim = worker.must_claim(rows=100)
        served.update(keys(claim))
        worker.settle(claim)
        worker.conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload)"
            " SELECT k, 'Tested', '{}' FROM unnest(%s::text[]) k",
            [deep[:50]],
        )
    assert set(served) == set(deep)


def test_a_claim_cut_in_the_middle_of_a_bucket_goes_on_there(stage: Stage) -> None:
    a, b, c, d = keys_of_bucket(500, 4, stage.sql)
    for key in (a, b, c, d):
        stage.insert(key, 3)
    worker = stage.actor()
    orders = []
    for _ in range(4):
        claim = worker.must_claim(rows=3)
        orders.append(claim.events[0].key)
        worker.settle(claim, "release")
    assert orders == [a, b, c, d]


def test_a_worker_that_finds_its_bucket_taken_keeps_its_place_there(stage: Stage) -> None:
    a, b = keys_of_bucket(500, 2, stage.sql)
    stage.insert(a, 5)
    stage.insert(b, 5)
    first, second = stage.actor("first"), stage.actor("second")
    claim = first.must_claim(rows=1)
    first.settle(claim, "release")
    with stage.uncommitted_claim(second, rows=1):
        look = first.look()
        assert look.claim is None
        assert (look.buckets, look.skipped) == (1, 1)
    second.reap(gone=["second"])
    assert keys(first.claim(rows=1)) == [b]


def hold(worker: Actor, held: list[str]) -> None:
    """Park the heads of these keys as failed."""
    worker.conn.execute(
        "INSERT INTO outbox (partition_key, event_type, payload)"
        " SELECT k, 'Tested', '{}' FROM unnest(%s::text[]) k",
        [held],
    )
    left = len(held)
    while left:
        claim = worker.must_claim(rows=10_000)
        worker.settle(claim, "block")
        left -= len(claim.events)


def test_keys_held_by_a_failed_head_do_not_keep_others_from_being_claimed(stage: Stage) -> None:
    held = [f"held-{n}" for n in range(3 * BUCKETS_PER_CLAIM)]
    worker = stage.actor()
    hold(worker, held)
    for available_at in (Raw("now()"), A_MOMENT_LATER):
        for key in held:
            stage.insert(key, 1, available_at=available_at)
    retried = [f"retried-{n}" for n in range(20)]
    for key in retried:
        stage.insert(key, 1, available_at=A_MOMENT_LATER)
    for key in ("fresh-1", "fresh-2"):
        stage.insert(key, 1)
    served: set[str] = set()
    for _ in range(20):
        claim = worker.claim(rows=3)
        served |= set(keys(claim))
        if claim:
            worker.settle(claim)
    assert served == {*retried, "fresh-1", "fresh-2"}


def test_events_that_waited_and_fill_every_claim_do_not_keep_fresh_ones_from_being_claimed(
    stage: Stage,
) -> None:
    stage.insert("flood", 200, available_at=A_MOMENT_LATER)
    stage.insert("fresh")
    worker = stage.actor()
    served = []
    for _ in range(3):
        claim = worker.must_claim(rows=10)
        served += keys(claim)
        worker.settle(claim)
    assert "fresh" in served
    assert "flood" in served


def test_those_that_waited_longest_come_first(stage: Stage) -> None:
    last, first, second = (f"key-{n}" for n in range(3))
    for key, seconds in ((last, 1), (first, 3), (second, 2)):
        stage.insert(
            key,
            created_at=Raw("now() - interval '1 hour'"),
            available_at=Raw(f"now() - interval '{seconds} seconds'"),
        )
    worker = stage.actor()
    assert [keys(worker.claim(rows=1)) for _ in range(3)] == [[first], [second], [last]]


def test_more_events_that_waited_than_a_claim_looks_at_are_all_served(stage: Stage) -> None:
    n = 2 * LATER_ROWS_PER_CLAIM + 50
    stage.insert("", n, partition_key=Raw("'key-' || i"), available_at=A_MOMENT_LATER)
    worker = stage.actor()
    taken: list[str] = []
    for _ in range(n // BUCKETS_PER_CLAIM * 2 + 2):
        taken += keys(worker.claim(rows=1000))  # nothing is settled: those in flight stay in the window
    assert len(taken) == len(set(taken)) == n


def lose(stage: Stage, worker: Actor, key: str, times: int) -> None:
    """Let the event of this key lose its lease, with another so that no attempt is held against it."""
    for loss in range(times):
        stage.all_due()
        claim = worker.must_claim(rows=1, losses=(loss, loss))
        assert keys(claim) == [key]
        worker.reap(gone=[worker.name])
    stage.all_due()


@pytest.mark.parametrize("times, losses", [(1, LOST_ONCE), (2, LOST_MORE)])
def test_held_keys_do_not_hide_those_that_lost_a_lease(
    stage: Stage, times: int, losses: tuple[int, int]
) -> None:
    worker = stage.actor()
    stage.insert("suspect")
    lose(stage, worker, "suspect", times)
    held = [f"held-{n}" for n in range(300)]
    hold(worker, held)
    for key in held:
        stage.insert(key, 1)
    stage.insert("", 100, partition_key=Raw("'busy-' || i"))
    limits = Limits(1000, 1 << 24)
    scan = Scan(start=1)
    for _ in range(12):
        before = Scan(scan.start, dict(scan.keys), scan.later, scan.later_rests)
        look = worker.claiming.claim(worker.conn, scan, limits)
        if look.lost_once or look.lost_more:
            break
    found = worker.claiming.claim(worker.conn, before, limits.suspects(1, losses))
    assert keys(found.claim) == ["suspect"]


# Whose buckets


@pytest.mark.usefixtures("any_postgres")
def test_workers_that_share_the_buckets_take_all_events_between_them_and_none_of_the_others(
    stage: Stage,
) -> None:
    stage.insert("", 400, partition_key=Raw("'fresh-' || i"))
    stage.insert("", 400, partition_key=Raw("'waited-' || i"), available_at=A_MOMENT_LATER)
    shares = [[b for b in range(1024) if b % 3 == n] for n in range(3)]
    taken: list[int] = []
    for n, share in enumerate(shares):
        worker = stage.actor(f"worker-{n}")
        worker.claiming.watch(share)
        worker.scan = Scan(start=341 * n)
        for _ in range(40):
            if claim := worker.claim(rows=50):
                taken += positions(claim)
        buckets = {
            bucket
            for lease in stage.leases()
            if lease["claimed_by"] == worker.name
            for bucket in lease["buckets"]
        }
        assert buckets <= set(share)
    assert len(taken) == len(set(taken)) == 800


def test_a_worker_without_buckets_takes_nothing(stage: Stage) -> None:
    stage.insert("fresh")
    stage.insert("waited", available_at=A_MOMENT_LATER)
    worker = stage.actor()
    worker.claiming.watch([])
    assert worker.claim() is None
    worker.claiming.watch(None)
    assert sorted(keys(worker.claim())) == ["fresh", "waited"]


def test_events_of_others_that_waited_do_not_hide_ones_own(stage: Stage) -> None:
    stage.insert("", 3 * LATER_ROWS_PER_CLAIM, partition_key=Raw("'key-' || i"), available_at=A_MOMENT_LATER)
    (mine,) = stage.insert("mine", available_at=Raw("now() + interval '2 microseconds'"))
    worker = stage.actor()
    worker.claiming.watch([stage.row(mine)["partition_bucket"]])
    taken: list[int] = []
    for _ in range(6):
        taken += positions(worker.claim())
    assert mine in taken


def test_a_claim_of_what_is_old_looks_into_everybodys_buckets(stage: Stage) -> None:
    (old,) = stage.insert(
        "a", created_at=Raw("now() - interval '1 hour'"), available_at=Raw("now() - interval '1 hour'")
    )
    stage.insert("a")
    stage.insert("b")
    worker = stage.actor()
    worker.claiming.watch([])
    look = worker.claiming.claim(
        worker.conn, worker.scan, Limits(100, 1 << 24, min_age=60.0, everywhere=True)
    )
    assert positions(look.claim) == [old]


def test_a_look_says_whether_it_saw_all_there_is(stage: Stage) -> None:
    worker = stage.actor()
    assert not worker.look().full
    deep = keys_of_bucket(3, HEADS_PER_CLAIM + 20, stage.sql)
    hold(worker, deep)
    for key in deep:
        stage.insert(key, 1)
    worker.scan = Scan()
    assert worker.look(rows=10).full, "it stopped at the heads it may look at"
    assert not worker.look(rows=10).full
    stage.insert("free", 30)
    assert worker.look(rows=10).full


def test_a_created_at_that_no_client_can_read_is_refused_at_the_insert(stage: Stage) -> None:
    for unreadable in ("-infinity", "infinity", "0044-03-15 BC", "20000-01-01"):
        with pytest.raises(psycopg.errors.CheckViolation):
            stage.insert("a", created_at=unreadable)
    for extreme in ("0001-01-02 00:00+00", "9999-12-30 23:59+00"):
        stage.insert(extreme, created_at=extreme)
    assert len(stage.actor().must_claim().events) == 2


# At the end of the table


def tail_claim(worker: Actor) -> list[int]:
    return positions(worker.claiming.claim_tail(worker.conn, Tail(), Limits(100, 1 << 24)).claim)


def test_what_came_last_is_claimed_at_the_end_of_the_table_key_by_key(stage: Stage) -> None:
    first, *rest = stage.insert("a", 3)
    (other,) = stage.insert("b")
    worker = stage.actor()
    assert tail_claim(worker) == [first, *rest, other]
    assert [lease["size"] for lease in stage.leases()] == [4]
    assert tail_claim(worker) == []


def test_a_look_at_the_end_of_the_table_tells_how_much_there_was(stage: Stage) -> None:
    stage.insert("a", 5)
    stage.insert("b", 2)
    worker = stage.actor()
    look = worker.claiming.claim_tail(worker.conn, Tail(), Limits(4, 1 << 24))
    assert (len(positions(look.claim)), look.waiting) == (4, 7)
    look = worker.claiming.claim_tail(worker.conn, Tail(), Limits(4, 1 << 24))
    assert look.waiting == 2, "one more stands behind those in flight"


def test_any_number_of_held_keys_at_the_end_of_the_table_does_not_hide_others_there(stage: Stage) -> None:
    stage.sql.execute(
        "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by)"
        " VALUES ('event_type', 'Held', 'operator', '', '')"
    )
    stage.insert("", 3 * BUCKETS_PER_CLAIM, partition_key=Raw("'held-' || i"), event_type="Held")
    (free,) = stage.insert("free")
    worker, tail, found = stage.actor(), Tail(), []
    for _ in range(6):
        look = worker.claiming.claim_tail(worker.conn, tail, Limits(100, 1 << 24))
        found.append(positions(look.claim))
    assert [free] in found


def test_what_waited_is_looked_at_again_after_a_look_that_was_for_fresh_ones_alone(stage: Stage) -> None:
    (due,) = stage.insert("a", available_at=Raw("now() + interval '1 us'"))
    worker, scan = stage.actor(), Scan(later_rests=True)
    looks = [worker.claiming.claim(worker.conn, scan, Limits(10, 1 << 24)) for _ in range(2)]
    assert [positions(look.claim) for look in looks] == [[], [due]]


def test_at_the_end_of_the_table_too_the_head_decides_and_keys_in_flight_and_pauses_hold(
    stage: Stage,
) -> None:
    stage.insert("waits", available_at=Raw("now() + interval '1 hour'"))
    stage.insert("waits")
    stage.insert("in flight")
    worker = stage.actor()
    assert len(worker.must_claim().events) == 1
    stage.insert("in flight")
    stage.insert("paused")
    stage.sql.execute(
        "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by)"
        " VALUES ('key', 'paused', 'operator', '', '')"
    )
    (free,) = stage.insert("free")
    assert tail_claim(worker) == [free]


def test_at_the_end_of_the_table_a_worker_takes_from_its_own_buckets(stage: Stage) -> None:
    (mine,), _ = stage.insert("a"), stage.insert("b")
    worker = stage.actor()
    worker.claiming.watch([stage.row(mine)["partition_bucket"]])
    assert tail_claim(worker) == [mine]


def test_a_claim_at_the_end_of_the_table_does_not_take_a_locked_bucket(stage: Stage) -> None:
    (one,) = stage.insert("a")
    worker, person = stage.actor(), stage.session()
    with person.transaction():
        person.execute(
            "SELECT pg_advisory_xact_lock(%s, %s)",
            [worker.table.bucket_locks, stage.row(one)["partition_bucket"]],
        )
        assert tail_claim(worker) == []
    assert tail_claim(worker) == [one]


def test_a_part_of_the_buckets_is_looked_into_for_fresh_events_and_all_for_those_that_waited(
    stage: Stage,
) -> None:
    low, high = keys_of_bucket(3, 1, stage.sql)[0], keys_of_bucket(1000, 1, stage.sql)[0]
    (fresh,) = stage.insert(low)
    stage.insert(high)
    worker = stage.actor()
    limits = Limits(100, 1 << 24, part=0)
    assert positions(worker.claiming.claim(worker.conn, Scan(), limits).claim) == [fresh]
    (waited,) = stage.insert(
        keys_of_bucket(900, 1, stage.sql)[0],
        created_at=Raw("now() - interval '1 hour'"),
        available_at=Raw("now() - interval '1 s'"),
    )
    assert positions(worker.claiming.claim(worker.conn, Scan(), limits).claim) == [waited]


def test_a_change_of_shares_in_the_middle_of_a_look_is_not_forgotten(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares change in another thread than the one that claims."""
    (key,) = keys_of_bucket(3, 1, stage.sql)
    worker = stage.actor()
    worker.claiming.watch([0])
    limits = Limits(100, 1 << 24, part=0)

    def change(buckets: Sequence[int], part: int) -> list[int]:
        worker.claiming.watch(None)
        return part_of(buckets, part)

    with monkeypatch.context() as patch:
        patch.setattr("relay.store.look.part_of", change)
        worker.claiming.claim(worker.conn, Scan(), limits)
    ids = stage.insert(key)
    assert positions(worker.claiming.claim(worker.conn, Scan(), limits).claim) == ids
