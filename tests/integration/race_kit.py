"""The participants of a race: relays, a writer and an operator, each a process of its own.

They share nothing but the database. The test kills and freezes relays as it likes. What they did is in
the tables that INSTRUMENTS makes; the checks read those and nothing else.
"""

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg import Connection

from relay.errors import LeaseLost, Overtaken
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed
from relay.scan import Tail
from relay.settlement import judge
from relay.store.floor import Floor
from relay.store.look import Claim, Limits
from relay.store.redrive import Filter, retry, skip
from tests.integration.operator_kit import last
from tests.integration.store_kit import LOST_MORE, LOST_ONCE, Actor, insert

KEYS = 20
LEASE_SECONDS = 1.5

# The table `held` has room for one lease per key: a second one fails where it would be made.
INSTRUMENTS = """
CREATE TABLE written (id bigint PRIMARY KEY, key text NOT NULL, kind text NOT NULL);
CREATE TABLE published (
  seq bigserial PRIMARY KEY, id bigint NOT NULL, key text NOT NULL, worker text NOT NULL);
CREATE TABLE left_lane (id bigint NOT NULL);
CREATE TABLE held (key text PRIMARY KEY, generation bigint NOT NULL);
CREATE TABLE happened (what text NOT NULL, n bigint NOT NULL);
CREATE TABLE gone (worker text PRIMARY KEY);

CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO written VALUES (NEW.id, NEW.partition_key, NEW.event_type);
  RETURN NULL;
END $$;
CREATE TRIGGER note_write AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION note_write();

CREATE FUNCTION note_parked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO left_lane VALUES (NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER note_parked AFTER UPDATE ON outbox FOR EACH ROW
  WHEN (NEW.status = 'dead_letter' AND OLD.status <> 'dead_letter') EXECUTE FUNCTION note_parked();

CREATE FUNCTION note_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO held SELECT k, NEW.generation FROM unnest(NEW.keys) k;
  ELSE
    DELETE FROM held WHERE generation = OLD.generation;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER note_lease AFTER INSERT OR DELETE ON outbox_leases FOR EACH ROW EXECUTE FUNCTION note_lease();
"""


@dataclass(frozen=True)
class Race:
    url: str
    completion: str
    on_exhausted: str
    calm: Path  # while this file does not exist, everything goes wrong now and then
    over: Path  # the race ends when this file exists


class Tally:
    """Counts in memory what happens, and writes it down now and then."""

    def __init__(self, conn: Connection[Any]) -> None:
        self._conn = conn
        self._counts: dict[str, int] = {}

    def add(self, what: str, n: int = 1) -> None:
        self._counts[what] = self._counts.get(what, 0) + n

    def write(self) -> None:
        for what, n in self._counts.items():
            self._conn.execute("INSERT INTO happened VALUES (%s, %s)", [what, n])
        self._counts.clear()


def relay(race: Race, name: str, seed: int) -> None:
    """Claim, publish, settle and reap, with every kind of trouble, until the race is over."""
    dice = random.Random(seed)
    worker = Actor(
        race.url,
        name,
        completion=race.completion,
        on_exhausted=race.on_exhausted,
        lease_seconds=LEASE_SECONDS,
        stepwise=dice.random() < 0.5,
    )
    broker = psycopg.connect(race.url, autocommit=True)
    _Relay(race, worker, broker, dice).run()


class _Relay:
    def __init__(self, race: Race, worker: Actor, broker: Connection[Any], dice: random.Random) -> None:
        self._race = race
        self._worker = worker
        self._broker = broker
        self._dice = dice
        self._tally = Tally(broker)
        self._limits = Limits(1, 1 << 24)
        self._tail = Tail()
        self._floor = Floor(worker.table)
        self._given = 0
        worker.gate.before = self._stall_before_commit

    def run(self) -> None:
        worker = self._worker
        while not self._race.over.exists():
            self._calm = self._race.calm.exists()
            if self._chance(0.15):
                self._reap()
            self._limits = Limits(self._dice.randint(1, 30), self._dice.choice([50, 1 << 24]))
            look = self._look(self._limits)
            if look and look.lost_once:
                self._look(self._limits.suspects(8, LOST_ONCE))
            if look and look.lost_more:
                self._look(self._limits.suspects(1, LOST_MORE))
            if look is None or look.claim is None:
                time.sleep(0.02)
            self._tally.write()
        worker.close()

    def _chance(self, probability: float) -> bool:
        return self._dice.random() < probability

    def _trouble(self, probability: float) -> bool:
        return not self._calm and self._chance(probability)

    def _stall_before_commit(self, query: str) -> None:
        if query == "COMMIT" and self._trouble(0.05):
            time.sleep(self._dice.random() * 0.2)

    def _look(self, limits: Limits) -> Any:
        worker = self._worker
        try:
            if self._trouble(0.4):  # as where a lap takes too long
                self._floor.rise(worker.conn, self._given)
                limits = replace(limits, floor=self._floor.value)
            if limits.floor is not None and limits.losses == (0, 0) and self._chance(0.5):
                look = worker.claiming.claim_tail(worker.conn, self._tail, limits)
            else:
                look = worker.claiming.claim(worker.conn, worker.scan, limits)
        except psycopg.errors.UniqueViolation:
            self._tally.add("overlap")
            return None
        if look.claim:
            self._given = look.claim.events[-1].position
            self._publish_and_settle(look.claim)
        return look

    def _publish_and_settle(self, claim: Claim) -> None:
        if self._chance(0.3):  # as where it lasts
            claim = self._worker.settling.mark(self._worker.conn, claim)
        outcomes = self._publish(claim)
        verdict = judge(claim.events, outcomes, self._race.on_exhausted)  # type: ignore[arg-type]
        settlements = [s._replace(delay=self._dice.random() * 0.2) for s in verdict.settlements]
        self._tally.add("retry", sum(s.act == "retry" for s in settlements))
        try:
            if self._trouble(0.1):  # the settle is there for others to meet before it commits, or fails to
                with self._worker.conn.transaction() as transaction:
                    self._worker.settle(claim, settlements)
                    time.sleep(self._dice.random() * 0.3)
                    if self._chance(0.3):
                        raise psycopg.Rollback(transaction)
            else:
                self._worker.settle(claim, settlements)
        except LeaseLost:
            self._tally.add("lease lost")
        except Overtaken:
            self._tally.add("overtaken")

    def _publish(self, claim: Claim) -> list[Outcome]:
        """In order; what follows an event that failed is not sent. Freezes now and then, beyond the lease."""
        outcomes: list[Outcome] = []
        stopped: set[str] = set()
        send: list[tuple[int, str, str]] = []
        for event in claim.events:
            record = (event.position, event.key, self._worker.name)
            if event.key in stopped:
                outcomes.append(Unconfirmed("behind one that failed"))
            elif self._trouble(0.03):
                stopped.add(event.key)
                if self._chance(0.5):  # taken by the broker, but the answer got lost
                    send.append(record)
                outcomes.append(Refused("refused") if self._chance(0.2) else Unconfirmed("no answer"))
            else:
                send.append(record)
                outcomes.append(Delivered())
        half = len(send) // 2
        for part in (send[:half], send[half:]):
            self._send(part)
            if self._trouble(0.02):
                time.sleep(LEASE_SECONDS * self._dice.random() * 2)
        return outcomes

    def _send(self, records: list[tuple[int, str, str]]) -> None:
        self._broker.execute(
            "INSERT INTO published (id, key, worker)"
            " SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[])",
            [[record[n] for record in records] for n in range(3)],
        )

    def _reap(self) -> None:
        gone = [row[0] for row in self._broker.execute("SELECT worker FROM gone")]
        if self._trouble(0.3):  # somebody who is alive is taken for dead
            gone += [row[0] for row in self._broker.execute("SELECT claimed_by FROM outbox_leases LIMIT 1")]
        reaped = self._worker.reap(gone)
        self._tally.add("reaped", reaped.events)
        if reaped.events != reaped.expected:
            self._tally.add("overtaken")


def writer(race: Race, name: str, seed: int) -> None:
    """Insert events in order of their ids, beside transactions that commit late or never."""
    dice = random.Random(seed)
    conn = psycopg.connect(race.url, autocommit=True)
    late = psycopg.connect(race.url)
    open_until = 0.0
    while not race.calm.exists():
        for _ in range(5):
            kind = dice.choices(["plain", "delayed"], [9, 1])[0]
            delay = dice.random() * 0.3 if kind == "delayed" else 0.0
            key = f"key-{dice.randrange(KEYS)}"
            conn.execute(
                "INSERT INTO outbox (partition_key, event_type, payload, available_at, max_attempts)"
                " SELECT %s, %s, '{}', now() + %s * interval '1 s', 3 FROM generate_series(1, %s)",
                [key, kind, delay, dice.randint(1, 6)],
            )
        if not open_until:
            insert(late, f"key-{dice.randrange(KEYS)}", dice.randint(1, 3), event_type="late", max_attempts=3)
            open_until = time.monotonic() + dice.random() * 0.3
        elif time.monotonic() > open_until:
            late.commit() if dice.random() < 0.8 else late.rollback()
            open_until = 0.0
        backlog = conn.execute("SELECT count(*) FROM outbox WHERE completed_at IS NULL").fetchone()
        time.sleep(0.01 if backlog and backlog[0] < 1500 else 0.2)
    late.commit()


def operator(race: Race, name: str, seed: int) -> None:
    """Redrive and skip events as the commands do, and hurry those that wait."""
    dice = random.Random(seed)
    actor = Actor(race.url, name)
    tally = Tally(actor.conn)
    while not race.calm.exists():
        n = dice.randint(1, 5)
        some = Filter(key=dice.choice([None, f"key-{dice.randrange(KEYS)}"]), limit=n)
        match dice.choice(["redrive", "skip", "hurry"]):
            case "redrive":
                tally.add("redrive", redriven(actor, some))
            case "skip":
                steps = skip(actor.conn, actor.table, some, actor=name, reason="the race wants it")
                tally.add("skip", last(steps).changed)
            case "hurry":
                tally.add("hurry", hurried(actor, n))
        tally.write()
        time.sleep(0.05)


def redriven(actor: Actor, which: Filter) -> int:
    return last(retry(actor.conn, actor.table, which, actor=actor.name)).changed


WAITS = "status = 'pending' AND available_at > clock_timestamp()"


def hurried(actor: Actor, n: int) -> int:
    """Make up to n events due now, also those that their writer has delayed: under their buckets' locks."""
    conn = actor.conn
    with conn.transaction():
        found = conn.execute(
            f"SELECT idempotency_key, partition_bucket FROM outbox WHERE {WAITS} ORDER BY random() LIMIT {n}"
        ).fetchall()
        for bucket in sorted({row[1] for row in found}):
            conn.execute("SELECT pg_advisory_xact_lock(%s, %s)", [actor.table.bucket_locks, bucket])
        return conn.execute(
            "UPDATE outbox SET available_at = clock_timestamp()"
            f" WHERE idempotency_key = ANY(%s) AND ({WAITS})",
            [[row[0] for row in found]],
        ).rowcount
