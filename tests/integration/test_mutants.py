"""Each form of the statements that is known to be wrong is caught, and the right form is not.

A mutant is the source of a module with a fragment replaced. A scenario plays the one interleaving that
tells it from the right form, and returns what went wrong. Belts that would hide the fault are off in
the mutant, so that what is shown is the fault itself.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest

import relay.store
from relay.errors import LeaseLost
from relay.settlement import Settlement
from tests.integration.store_kit import (
    COMPLETE,
    LOST_ONCE,
    RELEASE,
    RIGHT,
    Raw,
    Stage,
    Store,
    change_places,
    held,
    keys_of_bucket,
    orphans,
    overlapping_keys,
    overtaken,
    publish_with_poison,
    wait_until,
)

Edit = tuple[str, str]
Scenario = Callable[[Stage], list[Any]]
IN_AN_HOUR = Raw("now() + interval '1 hour'")


def mutate(names: Sequence[str], *edits: Edit) -> ModuleType:
    """The last of these modules, made anew from sources with fragments replaced.

    Whitespace in a fragment matches any. Later modules import the mutants of earlier ones.
    """
    modules = [importlib.import_module(f"relay.store.{name}") for name in names]
    sources = [inspect.getsource(module) for module in modules]
    for old, new in edits:
        pattern = r"\s+".join(re.escape(word) for word in old.split())
        found = [re.subn(pattern, partial(_instead, new), source) for source in sources]
        assert sum(n for _, n in found), f"{names} have no {old!r} any more: mend this mutant"
        sources = [source for source, _ in found]
    mutants = {module.__name__: ModuleType(module.__name__) for module in modules}
    with pytest.MonkeyPatch.context() as patch:
        for module, source in zip(modules, sources, strict=True):
            mutant = mutants[module.__name__]
            exec(compile(source, f"<mutant of {module.__name__}>", "exec"), mutant.__dict__)
            patch.setitem(sys.modules, module.__name__, mutant)
            patch.setattr(relay.store, module.__name__.rpartition(".")[2], mutant)
    return mutant


def _instead(new: str, _: object) -> str:
    return new


def claim_of(*edits: Edit) -> Store:
    return Store(claim=mutate(["claim_sql", "claim"], *edits))


def settle_of(*edits: Edit) -> Store:
    return Store(settle=mutate(["settle"], *edits))


def reap_of(*edits: Edit) -> Store:
    return Store(reap=mutate(["reap"], *edits))


# Two claims at once


def a_claim_meets_an_uncommitted_one(stage: Stage) -> list[Any]:
    stage.insert("a", 10)
    first, second = stage.actor("first"), stage.actor("second")
    with stage.uncommitted_claim(first, rows=2):
        racing = stage.in_background(second, lambda: second.claim(rows=10))
    racing.result()
    return overlapping_keys(stage.sql)


def a_claim_began_before_another_committed(stage: Stage) -> list[Any]:
    """The second claim is held up by a table lock after its transaction took a first snapshot.

    What it then finds to claim are late rows before the run of the first, which it did not touch.
    """
    writer, person = stage.session(), stage.session()
    first, second = stage.actor("first", marks=False), stage.actor("second", stepwise=True)
    writer.execute("BEGIN")
    stage.insert("a", 5, writer)
    stage.insert("a", 2)
    with stage.uncommitted_claim(first):
        writer.execute("COMMIT")
        person.execute("BEGIN")
        locking = stage.in_background(person, lambda: person.execute("LOCK TABLE outbox"))
        racing = stage.in_background(second, lambda: second.claim(rows=5))
        assert not racing.finished()
    locking.result()
    person.execute("ROLLBACK")
    racing.result()
    return overlapping_keys(stage.sql)


# The lane


def an_event_waits_for_its_retry(stage: Stage) -> list[Any]:
    stage.insert("a", 3)
    worker = stage.actor()
    worker.settle(worker.must_claim(), [Settlement("retry", "x", 3600.0), RELEASE, RELEASE])
    worker.claim()
    return overtaken(stage.sql)


def a_delayed_event_is_the_head(stage: Stage) -> list[Any]:
    stage.insert("a", 1, available_at=IN_AN_HOUR)
    stage.insert("a", 2)
    stage.actor().claim()
    return overtaken(stage.sql)


def a_delayed_event_stands_in_the_middle(stage: Stage) -> list[Any]:
    stage.insert("a", 2)
    stage.insert("a", 1, available_at=IN_AN_HOUR)
    stage.insert("a", 2)
    stage.actor().must_claim()
    return overtaken(stage.sql)


def an_event_in_the_middle_is_held_by_hand(stage: Stage) -> list[Any]:
    _, second, *_ = stage.insert("a", 4)
    stage.sql.execute("UPDATE outbox SET status = 'failed', parked_at = now() WHERE id = %s", [second])
    stage.actor().must_claim()
    return overtaken(stage.sql)


def an_event_was_tried_before(stage: Stage) -> list[Any]:
    head, *_ = stage.insert("a", 3)
    stage.sql.execute("UPDATE outbox SET attempts = 1 WHERE id = %s", [head])
    return [event for event in stage.actor().must_claim().events if event.position != head]


def an_event_that_waits_is_committed_between_the_two_statements(stage: Stage) -> list[Any]:
    """The bucket was plain when it was locked."""
    writer, worker = stage.session(), stage.actor()
    writer.execute("BEGIN")
    stage.insert("a", 1, writer, available_at=IN_AN_HOUR)
    stage.insert("a", 2)
    with held(worker, "WITH busy", worker.claim) as claiming:
        writer.execute("COMMIT")
    claiming.result()
    return overtaken(stage.sql)


def a_run_is_in_flight_behind_late_rows(stage: Stage) -> list[Any]:
    writer = stage.session()
    with writer.transaction():
        stage.insert("a", 5, writer)
        stage.insert("a", 2)
        stage.actor("first").must_claim()
    stage.actor("second").claim(rows=5)
    return overlapping_keys(stage.sql)


def somebody_has_locked_the_head(stage: Stage) -> list[Any]:
    head, *_ = stage.insert("a", 5)
    worker, person = stage.actor(), stage.session()
    with person.transaction():
        person.execute("SELECT FROM outbox WHERE id = %s FOR UPDATE", [head])
        claiming = stage.in_background(worker, worker.claim)
    claiming.result()
    return overtaken(stage.sql)


# Lost leases


def a_zombies_settle_commits_while_its_events_are_claimed(stage: Stage) -> list[Any]:
    stage.insert("a", 8)
    zombie, other = stage.actor("zombie", lease_seconds=1.0, marks=False), stage.actor("other")
    claim = zombie.must_claim(rows=4)
    zombie.conn.execute("BEGIN")
    zombie.settle(claim, [Settlement("block", "refused"), RELEASE, RELEASE, RELEASE])
    wait_until(
        lambda: stage.value("SELECT max(expires_at) < clock_timestamp() FROM outbox_leases"),
        "the lease expires",
    )
    taking_over = stage.in_background(other, other.claim)
    zombie.conn.execute("COMMIT")
    taking_over.result()
    return overtaken(stage.sql)


def a_settle_straddles_the_expiry(stage: Stage) -> list[Any]:
    ids = stage.insert("a", 20)
    worker, person = stage.actor(lease_seconds=1.0), stage.session()
    claim = worker.must_claim()
    with person.transaction():
        person.execute("SELECT FROM outbox WHERE id = %s FOR UPDATE", [ids[9]])
        settling = stage.in_background(worker, lambda: worker.settle(claim))
        assert not settling.finished()
        wait_until(
            lambda: stage.value("SELECT max(lease_expires_at) < clock_timestamp() FROM outbox"),
            "the lease expires",
        )
    settling.result()
    return orphans(stage.sql)


def a_stale_worker_finds_another_lease_where_its_rows_were(stage: Stage) -> list[Any]:
    """Pruning gives the place of its rows to the new owner's."""
    stage.insert("a", 1)
    stale, owner = stage.actor("stale"), stage.actor("owner", marks=False)
    lost = stale.must_claim()
    owner.reap(gone=["stale"])
    stage.vacuum()
    current = owner.must_claim(losses=LOST_ONCE)
    before = stage.everything()
    try:
        stale.settle(replace(lost, tids=current.tids))
    except LeaseLost:
        pass
    else:
        return ["a stale settle went through"]
    return [] if stage.everything() == before else ["a stale settle changed something"]


def a_lease_has_expired_and_nobody_took_it_back(stage: Stage) -> list[Any]:
    stage.insert("a", 1)
    worker = stage.actor()
    claim = worker.must_claim()
    stage.expire(claim)
    before = stage.everything()
    try:
        worker.settle(claim)
    except LeaseLost:
        return [] if stage.everything() == before else ["a late settle changed something"]
    return ["a late settle went through"]


def a_worker_has_two_leases(stage: Stage) -> list[Any]:
    stage.insert("a", 1)
    stage.insert("b", 1)
    worker = stage.actor()
    first = worker.must_claim(rows=1)
    worker.must_claim(rows=1)
    worker.settle(first)
    return orphans(stage.sql)


def a_stale_worker_marks_what_is_anothers(stage: Stage) -> list[Any]:
    stage.insert("a", 1)
    stale, owner = stage.actor("stale", marks=False), stage.actor("owner", marks=False)
    lost = stale.must_claim()
    owner.reap(gone=["stale"])
    stage.vacuum()
    current = owner.must_claim(losses=LOST_ONCE)
    stale.settling.mark(stale.conn, replace(lost, tids=current.tids))
    return orphans(stage.sql)


def a_lease_is_lost_while_its_rows_are_marked(stage: Stage) -> list[Any]:
    stage.insert("a", 3)
    worker, reaper = stage.actor("worker", marks=False), stage.actor("reaper")
    claim = worker.must_claim()
    with worker.conn.transaction():
        worker.settling.mark(worker.conn, claim)
        reaping = stage.in_background(reaper, lambda: reaper.reap(gone=["worker"]))
    reaping.result()
    return orphans(stage.sql)


def generations_were_handed_out_again_after_a_crash(stage: Stage) -> list[Any]:
    stage.insert("a", 1)
    stale, owner = stage.actor("stale"), stage.actor("owner")
    lost = stale.must_claim()
    owner.reap(gone=["stale"])
    stage.vacuum()
    stage.sql.execute("SELECT setval('outbox_generation', %s, false)", [lost.generation])
    current = owner.must_claim(losses=LOST_ONCE)
    assert (current.generation, current.tids) == (lost.generation, lost.tids)
    try:
        stale.settle(lost)
    except LeaseLost:
        return []
    return ["a stale settle went through"]


def events_of_a_lease_change_places(stage: Stage) -> list[Any]:
    worker = stage.actor()
    first, _ = (stage.insert(key, idempotency_key=name, max_attempts=99)[0] for key, name in ("az", "by"))
    claim = change_places(stage, worker)
    worker.settle(claim, [Settlement("retry", "not taken", 60.0), COMPLETE])
    return [] if stage.row(first)["status"] == "pending" else ["an event that was not taken is completed"]


# The reaper


def a_lease_is_lost_while_another_is_being_settled(stage: Stage) -> list[Any]:
    stage.insert("a", 1)
    stage.insert("b", 1)
    slow, reaper = stage.actor("slow"), stage.actor("reaper")
    claim = slow.must_claim(rows=1)
    slow.must_claim(rows=1)
    with slow.conn.transaction():
        slow.settle(claim)
        reaping = stage.in_background(reaper, lambda: reaper.reap(gone=["slow"]))
        wrong = [] if reaping.finished() else ["the reaper waits for a settle"]
    reaping.result()
    return wrong


def an_event_was_parked_by_hand(stage: Stage) -> list[Any]:
    first, _ = stage.insert("a", 2)
    stage.actor("doomed").must_claim()
    stage.sql.execute(
        "UPDATE outbox SET status = 'failed', parked_at = now(), lease_expires_at = NULL WHERE id = %s",
        [first],
    )
    stage.actor("reaper").reap(gone=["doomed"])
    return [] if stage.row(first)["status"] == "failed" else ["the reaper made a parked event pending"]


def one_event_kills_every_worker_that_takes_it(stage: Stage) -> list[Any]:
    (poison,) = stage.insert("key-7", max_attempts=2)
    stage.insert("", 20, partition_key=Raw("'key-' || i"), max_attempts=2)
    publish_with_poison(stage, stage.actor(), poison, crashes=8)
    statuses = dict(stage.statuses())
    wrong = [] if statuses.pop(poison) == "dead_letter" else ["the poison is still alive"]
    return wrong + [status for status in statuses.values() if status != "completed"]


# Fairness


def held_keys_come_first(stage: Stage) -> list[Any]:
    worker = stage.actor()
    *blocked, free = keys_of_bucket(9, 8, stage.sql)
    for key in blocked:
        stage.insert(key)
    worker.settle(worker.must_claim(), "block")
    for key in (*blocked, free):
        stage.insert(key, available_at=Raw("now() + interval '1 microsecond'"))
    claims = [worker.claim(rows=3) for _ in range(4)]
    return [] if any(claims) else ["a free key was never reached"]


def more_keys_than_a_claim_takes_are_always_due(stage: Stage) -> list[Any]:
    keys = keys_of_bucket(9, 9, stage.sql)
    for key in keys:
        stage.insert(key, 3)
    worker = stage.actor()
    served = set()
    for _ in range(3):
        claim = worker.must_claim(rows=9)
        served |= {event.key for event in claim.events}
        worker.settle(claim, "release")
    return sorted(set(keys) - served)


NO_COUNT = ('fails("size <> changed"', 'fails("false"')
FENCE = """DELETE FROM {leases} WHERE generation = %(generation)s AND claimed_by = %(worker)s
  AND expires_at > clock_timestamp() RETURNING size, claimed_at"""
NO_LOCK = (
    ("pg_try_advisory_xact_lock(%(namespace)s, w.b)", "true"),
    ("pg_try_advisory_xact_lock(%(namespace)s, b)", "true"),
)
TAKE_LOCKS = "(SELECT count(pg_advisory_xact_lock(%(namespace)s, b)) FROM unnest({LOCKED}) b) > 0"
LOCK_IN_CLAIM = ("FROM weighed WHERE fits)", f"FROM weighed WHERE fits AND {TAKE_LOCKS})")
NO_CLASSES = ("losses BETWEEN %(losses_from)s AND %(losses_to)s", "losses >= 0")
NO_BUSY = ("FROM {leases} l CROSS JOIN", "FROM (SELECT * FROM {leases} LIMIT 0) l CROSS JOIN")
NO_HEAD_RULE = ("AND CASE WHEN l.id IS NULL THEN f.due ELSE l.due END AS free", "AS free")
NO_CUT = ("bool_and(e.due AND", "(e.due AND"), ("OVER (ORDER BY e.id ROWS UNBOUNDED PRECEDING)", "")
RUN = "ORDER BY o.id LIMIT CASE WHEN h.attempts > 0 THEN 1 ELSE %(rows)s END)"


@dataclass(frozen=True)
class Mutant:
    name: str
    scenario: Scenario
    make: Callable[[], Store]


def mutants() -> Iterator[Mutant]:
    meeting = a_claim_meets_an_uncommitted_one
    yield Mutant("claims without a lock", meeting, lambda: claim_of(*NO_LOCK))
    yield Mutant(
        "the lock is taken in the claim's own statement",
        meeting,
        lambda: claim_of(*NO_LOCK, LOCK_IN_CLAIM),
    )
    yield Mutant(
        "claims under repeatable read",
        a_claim_began_before_another_committed,
        lambda: Store(
            claim=mutate(["connection", "claim_sql", "claim"], ("READ COMMITTED", "REPEATABLE READ"))
        ),
    )
    yield Mutant(
        "a key is free when nothing of it is in processing",
        an_event_waits_for_its_retry,
        lambda: claim_of(NO_HEAD_RULE, *NO_CUT),
    )
    yield Mutant(
        "the head among those that wait is ignored",
        a_delayed_event_is_the_head,
        lambda: claim_of(
            (
                "{LATER} AND o.partition_bucket = {BUCKET}",
                "false AND {LATER} AND o.partition_bucket = {BUCKET}",
            )
        ),
    )
    yield Mutant(
        "every bucket is plain",
        a_delayed_event_is_the_head,
        lambda: claim_of(("{LATER} AND o.partition_bucket = x.b", "false AND {LATER}")),
    )
    yield Mutant(
        "a bucket stays plain once it was seen to be",
        an_event_that_waits_is_committed_between_the_two_statements,
        lambda: claim_of(("AND NOT EXISTS (SELECT FROM fresh x WHERE {LATER_IN_BUCKET})", "")),
    )
    yield Mutant(
        "what was tried before is taken as it lies",
        an_event_was_tried_before,
        lambda: claim_of(("o.attempts = 0 AND o.losses = 0", "true")),
    )
    yield Mutant(
        "what is not pending is taken as it lies",
        an_event_in_the_middle_is_held_by_hand,
        lambda: claim_of(("o.status = 'pending' AND o.available_at <= now() AND", "")),
    )
    yield Mutant(
        "a run goes on behind an event that is not due",
        a_delayed_event_stands_in_the_middle,
        lambda: claim_of(*NO_CUT),
    )
    yield Mutant(
        "a run of a plain bucket goes on behind an event that is not due",
        an_event_in_the_middle_is_held_by_hand,
        lambda: claim_of(
            ("bool_and(p.due AND", "(p.due AND"), ("%(losses_to)s) OVER lane", "%(losses_to)s)")
        ),
    )
    yield Mutant(
        "an event of a plain bucket that was tried before does not go alone",
        an_event_was_tried_before,
        lambda: claim_of(("e.tried = 0", "e.tried >= 0")),
    )
    yield Mutant(
        "keys in flight are told by their rows alone",
        a_run_is_in_flight_behind_late_rows,
        lambda: claim_of(NO_BUSY),
    )
    yield Mutant(
        "rows inside a key are taken with SKIP LOCKED",
        somebody_has_locked_the_head,
        lambda: claim_of(
            (
                "(SELECT o.ctid AS tid, o.id, {DUE} AS due",
                "(SELECT * FROM (SELECT o.ctid AS tid, o.id, {DUE} AS due",
            ),
            (RUN + " UNION ALL", RUN[:-1] + " FOR UPDATE SKIP LOCKED) s) UNION ALL"),
            ("LIMIT %(heads)s) p", "LIMIT %(heads)s FOR UPDATE SKIP LOCKED) p"),
            ("LIMIT %(heads)s) o", "LIMIT %(heads)s FOR UPDATE SKIP LOCKED) o"),
        ),
    )
    yield Mutant(
        "claims take over expired rows themselves",
        a_zombies_settle_commits_while_its_events_are_claimed,
        lambda: claim_of(
            (
                "FROM {leases} l CROSS JOIN",
                "FROM (SELECT * FROM {leases} WHERE expires_at > now()) l CROSS JOIN",
            ),
        ),
    )
    yield Mutant(
        "the fence is each row's own expiry",
        a_settle_straddles_the_expiry,
        lambda: settle_of(
            ("AND expires_at > clock_timestamp() RETURNING size", "RETURNING size"),
            (
                "\"(o.status = 'pending' OR o.status = 'processing' AND",
                '"(o.lease_expires_at > clock_timestamp() AND',
            ),
            NO_COUNT,
        ),
    )
    yield Mutant(
        "a settle without a fence",
        a_stale_worker_finds_another_lease_where_its_rows_were,
        lambda: settle_of(
            (
                FENCE,
                """SELECT cardinality(%(tids)s::tid[]) AS size, now() AS claimed_at
                WHERE %(generation)s > 0 AND %(worker)s <> ''""",
            )
        ),
    )
    yield Mutant(
        "a mark without a fence",
        a_stale_worker_marks_what_is_anothers,
        lambda: settle_of(
            (
                """WHERE generation = %(generation)s AND claimed_by = %(worker)s
                AND expires_at > clock_timestamp() FOR UPDATE""",
                "WHERE %(generation)s > 0 AND %(worker)s <> '' FOR UPDATE",
            )
        ),
    )
    yield Mutant(
        "a mark lets its lease be taken meanwhile",
        a_lease_is_lost_while_its_rows_are_marked,
        lambda: settle_of(
            ("AND expires_at > clock_timestamp() FOR UPDATE", "AND expires_at > clock_timestamp()")
        ),
    )
    yield Mutant(
        "the fence ignores the expiry",
        a_lease_has_expired_and_nobody_took_it_back,
        lambda: settle_of(("AND expires_at > clock_timestamp() RETURNING size", "RETURNING size")),
    )
    yield Mutant(
        "the fence ignores the generation",
        a_worker_has_two_leases,
        lambda: settle_of(
            ("WHERE generation = %(generation)s AND claimed_by", "WHERE claimed_by"),
            ("(SELECT size FROM lease)", "(SELECT min(size) FROM lease)"),
        ),
    )
    yield Mutant(
        "the fence ignores the worker",
        generations_were_handed_out_again_after_a_crash,
        lambda: settle_of(
            ("AND claimed_by = %(worker)s", "AND %(worker)s <> ''"),
            ("AND o.claimed_by = %(worker)s", ""),
        ),
    )
    yield Mutant(
        "a settle knows its rows by their place alone",
        events_of_a_lease_change_places,
        lambda: settle_of(("AND o.id IS NOT DISTINCT FROM act.id", "")),
    )
    yield Mutant(
        "the reaper waits for locked leases",
        a_lease_is_lost_while_another_is_being_settled,
        lambda: reap_of(("FOR UPDATE SKIP LOCKED", "FOR UPDATE")),
    )
    yield Mutant(
        "the reaper does not look at the status",
        an_event_was_parked_by_hand,
        lambda: reap_of(
            (
                "AND (o.status = 'pending' OR o.status = 'processing' AND o.lease_generation = f.generation)",
                "",
            ),
            (
                "**FRAGMENTS",
                "**{w: text.replace(\"o.status = 'pending'\", 'true') for w, text in FRAGMENTS.items()}",
            ),
        ),
    )
    yield Mutant(
        "events that lost a lease are claimed like any other",
        one_event_kills_every_worker_that_takes_it,
        lambda: claim_of(NO_CLASSES),
    )
    yield Mutant(
        "a lost lease is held against everybody in it",
        one_event_kills_every_worker_that_takes_it,
        lambda: Store(claim=claim_of(NO_CLASSES).claim, reap=reap_of(("f.size = 1", "f.size > 0")).reap),
    )
    yield Mutant(
        "held heads count as events taken",
        held_keys_come_first,
        lambda: claim_of(("LIMIT %(heads)s", "LIMIT %(rows)s")),
    )
    yield Mutant(
        "no cursor inside a bucket",
        more_keys_than_a_claim_takes_are_always_due,
        lambda: claim_of(("list(scan.keys.values())", '[""] * len(scan.keys)')),
    )


MUTANTS = list(mutants())
SCENARIOS = list(dict.fromkeys(mutant.scenario for mutant in MUTANTS))

pytestmark = pytest.mark.usefixtures("any_postgres")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_nothing_goes_wrong_when(stage: Stage, scenario: Scenario) -> None:
    assert stage.store is RIGHT
    assert scenario(stage) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "_"))
def test_a_mutant_is_caught(stage: Stage, mutant: Mutant) -> None:
    stage.store = mutant.make()
    assert mutant.scenario(stage) != []
