"""The printed roles: each party can do its part, and nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg import sql

from publishers.memory import MemoryPublisher
from relay.consumers.applying import Applying
from relay.consumers.message import Message, Raw
from relay.names import TableName, inbox_names, outbox_names
from relay.pause import ALL
from relay.reading import Count
from relay.replay import Replay
from relay.scan import Scan
from relay.settlement import Settlement
from relay.store import inspect, redrive, retention, steer
from relay.store import replay as store
from relay.store.claim import Claiming
from relay.store.connection import connect, resolve
from relay.store.gauges import Gauges
from relay.store.inbox import prune_inbox, require_inbox
from relay.store.look import Claim, Limits
from relay.store.migrate import migrate, require_current
from relay.store.reap import Reaping
from relay.store.restored import move_generations
from relay.store.roles import Role, role_name, roles_text
from relay.store.settle import Completion, Settling
from relay.store.wake import Alarm
from relay.store.workers import Registry
from tests.integration.operator_kit import last

# Roles belong to the whole server: one test at a time, under names that nobody else uses.
NAME = TableName("sales", "roles test")
ROLES: tuple[Role, ...] = ("writer", "relay", "operator", "reader", "consumer")


@pytest.fixture
def outbox(empty_database: str) -> Iterator[str]:
    """The URL of a database with an outbox and its roles."""
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA sales")
        conn.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
        migrate(conn, NAME)
        conn.execute(roles_text(NAME))
        conn.execute(roles_text(NAME))
        yield empty_database
        for role in ROLES:
            name = sql.Identifier(role_name(NAME, role))
            conn.execute(sql.SQL("DROP OWNED BY {}").format(name))
            conn.execute(sql.SQL("DROP ROLE {}").format(name))


def as_role(url: str, role: Role) -> psycopg.Connection[Any]:
    conn = connect(url)
    conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role_name(NAME, role))))
    return conn


INSERT = """INSERT INTO sales."roles test" (partition_key, event_type, payload) VALUES ('k', 'E', '{}')"""


def test_a_writer_may_insert_and_nothing_else(any_postgres: int, outbox: str) -> None:
    with as_role(outbox, "writer") as conn:
        conn.execute(INSERT)
        conn.execute(
            """INSERT INTO sales."roles test" (partition_key, event_type, payload, headers, destination,
               idempotency_key, available_at, max_attempts)
               VALUES ('k', 'E', '{}', '{"a": "b"}', 'topic', 'evt-1', now(), 3) ON CONFLICT DO NOTHING"""
        )
        for statement in (
            'SELECT id FROM sales."roles test"',
            """UPDATE sales."roles test" SET status = 'completed'""",
            'DELETE FROM sales."roles test"',
            'SELECT * FROM sales."roles test_wake"',
            'SELECT * FROM sales."roles test_archive"',
            """INSERT INTO sales."roles test" (partition_key, event_type, payload, status)
               VALUES ('k', 'E', '{}', 'pending')""",
            """INSERT INTO sales."roles test" (partition_key, event_type, payload, created_at)
               VALUES ('k', 'E', '{}', now())""",
            "SELECT * FROM sales.inbox_dedupe",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement)


@pytest.mark.parametrize("completion", ["keep", "delete", "archive"])
def test_the_relay_role_can_do_all_that_a_worker_does(
    any_postgres: int, outbox: str, completion: Completion
) -> None:
    with as_role(outbox, "writer") as writer:
        for _ in range(3):
            writer.execute(INSERT)
    with as_role(outbox, "relay") as conn:
        require_current(conn, NAME)
        table = resolve(conn, NAME)
        registry = Registry(table, 30)
        registry.register(conn, "w1", {"host": "here"})
        assert registry.heartbeat(conn, "w1")
        assert list(registry.living(conn)) == ["w1"]
        assert registry.keep_house(conn, "w1", 6)
        with psycopg.connect(outbox):  # a session of somebody else
            reading = Gauges(table).read(conn)
        assert reading is not None
        assert (reading.pending, reading.sees_all_sessions) == (Count(3), False)
        claiming = Claiming(table, "w1", "topic", 90)
        settling = Settling(table, "w1", completion)
        first = take(claiming, conn, 1)
        settling.settle(conn, first, [Settlement("complete", receipt="topic[0]@0")])
        second = take(claiming, conn, 1)
        settling.settle(conn, second, [Settlement("dead_letter", error="refused")])
        take(claiming, conn, 1)
        assert registry.bury(conn) == []
        assert Reaping(table, "dead_letter").reap(conn, ["w1"]).events == 1
        alarm = Alarm(table)
        alarm.listen(conn)
        assert alarm.arm(conn)
        registry.deregister(conn, "w1")
        assert registry.living(conn) == {}


def take(claiming: Claiming, conn: psycopg.Connection[Any], rows: int) -> Claim:
    """The next claim; looks as often as the scan needs for its lap."""
    scan, until = Scan(), monotonic() + 30
    while monotonic() < until:
        claim = claiming.claim(conn, scan, Limits(rows, 1_000_000)).claim
        if claim is not None:
            return claim
    raise AssertionError("nothing to claim")


def test_the_relay_role_can_neither_write_events_nor_change_what_they_say(outbox: str) -> None:
    with as_role(outbox, "relay") as conn:
        for statement in (
            INSERT,
            """UPDATE sales."roles test" SET payload = '{}'""",
            """UPDATE sales."roles test" SET partition_key = 'other'""",
            'TRUNCATE sales."roles test"',
            "INSERT INTO sales.inbox_dedupe (consumer, event_id) VALUES ('c', 'e')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement)


def test_an_operator_can_do_all_that_the_commands_do(any_postgres: int, outbox: str) -> None:
    with as_role(outbox, "writer") as writer:
        for key in ("dead", "held", "done", "late"):
            writer.execute(INSERT.replace("'k'", f"'{key}'"))
    with as_role(outbox, "relay") as conn:
        table = resolve(conn, NAME)
        claim = take(Claiming(table, "w1", "topic", 90), conn, 3)
        acts = {"dead": "dead_letter", "held": "block", "done": "complete", "late": "complete"}
        settlements = [Settlement(acts[event.key]) for event in claim.events]  # type: ignore[arg-type]
        Settling(table, "w1", "keep").settle(conn, claim, settlements)
    with as_role(outbox, "operator") as conn:
        require_current(conn, NAME)
        table = resolve(conn, NAME)
        assert inspect.status(conn, table)["counts"]
        parked = redrive.preview(conn, table, "retry", redrive.Filter()).events
        assert last(redrive.retry(conn, table, redrive.Filter(), actor="ann")).changed == parked > 0
        waiting = redrive.preview(conn, table, "skip", redrive.Filter()).events
        skipped = redrive.skip(conn, table, redrive.Filter(), actor="ann", reason="x")
        assert last(skipped).changed == waiting > 0
        steer.pause(conn, table, ALL, actor="ann")
        assert steer.lift(conn, table, ALL, origin="operator", actor="ann")
        memory = MemoryPublisher()
        begun = store.begin(conn, table, "ann", "r-1", store.Selection())
        assert store.alone(conn, table, "r-1")
        record = store.Record(begun, "started", None, store.Tally())
        words: dict[str, Any] = {"destination": "topic", "publish_seconds": 10.0, "rate": None}
        replaying = Replay(conn, table, memory, "r-1", record, actor="ann", **words)
        assert [step.published for step in replaying.run()] == [len(memory.delivered)]
        assert store.recall(conn, table, "r-1") is not None
        kinds: tuple[retention.Kind, ...] = ("completed", "archived", "dead_letter")
        cutoffs = {kind: retention.cutoff(conn, timedelta()) for kind in kinds}
        assert sum(count.value for count in retention.preview(conn, table, cutoffs).values()) > 0
        assert list(retention.prune(conn, table, cutoffs, actor="ann"))
        move_generations(conn, table, actor="ann", dry_run=False)
        for statement in (
            INSERT,
            """UPDATE sales."roles test" SET payload = '{}'""",
            """UPDATE sales."roles test" SET headers = '{}'""",
            """UPDATE sales."roles test_audit" SET actor = 'bob'""",
            'DELETE FROM sales."roles test_audit"',
            'DELETE FROM sales."roles test_leases"',
            'TRUNCATE sales."roles test"',
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement)


# Every right of each role: of the whole relation, or of one column. On what is not named it has none.
SEE, ALL_ROWS = {"SELECT"}, {"SELECT", "INSERT", "UPDATE", "DELETE"}
LOOK = dict.fromkeys(("archive", "leases", "workers", "pauses", "audit", "versions"), SEE)
LOOK |= {"outbox": SEE} | dict.fromkeys(("inbox", "replays", "fences", "dead_letters", "inbox_versions"), SEE)
GENERATION = {"generation": {"USAGE", "UPDATE"}}
SETTLED = "status attempts losses available_at claimed_by lease_expires_at completed_at parked_at last_error"
WRITTEN = "partition_key event_type payload headers destination idempotency_key available_at max_attempts"
RIGHTS: dict[Role, dict[str, set[str]]] = {
    "writer": {"outbox": {f"INSERT {column}" for column in WRITTEN.split()}},
    "relay": {
        "outbox": {"SELECT", "DELETE"}
        | {f"UPDATE {column}" for column in f"{SETTLED} claimed_at lease_generation receipt".split()},
        "leases": ALL_ROWS,
        "workers": ALL_ROWS,
        "pauses": ALL_ROWS,
        "archive": {"SELECT", "INSERT", "DELETE"},
        "wake": {"SELECT", "UPDATE"},
        "versions": SEE,
        "inbox_versions": SEE,
        "inbox": {"SELECT", "DELETE"},
        "replays": {"SELECT", "DELETE"},
        "fences": {"SELECT", "DELETE"},
        "dead_letters": {"SELECT", "UPDATE", "DELETE"},
    }
    | GENERATION,
    "operator": LOOK
    | {
        "outbox": {"SELECT", "DELETE"} | {f"UPDATE {column}" for column in f"{SETTLED} redriven_at".split()},
        "archive": {"SELECT", "DELETE"},
        "pauses": ALL_ROWS,
        "audit": {"SELECT", "INSERT"},
        "wake": {"SELECT", "UPDATE"},
        "inbox": {"SELECT", "DELETE"},
        "replays": {"SELECT", "DELETE"},
        "fences": {"SELECT", "DELETE"},
        "dead_letters": {"SELECT", "UPDATE", "DELETE"},
    }
    | GENERATION,
    "reader": LOOK,
    "consumer": {
        "inbox": {"SELECT", "INSERT", "DELETE"},
        "replays": {"SELECT", "INSERT", "DELETE"},
        "fences": ALL_ROWS,
        "dead_letters": ALL_ROWS,
    },
}
GIVEN = """
SELECT c.relname, a.privilege_type FROM pg_class c CROSS JOIN aclexplode(c.relacl) a
WHERE c.relnamespace = 'sales'::regnamespace AND a.grantee = %(role)s::regrole
UNION ALL
SELECT c.relname, a.privilege_type || ' ' || t.attname
FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid CROSS JOIN aclexplode(t.attacl) a
WHERE c.relnamespace = 'sales'::regnamespace AND a.grantee = %(role)s::regrole
"""


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_these_rights_and_no_others(outbox: str, role: Role) -> None:
    words = {parts[-1]: word for word, parts in outbox_names(NAME).items()}
    inbox = inbox_names(TableName("sales", "inbox_dedupe"))
    words |= {parts[-1]: "inbox_versions" if word == "versions" else word for word, parts in inbox.items()}
    found: dict[str, set[str]] = {}
    with psycopg.connect(outbox) as conn:
        quoted = sql.Identifier(role_name(NAME, role)).as_string(conn)
        for relation, right in conn.execute(GIVEN, {"role": quoted}):
            found.setdefault(words[relation], set()).add(right)
        everybodys = conn.execute(GIVEN.replace("%(role)s::regrole", "0")).fetchall()
        member_of = conn.execute(
            "SELECT count(*) FROM pg_auth_members WHERE member = %s::regrole", [quoted]
        ).fetchone()
    assert found == RIGHTS[role]
    assert everybodys == []
    assert member_of == (0,)


def test_a_reader_looks_and_changes_nothing(outbox: str) -> None:
    with as_role(outbox, "reader") as conn:
        for suffix in ("", "_archive", "_leases", "_workers", "_pauses", "_audit", "_versions"):
            conn.execute(sql.SQL("SELECT * FROM sales.{}").format(sql.Identifier(f"roles test{suffix}")))
        for statement in (INSERT, 'DELETE FROM sales."roles test"', 'DELETE FROM sales."roles test_leases"'):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement)


def test_a_consumer_does_all_that_consumers_do_and_sees_no_event(outbox: str) -> None:
    place = TableName("sales", "inbox_dedupe")
    message = Message("e-1", "E", "k", {}, {}, 1, 9, 1, None, None, "t[0]@1", b"{}")
    late = replace(message, event_id="e-0", lease_generation=5)
    seen: list[str] = []
    applying = Applying("c", lambda _, message: seen.append(message.event_id), place, fence=True)
    raw, copy, bad = (
        Raw(b"{}", {"event_id": event_id, "partition_key": "k"}, "t[0]@1")
        for event_id in ("e-1", "e-0", "e-2")
    )
    with as_role(outbox, "consumer") as conn:
        require_inbox(conn, place)
        assert applying.apply(conn, message, raw) == "apply"
        assert applying.apply(conn, message, raw) == "duplicate"
        assert applying.apply(conn, late, copy) == "stale"
        assert applying.apply(conn, replace(message, replay_id="r"), raw) == "apply"
        assert applying.park(conn, bad, "failed", "no", 5)
        conn.execute("UPDATE sales.inbox_dedupe_dead_letters SET retry_asked_at = now()")
        assert [applying.retry_one(conn) for _ in range(3)] == [True, True, False]
        assert seen == ["e-1", "e-1", "e-0", "e-2"]
        assert max(prune_inbox(conn, place, timedelta(), "c")) > 0
        for statement in ('SELECT * FROM sales."roles test"', 'SELECT * FROM sales."roles test_audit"'):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement)
