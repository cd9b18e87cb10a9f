"""The statements stay on their indexes whatever the statistics say, and cost what they take.

Plans are those of the statements that the store really runs, with their real parameters. Costs are pages
touched and rows read, never time.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg import ClientCursor, Connection, Cursor
from psycopg._queries import PostgresQuery, PostgresRawQuery
from psycopg.adapt import Transformer

from relay.scan import TAIL_BLOCKS, Scan, Tail
from relay.settlement import Settlement
from relay.store.claim_sql import LATER_ROWS_PER_CLAIM
from relay.store.look import Limits
from tests.conftest import _major_version, _new_database, _template, obtain
from tests.integration.store_kit import COMPLETE, RELEASE, Actor, Raw, Stage

pytestmark = [pytest.mark.server, pytest.mark.slow]

KEYS = 9_000
BLOCKED = "!blocked"  # sorts before the other keys of its bucket
LANES = {"outbox_fresh", "outbox_later", "outbox_due"}

TEXT_OID = 25

Plan = dict[str, Any]


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def outbox_scans(plan: Plan) -> Iterator[Plan]:
    for node in nodes(plan):
        if node.get("Relation Name") == "outbox" and node["Node Type"] != "ModifyTable":
            yield node


@dataclass
class Explained:
    query: str
    plan: Plan

    @property
    def access(self) -> set[str]:
        """How the outbox is read: an index's name, or the type of a scan without one."""
        return {str(node.get("Index Name", node["Node Type"])) for node in outbox_scans(self.plan)}

    @property
    def pages(self) -> int:
        return int(self.plan["Shared Hit Blocks"] + self.plan["Shared Read Blocks"])

    @property
    def rows_by_index(self) -> int:
        """Rows that index scans on the outbox returned or threw away."""
        return sum(
            round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
            for node in outbox_scans(self.plan)
            if "Index Name" in node
        )


class Explainer:
    """Explains every statement of an actor before it runs; `analyze`: by running it in vain."""

    def __init__(self, actor: Actor, analyze: bool = False) -> None:
        self.seen: list[Explained] = []
        self._options = "ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON" if analyze else "FORMAT JSON"
        self._analyze = analyze
        actor.gate.aside = self._explain
        actor.claiming.stepwise = True

    def _explain(self, conn: Connection[Any], query: str, parameters: Any) -> None:
        if "outbox" not in query:
            return
        with ClientCursor(conn) as cursor, conn.transaction(force_rollback=True):
            names, values = _prepare(conn, query, parameters)
            cursor.execute(f"EXPLAIN ({self._options}) EXECUTE explained{names}", values)
            row = cursor.fetchone()
            conn.execute("DEALLOCATE explained")
        assert row is not None
        plans = row[0] if isinstance(row[0], list) else json.loads(row[0])
        self.seen.append(Explained(query, plans[0]["Plan"]))


def _prepare(conn: Connection[Any], query: str, parameters: Any) -> tuple[str, list[Any]]:
    """Prepare the statement as the driver does, so that what is explained is the plan that it will reuse."""
    raw = isinstance(parameters, list) and "$1" in query
    converted = (PostgresRawQuery if raw else PostgresQuery)(Transformer(conn))
    converted.convert(query, parameters)
    text = converted.query.decode()
    if not parameters:
        conn.execute(f"PREPARE explained AS {text}")
        return "", []
    values = parameters if raw or not converted._order else [parameters[name] for name in converted._order]
    with Cursor(conn) as cursor:
        types = [
            cursor.execute("SELECT format_type(%s, NULL)", [oid or TEXT_OID]).fetchone()
            for oid in converted.types
        ]
        cursor.execute(f"PREPARE explained ({', '.join(name for (name,) in filter(None, types))}) AS {text}")
    return f"({', '.join(['%s'] * len(types))})", list(values)


def server(version: int) -> str:
    configured = os.environ.get("RELAY_TEST_DATABASE_URL")
    if configured and _major_version(configured) == version:
        return configured
    url: str = obtain(f"postgres{version}")["url"]
    return url


@pytest.fixture(scope="module", params=[15, 18], ids="postgres{}".format)
def large(request: pytest.FixtureRequest) -> Iterator["Large"]:
    """A million events: completed ones, many keys, one key with 200,000, many that wait for their retry.

    On PostgreSQL 15 a third as many: the plans are the same, and the time is better spent elsewhere.
    """
    url = server(request.param)
    databases = _new_database(url, _template(url))
    stage = Stage(next(databases))
    try:
        yield Large(stage, share=1.0 if request.param == 18 else 0.3)
    finally:
        stage.close()
        next(databases, None)


class Large:
    def __init__(self, stage: Stage, share: float = 1.0) -> None:
        self.stage = stage
        self._share = share
        stage.sql.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)")
        self._fill("done", f"'key-' || i % {KEYS}", 500_000, "completed", completed_at="now()")
        self._fill("plain", f"'key-' || i % {KEYS}", 200_000, "pending")
        self.easy = self.claim_pages(easy=True)
        self.plain = self.claim_pages()
        self._fill("head", f"'{BLOCKED}'", 1, "failed", parked_at="now()", available_at="'infinity'")
        self._fill("behind", f"'{BLOCKED}'", 200_000, "pending")
        self.with_a_blocked_key = self.claim_pages()
        self._fill(
            "waiting", "'waiting-' || i", 100_000, "pending", attempts="1", available_at="now() + '1 hour'"
        )
        self.with_many_waiting = self.claim_pages()
        self.with_a_hot_key = self.claim_hot_key()

    def _fill(self, name: str, key: str, n: int, status: str, **more: str) -> None:
        columns = {"partition_key": key, "event_type": "'Tested'", "payload": "'{}'", "status": f"'{status}'"}
        columns |= {"idempotency_key": f"'{name}-' || i"} | more
        n = max(round(n * self._share), 1)
        self.stage.sql.execute(
            f"INSERT INTO outbox ({', '.join(columns)})"
            f" SELECT {', '.join(columns.values())} FROM generate_series(1, {n}) i"
        )

    def claim_pages(self, rows: int = 1000, *, easy: bool = False) -> list[Explained]:
        """A claim that begins in the bucket of the key that will be blocked; not easy: as if it were."""
        actor = self.stage.actor(marks=False)
        if not easy:
            actor.claiming._plain = False
        explainer = Explainer(actor, analyze=True)
        bucket = self.stage.value("SELECT hashtextextended(%s, 0) & 1023", BLOCKED)
        claim = actor.look(rows, scan=Scan(start=bucket)).claim
        assert claim is not None
        assert len(claim.events) >= rows - 1, "a held head counts among those it may look at"
        actor.gate.aside = None
        actor.settle(claim, "release")
        actor.close()
        *first, lock, take = explainer.seen
        assert all(each.rows_by_index <= 130 for each in first), (
            "it finds out at little cost that others wait"
        )
        return [lock, take]

    def claim_hot_key(self) -> list[Explained]:
        """A claim that begins with the key that has 200,000 events, once it is free."""
        change = "UPDATE outbox SET status = %s, completed_at = %s WHERE idempotency_key = 'head-1'"
        self.stage.sql.execute(change, ["dead_letter", "now"])
        explained = self.claim_pages()
        self.stage.sql.execute(change, ["failed", None])
        return explained


def statistics_never(conn: Connection[Any]) -> None:
    forget(conn, -1, 0)


def statistics_of_twenty_rows(conn: Connection[Any]) -> None:
    forget(conn, 20, 1)


def statistics_up_to_date(conn: Connection[Any]) -> None:
    conn.execute("ANALYZE outbox")


def forget(conn: Connection[Any], rows: int, pages: int) -> None:
    """Make the planner believe that this is what the last ANALYZE saw."""
    with conn.transaction():
        conn.execute("SET LOCAL allow_system_table_mods = on")
        conn.execute("DELETE FROM pg_statistic WHERE starelid = 'outbox'::regclass")
        conn.execute(
            "UPDATE pg_class SET reltuples = %s, relpages = %s, relallvisible = 0"
            " WHERE oid = 'outbox'::regclass"
            " OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'outbox'::regclass)",
            [rows, pages],
        )


STATISTICS = [statistics_never, statistics_of_twenty_rows, statistics_up_to_date]
MIX = [COMPLETE, Settlement("retry", "x", 60.0), RELEASE, Settlement("block", "x")]


def explain_everything(stage: Stage) -> None:
    """Run every statement once and check where it reads the outbox."""
    for completion in ("keep", "delete", "archive"):
        for acts in (lambda n: [COMPLETE] * n, lambda n: (MIX * n)[:n]):
            actor = stage.actor(completion=completion)
            explain_claim_and_settle(actor, acts)
            actor.close()
    explain_locate_and_reap(stage)


def explain_claim_and_settle(actor: Actor, acts: Callable[[int], list[Settlement]]) -> None:
    explainer = Explainer(actor)
    actor.marks = False
    claim = actor.claim(rows=40)
    *locks, take = explainer.seen if claim else [*explainer.seen, None]
    # Two where the first finds that something waits or is held.
    assert 1 <= len(locks) <= 2
    assert all(lock.access <= LANES for lock in locks if lock)
    if claim is None or take is None:
        return
    assert take.access <= LANES | {"Tid Scan"}
    explainer.seen.clear()
    claim = actor.settling.mark(actor.conn, claim)
    actor.settle(claim, acts(len(claim.events)))
    mark, settle = explainer.seen
    assert mark.access == settle.access == {"Tid Scan"}


def explain_locate_and_reap(stage: Stage) -> None:
    actor = stage.actor()
    explainer = Explainer(actor)
    if claim := actor.claim(rows=40):
        stage.sql.execute("UPDATE outbox SET headers = '{}' WHERE ctid = ANY(%s::tid[])", [claim.tids])
        explainer.seen.clear()
        actor.settle(claim, "release")
        _, locate, settle = explainer.seen
        assert locate.access <= LANES
        assert settle.access == {"Tid Scan"}
    actor.claim(rows=40)
    explainer.seen.clear()
    actor.reap(gone=[actor.name])
    *_, reap = explainer.seen
    assert reap.access <= LANES | {"Tid Scan"}
    actor.close()


@pytest.mark.parametrize("statistics", STATISTICS, ids=lambda f: f.__name__)
def test_on_a_million_rows_every_statement_stays_on_its_index(
    large: Large, statistics: Callable[[Connection[Any]], None]
) -> None:
    statistics(large.stage.sql)
    explain_everything(large.stage)


def test_around_pauses_a_claim_stays_on_its_index(large: Large) -> None:
    sql = large.stage.sql
    sql.execute(
        "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by)"
        " VALUES ('event_type', 'Other', 'operator', '', ''), ('key', 'key-7', 'operator', '', '')"
    )
    try:
        for statistics in STATISTICS:
            statistics(sql)
            explain_everything(large.stage)
    finally:
        sql.execute("DELETE FROM outbox_pauses")


@pytest.mark.usefixtures("any_postgres")
@pytest.mark.parametrize("statistics", STATISTICS, ids=lambda f: f.__name__)
def test_on_an_empty_and_on_a_small_table_every_statement_stays_on_its_index(
    stage: Stage, statistics: Callable[[Connection[Any]], None]
) -> None:
    statistics(stage.sql)
    explain_everything(stage)
    for key in "abc":
        stage.insert(key, 200)
    statistics(stage.sql)
    explain_everything(stage)


def test_a_blocked_key_with_200_000_events_costs_the_others_a_few_pages(large: Large) -> None:
    for plain, blocked in zip(large.plain, large.with_a_blocked_key, strict=True):
        assert blocked.pages <= plain.pages * 1.5 + 20


def test_100_000_keys_that_wait_for_their_retry_cost_the_others_a_few_pages(large: Large) -> None:
    """Where something waits each key costs a probe, in an index that is deeper now."""
    for before, waiting in zip(large.with_a_blocked_key, large.with_many_waiting, strict=True):
        assert waiting.pages <= before.pages * 2 + 20


def test_half_of_all_events_in_one_key_cost_what_is_taken(large: Large) -> None:
    _, take = large.with_a_hot_key
    assert 1000 <= take.rows_by_index <= 1100


def test_a_claim_of_what_is_easy_touches_a_row_once(large: Large) -> None:
    lock, take = large.easy
    assert lock.rows_by_index <= 64
    assert 1000 <= take.rows_by_index <= 1010
    assert take.pages <= 1300


def test_a_claim_reads_about_as_many_rows_as_it_takes(large: Large) -> None:
    lock, take = large.plain
    assert lock.rows_by_index <= 64
    assert take.rows_by_index <= 1000 + 1000 * KEYS / 60_000 * 2, "those it takes, and two for each key"


def test_a_small_claim_does_not_read_a_large_backlog(large: Large) -> None:
    actor = large.stage.actor()
    explainer = Explainer(actor, analyze=True)
    look = actor.claiming.claim(actor.conn, Scan(), Limits(10, 1 << 24))
    assert look.claim is not None
    assert len(look.claim.events) == 10
    actor.gate.aside = None
    actor.settle(look.claim, "release")
    assert explainer.seen[1].rows_by_index <= 2000


def test_any_number_of_others_events_that_waited_cost_a_claim_no_more_than_a_window(stage: Stage) -> None:
    stage.insert("", 5_000, partition_key=Raw("'key-' || i"), available_at=Raw("now() + interval '1 us'"))
    actor = stage.actor()
    actor.claiming.watch([0])
    explainer = Explainer(actor, analyze=True)
    actor.claim()
    assert explainer.seen[0].rows_by_index <= LATER_ROWS_PER_CLAIM + 64


@pytest.mark.usefixtures("any_postgres")
def test_a_claim_unpacks_only_the_large_payloads_that_could_fit(stage: Stage) -> None:
    """Each lies compressed in pages of its own: what is unpacked is read."""
    payload = Raw("(SELECT jsonb_agg(md5((i * 9 + s / 4)::text)) FROM generate_series(1, 2000) s)")
    stage.insert("a", 300, payload=payload)
    stored, real = stage.sql.execute(
        "SELECT avg(pg_column_size(payload))::int, avg(octet_length(payload::text))::int FROM outbox"
    ).fetchone() or (0, 0)
    assert 8000 < stored < real / 2, "the payloads are packed"
    actor = stage.actor()
    explainer = Explainer(actor, analyze=True)
    claim = actor.must_claim(rows=300, size=2 * real + 1)
    assert len(claim.events) == 3
    assert explainer.seen[1].pages < 300 * stored / 8192 / 2


@pytest.mark.usefixtures("any_postgres")
def test_events_that_are_gone_but_not_forgotten_cost_a_claim_at_the_end_of_the_table_nothing(
    stage: Stage,
) -> None:
    """Somebody holds a transaction open: what was deleted stays in the index, and every lap passes it."""
    actor = stage.actor(completion="delete")
    holder = stage.session()
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT FROM outbox")
    for _ in range(4):
        stage.insert("", 5_000, partition_key=Raw("'key-' || i"))
        while claim := actor.claim(rows=5_000):
            actor.settle(claim)
    ids = stage.insert("", 5, partition_key=Raw("'key-' || i"))
    tail = Tail()
    actor.claiming.claim_tail(actor.conn, tail, Limits(1, 1 << 24))
    explainer = Explainer(actor, analyze=True)
    look = actor.claiming.claim_tail(actor.conn, tail, Limits(100, 1 << 24))
    lock, take = explainer.seen
    assert look.claim is not None
    assert [event.position for event in look.claim.events] == ids[1:]
    assert lock.access == {"Tid Range Scan"}
    assert lock.pages <= TAIL_BLOCKS + 100
    assert take.rows_by_index <= 20
    assert take.pages <= 300
