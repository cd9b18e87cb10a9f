"""Actors and failpoints for tests of the store.

An Actor is the database side of one worker: a connection of its own and the claim, settle and reap
statements. Its connection has a gate: a test can stop it before a statement and let it go on later, so
that two transactions meet exactly where the test wants them to. Nothing here waits for time to pass.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import psycopg
from psycopg import Connection, Cursor, RawCursor
from psycopg._cursor_base import BaseCursor

import relay.store.claim
import relay.store.reap
import relay.store.settle
from relay.names import TableName
from relay.scan import Scan
from relay.settlement import Act, Settlement
from relay.store.connection import Table, connect, resolve
from relay.store.look import Claim, Limits, Look
from relay.store.reap import Reaped

OUTBOX = TableName.parse("outbox")
PATIENCE = 30.0
LOST_ONCE = (1, 1)
LOST_MORE = (2, 1_000_000)
COMPLETE = Settlement("complete")
RELEASE = Settlement("release")


@dataclass(frozen=True)
class Store:
    """The modules under test: the real ones, or mutants of them."""

    claim: ModuleType = relay.store.claim
    settle: ModuleType = relay.store.settle
    reap: ModuleType = relay.store.reap


RIGHT = Store()


class Gate:
    """Sees every statement of a connection before the server does."""

    def __init__(self) -> None:
        self.before: Callable[[str], None] | None = None  # may stop it
        self.aside: Callable[[Connection[Any], str, Any], None] | None = (
            None  # may look at it, parameters and all
        )


class Gated(BaseCursor[Any, Any]):
    def execute(self, query: Any, params: Any = None, **kwargs: Any) -> Any:
        gate: Gate | None = getattr(self.connection, "gate", None)
        if gate and gate.before:
            gate.before(str(query))
        if gate and gate.aside:
            gate.aside(self.connection, str(query), params)
        return super().execute(query, params, **kwargs)  # type: ignore[misc]


class GatedCursor(Gated, Cursor[Any]):
    pass


class GatedRawCursor(Gated, RawCursor[Any]):
    pass


class Actor:
    """One worker's side of the store."""

    def __init__(
        self,
        url: str,
        name: str = "worker-1",
        *,
        store: Store = RIGHT,
        completion: str = "keep",
        on_exhausted: str = "dead_letter",
        lease_seconds: float = 60.0,
        table: TableName = OUTBOX,
        stepwise: bool = False,
        marks: bool = True,
    ) -> None:
        """Marks: what it claims is written on the rows at once, for the test to see."""
        self.name = name
        self.marks = marks
        self.conn: Connection[Any] = connect(url, f"test {name}")
        self.gate = Gate()
        self.conn.gate = self.gate  # type: ignore[attr-defined]
        self.conn.cursor_factory = GatedCursor
        self.conn.raw_cursor_factory = GatedRawCursor  # type: ignore[attr-defined]
        self.table: Table = resolve(self.conn, table)
        self.scan = Scan()
        self.claiming = store.claim.Claiming(self.table, name, "events", lease_seconds, stepwise=stepwise)
        self.settling = store.settle.Settling(self.table, name, completion)
        self.reaping = store.reap.Reaping(self.table, on_exhausted)

    def look(
        self, rows: int = 100, size: int = 1 << 24, losses: tuple[int, int] = (0, 0), scan: Scan | None = None
    ) -> Look:
        look: Look = self.claiming.claim(
            self.conn, self.scan if scan is None else scan, Limits(rows, size, losses)
        )
        if look.claim and self.marks:
            look = replace(look, claim=self.settling.mark(self.conn, look.claim))
        return look

    def claim(self, rows: int = 100, size: int = 1 << 24, losses: tuple[int, int] = (0, 0)) -> Claim | None:
        return self.look(rows, size, losses).claim

    def must_claim(self, rows: int = 100, size: int = 1 << 24, losses: tuple[int, int] = (0, 0)) -> Claim:
        claim = self.claim(rows, size, losses)
        assert claim is not None, "nothing was claimed"
        return claim

    def settle(self, claim: Claim, acts: Act | Settlement | Sequence[Act | Settlement] = "complete") -> None:
        """Settle all events alike, or each with its own act."""
        each = [acts] * len(claim.events) if isinstance(acts, str | Settlement) else list(acts)
        self.settling.settle(
            self.conn, claim, [act if isinstance(act, Settlement) else Settlement(act) for act in each]
        )

    def reap(self, gone: Iterable[str] = ()) -> Reaped:
        reaped: Reaped = self.reaping.reap(self.conn, list(gone))
        return reaped

    def pid(self) -> int:
        return self.conn.info.backend_pid

    def close(self) -> None:
        self.conn.close()


class Stage:
    """A database and everybody on it; closes them all at the end."""

    def __init__(self, url: str, store: Store = RIGHT) -> None:
        self.url = url
        self.store = store
        self._open: list[Connection[Any]] = []
        self.sql = self.session()

    def session(self) -> Connection[Any]:
        """A plain connection in autocommit mode: a writer, an operator, an onlooker."""
        conn = psycopg.connect(self.url, autocommit=True)
        self._open.append(conn)
        return conn

    def actor(self, name: str = "worker-1", **options: Any) -> Actor:
        actor = Actor(self.url, name, store=self.store, **options)
        self._open.append(actor.conn)
        return actor

    def insert(self, key: str, n: int = 1, conn: Connection[Any] | None = None, **columns: Any) -> list[int]:
        """Insert n events of a key; the ids, ascending. Values may be SQL by `Raw`."""
        return insert(conn or self.sql, key, n, **columns)

    def rows(self) -> list[dict[str, Any]]:
        return rows(self.sql)

    def row(self, position: int) -> dict[str, Any]:
        return next(row for row in self.rows() if row["id"] == position)

    def statuses(self, key: str | None = None) -> list[tuple[int, str]]:
        return [(row["id"], row["status"]) for row in self.rows() if key in (None, row["partition_key"])]

    def leases(self) -> list[dict[str, Any]]:
        with self.sql.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute("SELECT * FROM outbox_leases ORDER BY generation").fetchall()

    def everything(self) -> tuple[Any, ...]:
        """The outbox, its leases and its archive as they are, to compare."""
        archive = self.sql.execute("SELECT * FROM outbox_archive ORDER BY id").fetchall()
        return self.rows(), self.leases(), archive

    def value(self, query: str, *parameters: Any) -> Any:
        row = self.sql.execute(query, parameters).fetchone()
        assert row is not None
        return row[0]

    def expire(self, claim: Claim) -> None:
        """Let a lease run out now."""
        self.sql.execute(
            "UPDATE outbox_leases SET expires_at = clock_timestamp() - interval '1 second'"
            " WHERE generation = %s",
            [claim.generation],
        )

    def all_due(self) -> None:
        """As if everybody had waited long enough."""
        self.sql.execute(
            "UPDATE outbox SET available_at = clock_timestamp()"
            " WHERE status = 'pending' AND available_at > clock_timestamp()"
        )

    def vacuum(self, *options: str) -> None:
        self.sql.execute(f"VACUUM ({', '.join(options)}) outbox" if options else "VACUUM outbox")

    def in_background(self, actor: Connection[Any] | Actor, work: Callable[[], Any]) -> "Background":
        """Run `work` on the actor's connection in a thread, until it ends or waits for a lock."""
        conn = actor.conn if isinstance(actor, Actor) else actor
        background = Background(work)
        background.start()
        wait_until(
            lambda: background.finished() or is_waiting(self.sql, conn.info.backend_pid),
            "the work ends or waits for a lock",
        )
        return background

    @contextmanager
    def uncommitted_claim(self, actor: Actor, rows: int = 100) -> Iterator["Background"]:
        """The actor's claim, held before its COMMIT until the block ends."""
        with held(actor, "COMMIT", lambda: actor.claim(rows)) as background:
            yield background

    def close(self) -> None:
        for conn in self._open:
            conn.close()


@dataclass(frozen=True)
class Raw:
    """SQL, not a value."""

    text: str


def insert(conn: Connection[Any], key: str, n: int = 1, **columns: Any) -> list[int]:
    values = {"partition_key": key, "event_type": "Tested", "payload": '{"n": 1}'} | columns
    marks = ", ".join(value.text if isinstance(value, Raw) else "%s" for value in values.values())
    ids = conn.execute(
        f"INSERT INTO outbox ({', '.join(values)}) SELECT {marks} FROM generate_series(1, {n}) i"
        " RETURNING id",
        [value for value in values.values() if not isinstance(value, Raw)],
    ).fetchall()
    return [row[0] for row in ids]


def rows(conn: Connection[Any]) -> list[dict[str, Any]]:
    """The outbox in id order, as JSON has it: that knows infinity."""
    found = conn.execute("SELECT ctid::text, to_jsonb(o) FROM outbox o ORDER BY id")
    return [row | {"ctid": ctid} for ctid, row in found]


def positions(claim: Claim | None) -> list[int]:
    return [event.position for event in claim.events] if claim else []


class Background(threading.Thread):
    """Work in another thread whose result or exception is kept."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._result: Any = None
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as failure:  # noqa: BLE001 - handed to result()
            self._failure = failure

    def finished(self) -> bool:
        return not self.is_alive()

    def result(self) -> Any:
        self.join(PATIENCE)
        assert not self.is_alive(), "the work did not end"
        if self._failure is not None:
            raise self._failure
        return self._result


@contextmanager
def held(actor: Actor, word: str, work: Callable[[], Any]) -> Iterator[Background]:
    """Run `work` in a thread, hold it before the first statement that begins with `word`, go on at the end.

    Yields also where the work ended without reaching that statement. Its claims go statement by statement.
    """
    actor.claiming.stepwise = True
    reached, go_on = threading.Event(), threading.Event()

    def before(query: str) -> None:
        if query.lstrip().startswith(word) and not reached.is_set():
            reached.set()
            assert go_on.wait(PATIENCE), "nobody let the actor go on"

    actor.gate.before = before
    background = Background(work)
    background.start()
    try:
        wait_until(lambda: reached.is_set() or background.finished(), f"the actor comes to {word}")
        yield background
    finally:
        go_on.set()
        background.join(PATIENCE)
        actor.gate.before = None


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain until {what}"
        time.sleep(0.005)


def is_waiting(conn: Connection[Any], pid: int) -> bool:
    """Whether the backend waits for a lock that somebody else holds."""
    row = conn.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid]).fetchone()
    return bool(row and row[0])


def publish_with_poison(stage: Stage, worker: Actor, poison: int, crashes: int) -> int:
    """Claim as a worker does and die whenever the poison is in the claim; how often that was.

    Until the outbox is empty, but no more than so many crashes.
    """
    crashed = 0

    def publish(look: Look) -> Look:
        nonlocal crashed
        if look.claim and poison in positions(look.claim):
            crashed += 1
            worker.reap(gone=[worker.name])
        elif look.claim:
            worker.settle(look.claim)
        return look

    ordinary = Limits(1000, 1 << 24)
    while crashed < crashes and stage.value("SELECT count(*) FROM outbox WHERE completed_at IS NULL"):
        stage.all_due()
        look = publish(worker.claiming.claim(worker.conn, worker.scan, ordinary))
        if look.lost_once:
            publish(worker.claiming.claim(worker.conn, Scan(), ordinary.suspects(16, LOST_ONCE)))
        if look.lost_more:
            publish(worker.claiming.claim(worker.conn, Scan(), ordinary.suspects(1, LOST_MORE)))
    return crashed


def change_places(stage: Stage, worker: Actor) -> Claim:
    """A lease of the two events in the outbox, each of which lies where the claim left the other.

    CLUSTER sorts them by event id, which must be the other way round than their ids.
    """
    claims: list[Claim] = []

    def changed() -> bool:
        worker.settle(worker.must_claim(), Settlement("retry", "x", 0.0))
        stage.vacuum()
        claims.append(worker.must_claim())
        stage.sql.execute("CLUSTER outbox USING outbox_event_id")
        places = ",".join(f'"{row["ctid"]}"' for row in reversed(stage.rows()))
        if claims[-1].tids == "{" + places + "}":
            return True
        worker.settle(claims[-1], RELEASE)
        return False

    wait_until(changed, "the two rows change places")
    return claims[-1]


def overlapping_keys(conn: Connection[Any]) -> list[str]:
    """Keys with more than one live lease."""
    found = conn.execute(
        "SELECT k FROM outbox_leases l CROSS JOIN LATERAL unnest(l.keys) k GROUP BY k HAVING count(*) > 1"
    )
    return [row[0] for row in found]


def orphans(conn: Connection[Any]) -> list[int]:
    """Events in processing that no lease stands for: nobody would ever take them back."""
    found = conn.execute(
        "SELECT id FROM outbox o WHERE status = 'processing'"
        " AND NOT EXISTS (SELECT FROM outbox_leases l WHERE l.generation = o.lease_generation)"
    )
    return [row[0] for row in found]


def overtaken(conn: Connection[Any]) -> list[int]:
    """Events in flight in front of which an event of their key waits or is parked as failed."""
    found = conn.execute(
        "SELECT o.id FROM outbox_leases l JOIN outbox o ON o.id = ANY(l.ids) WHERE EXISTS ("
        "  SELECT FROM outbox p WHERE p.partition_key = o.partition_key AND p.id < o.id"
        "  AND (p.status = 'failed' OR p.completed_at IS NULL AND p.id <> ALL(l.ids)))"
    )
    return [row[0] for row in found]


def keys_of_bucket(bucket: int, n: int, conn: Connection[Any]) -> list[str]:
    """n keys that fall into one bucket, sorted as the lane index sorts them."""
    found = conn.execute(
        "SELECT k FROM (SELECT 'key-' || lpad(i::text, 9, '0') AS k FROM generate_series(1, %s) i) x"
        " WHERE (hashtextextended(k, 0) & 1023) = %s ORDER BY k LIMIT %s",
        [n * 1024 * 3 + 20_000, bucket, n],
    ).fetchall()
    assert len(found) == n
    return [row[0] for row in found]
