"""Claims runs of due events, per key from its head, under bucket locks.

Guarantees: of a key with a live lease nothing is claimed; a claim takes the head of a lane and the
due rows directly behind it, never past one that is not due. Two statements, because the second one's
snapshot must be younger than the locks that the first one takes.

A claim writes one row, its lease. The rows of its events stay as they are: the settle changes them, and so do
the reaper and a mark, always through the lease.

Where nothing waits and nothing is held, which is nearly always, shorter statements do. The second takes
all it needs from what the first has left in the transaction, so they travel together: a claim is one trip.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from psycopg import Connection, RawCursor, sql
from psycopg.types.numeric import Int8

from relay.event import Event
from relay.pause import Subject
from relay.scan import (
    BUCKETS,
    BUCKETS_PER_CLAIM,
    FIRST_TAIL_BLOCKS,
    FOREVER,
    THE_PAST,
    Scan,
    Tail,
    next_owned,
    part_of,
    reach,
)
from relay.store.claim_sql import (
    ABOVE,
    CLAIM,
    CLAIM_PLAIN,
    DUE,
    DUE_AND_NOT_HELD,
    FRAGMENTS,
    HEADS_PER_CLAIM,
    HELD,
    LATER_ROWS_PER_CLAIM,
    LEFT_LOCKED,
    LOCK,
    LOCK_PLAIN,
    LOCK_TAIL,
    SAID,
    SAID_IN_PLAIN,
)
from relay.store.connection import Table, own_transaction
from relay.store.sqltext import Statement, fill, regclass, verbatim

# Where a claim met events that are not easy, so many looks do not count on it.
HARD_LOOKS = 16
# Claims of so many events at most come in the order of their positions.
IN_ORDER = 500


@dataclass(frozen=True)
class Claim:
    """Events of one lease: those of each key in `position` order; few of them, all in that order."""

    generation: int
    events: list[Event]
    tids: str  # where the rows are, in the same order; for the settle
    ids: str  # their positions, likewise


@dataclass(frozen=True)
class Limits:
    """What one claim may take. Only heads that lost their lease `losses` times are taken."""

    rows: int
    bytes: int
    losses: tuple[int, int] = (0, 0)
    heads: int = HEADS_PER_CLAIM  # it may look at, or as many as rows if that is more
    only: Subject | None = None  # take nothing else
    probe: bool = False  # and take it although its breaker holds it, to see whether it still must
    spared: tuple[Subject, ...] = ()  # take nothing of these
    min_age: float = 0.0  # seconds that an event must have been due
    everywhere: bool = False  # look into the buckets of others too
    part: int | None = None  # of those, look for fresh events only into this one of PARTS
    floor: int | None = None  # there are no fresh events below

    @property
    def plain(self) -> bool:
        """It takes whatever is due."""
        return self.only is None and not self.spared and self.losses == (0, 0) and not self.min_age

    def suspects(self, rows: int, losses: tuple[int, int]) -> "Limits":
        """For a claim that sees every head that this one sees, and takes those that lost a lease."""
        return replace(self, rows=rows, losses=losses, heads=max(self.rows, self.heads), spared=())


@dataclass(frozen=True)
class Look:
    """What one claim saw, beside the events it took."""

    claim: Claim | None
    buckets: int  # that had fresh rows, of those it looked for
    skipped: int = 0  # of those, how many another worker was claiming from
    full: bool = False  # it stopped at a limit: there may be more to see
    whole: bool = False  # it saw everything that is there for this worker
    blocked: bool = False  # something waits only until a sibling in flight is settled; may be wrong
    waiting: int = 0  # at the end of the table: events that were there to be taken, and those it took
    lost_once: int = 0  # heads left alone because they lost a lease before
    lost_more: int = 0
    breakers: int = 0  # that hold something back
    probes: tuple[Subject, ...] = ()  # those of them whose time has come


class _Statements:
    """The texts of a claim from one outbox, for looks at all fresh events or at those above a floor."""

    def __init__(self, table: Table, destination: str, above: str = "") -> None:
        words = {
            **FRAGMENTS,
            "ABOVE": above,
            "DESTINATION": destination_expression(destination),
            "GENERATION": verbatim(regclass(table.name, "generation")),
            "OUTBOX": verbatim(regclass(table.name, "outbox")),
        }

        def statement(text: str, **more: str) -> Statement:
            return Statement(fill(text, table.name, **words, **more))

        self.lock = statement(LOCK)
        self.lock_plain = statement(LOCK_PLAIN)
        self.lock_tail = statement(LOCK_TAIL)
        # Events that wait and pauses are rarer than claims that meet neither: statements of their own.
        given = {"SAID": SAID, "LOCKED": "%(locked)s::int[]"}
        self.claim_plain = statement(CLAIM_PLAIN, SAID=SAID_IN_PLAIN, LOCKED=LEFT_LOCKED)
        self.claim = statement(CLAIM, HELD="", DUE=DUE, NONE_HELD="true", **given)
        self.claim_around_pauses = statement(
            CLAIM, HELD=HELD, DUE=DUE_AND_NOT_HELD, NONE_HELD="false", **given
        )


class Claiming:
    """The claim statements of one outbox, for one worker."""

    def __init__(
        self, table: Table, worker: str, destination: str, lease_seconds: float, *, stepwise: bool = False
    ) -> None:
        """Stepwise: always in a transaction of its own, and one statement after the other."""
        self._statements = _Statements(table, destination)
        self._above_floor = _Statements(table, destination, ABOVE)
        self.stepwise = stepwise
        self._plain = True  # the last look met nothing that waits or is held
        self._hard_looks = 0  # so many more in which it does not count on easy events
        self._everything = self._watched = _Watched(None)
        self._fixed: dict[str, Any] = {
            "namespace": table.bucket_locks,
            "worker": worker,
            "lease_seconds": lease_seconds,
        }

    def watch(self, buckets: Sequence[int] | None) -> None:
        """Look into these buckets only, from the next claim on; None: into all of them."""
        everything = buckets is None or len(buckets) == BUCKETS
        # In one step: it is another thread that claims.
        self._watched = _Watched(None if everything else next_owned(buckets or ()))

    @property
    def watches_all(self) -> bool:
        return self._watched.way is None

    def claim(self, conn: Connection[Any], scan: Scan, limits: Limits) -> Look:
        """Claim what is due, from where `scan` stands, and move it on.

        The connection must be in autocommit mode: the transaction here is the claim's own.
        """
        if self._plain and limits.plain:
            places, rows = self._claim_plainly(conn, scan, limits)
            self._plain = places is not None
            if places is not None:
                return self._seen(scan, limits, places, rows)
        with own_transaction(conn):
            places = self._lock_buckets(conn, scan, limits)
            rows = self._take(conn, scan, limits, places)
        self._hard_looks = max(self._hard_looks - 1, 0)
        self._plain = places.plain and not self._hard_looks
        return self._seen(scan, limits, places, rows)

    def _claim_plainly(
        self, conn: Connection[Any], scan: Scan, limits: Limits
    ) -> tuple["_Places | None", list[Event]]:
        """Where nothing waits and nothing is held; no places: not all is easy, and nothing was claimed."""

        def lock() -> RawCursor[Any]:
            return self._texts(limits).lock_plain.run(conn, self._lock_values(scan, limits))

        def take() -> RawCursor[Any]:
            return self._texts(limits).claim_plain.run(conn, self._values(scan, limits), _event_row)

        if self.stepwise:
            with own_transaction(conn):
                places = _plain_places(lock())
                return self._unless_hard(places, take().fetchall() if places and places.locked else [])
        if scan.idle:
            # There was nothing the last time: look first.
            places = _plain_places(lock())
            if places is None or places.empty:
                return places, []
        with conn.pipeline():
            # Without a BEGIN a pipeline is one transaction in which each statement has its own snapshot.
            locking, taking = lock(), take()
        return self._unless_hard(_plain_places(locking), taking.fetchall())

    def _unless_hard(
        self, places: "_Places | None", rows: list[Event]
    ) -> tuple["_Places | None", list[Event]]:
        """Where some events were not easy, others like them are likely to follow."""
        if rows and not _header(rows)["easy"]:
            self._hard_looks = HARD_LOOKS
            return None, []
        return places, rows

    def claim_tail(self, conn: Connection[Any], tail: Tail, limits: Limits) -> Look:
        """Claim what has come to the end of the table, whatever the indexes are full of."""
        values = self._fixed | {
            "tail": tail.block,
            "reach": FIRST_TAIL_BLOCKS,
            "owned": self._watching(limits).text(None),
            "later_rows": LATER_ROWS_PER_CLAIM,
            "later_buckets": BUCKETS_PER_CLAIM,
        }
        with own_transaction(conn):
            row = self._statements.lock_tail.run(conn, values).fetchone()
            assert row is not None
            blocks, oldest, waiting, locked, blocked, buckets, keys, pauses = row
            held = [_Pause(Subject(scope, value), *kind) for scope, value, *kind in pauses or []]
            places = _Places([], locked or [], [], True, buckets or [], keys or [], THE_PAST, False, held)
            rows = self._take(conn, Scan(), limits, places)
        tail.advance(blocks, block_of(oldest) if oldest else None)
        claim, _ = _claimed(rows)
        full = len(places.later_keys) == LATER_ROWS_PER_CLAIM
        blocked = blocked or (bool(locked) and not claim)
        return Look(claim, 0, full=full, waiting=waiting, blocked=blocked, **_steering(places))

    def _seen(self, scan: Scan, limits: Limits, places: "_Places", rows: list[Event]) -> Look:
        """Move the scan on behind what was taken."""
        scan.later = places.later
        scan.idle = places.empty
        # Behind a cursor is not all of a bucket.
        every_bucket = len(places.fresh) < scan.width and places.looked == places.fresh
        whole = every_bucket and not scan.keys and not places.more_later and scan.horizon == FOREVER
        if not places.looked:
            scan.pass_over(places.fresh)
        if not places.locked:
            return Look(None, len(places.fresh), len(places.fresh), places.more_later, **_steering(places))
        claim, header = _claimed(rows)
        full = header["seen"] >= max(limits.rows, limits.heads) or header["cut"]
        scan.advance(places.looked, header["buckets"], full=full)
        if full and claim:
            scan.took([event.position for event in claim.events])
        return Look(
            claim,
            len(places.fresh),
            len(places.fresh) - len(places.looked),
            full or places.more_later,
            whole and not full,
            # Where lanes are probed by their heads nothing is known of what stands behind those.
            header["blocked"] or not (claim or places.plain),
            lost_once=header["lost_once"],
            lost_more=header["lost_more"],
            **_steering(places),
        )

    def _texts(self, limits: Limits) -> _Statements:
        return self._statements if limits.floor is None else self._above_floor

    def _watching(self, limits: Limits) -> "_Watched":
        return self._everything if limits.everywhere else self._watched

    def _lock_values(self, scan: Scan, limits: Limits) -> dict[str, Any]:
        watched = self._watching(limits)
        return self._fixed | {
            "floor": Int8(limits.floor or 0),
            "start": scan.start,
            "part": watched.text(limits.part),
            "owned": watched.text(None),
            "buckets": scan.width,
            "later_buckets": BUCKETS_PER_CLAIM,
            "later_at": scan.later[0],
            "later_id": scan.later[1],
            "later_rows": 0 if scan.later_rests else LATER_ROWS_PER_CLAIM,
        }

    def _lock_buckets(self, conn: Connection[Any], scan: Scan, limits: Limits) -> "_Places":
        row = self._texts(limits).lock.run(conn, self._lock_values(scan, limits)).fetchone()
        assert row is not None
        fresh, locked, mixed, later_buckets, later_keys, later_at, later_ids, pauses = (
            column or [] for column in row
        )
        n = reach(later_buckets, BUCKETS_PER_CLAIM, self._watching(limits).way)
        more_later = scan.later_rests or n < len(later_keys) or n == LATER_ROWS_PER_CLAIM
        later = scan.later
        if not scan.later_rests:
            later = (later_at[n - 1], later_ids[n - 1]) if more_later else THE_PAST
        mine = set(locked)
        return _Places(
            fresh,
            locked,
            [bucket for bucket in fresh if bucket in mine],
            bool(mixed),
            later_buckets[:n],
            later_keys[:n],
            later,
            more_later,
            [_Pause(Subject(scope, value), *kind) for scope, value, *kind in pauses],
        )

    def _values(self, scan: Scan, limits: Limits) -> dict[str, Any]:
        return self._fixed | {
            "horizon": Int8(scan.horizon),
            "floor": Int8(limits.floor or 0),
            "cursor_buckets": list(scan.keys),
            "cursor_keys": list(scan.keys.values()),
            "heads": max(limits.rows, limits.heads),
            "rows": limits.rows,
            "bytes": limits.bytes,
            "losses_from": limits.losses[0],
            "losses_to": limits.losses[1],
            "min_age": limits.min_age,
        }

    def _take(self, conn: Connection[Any], scan: Scan, limits: Limits, places: "_Places") -> list[Event]:
        if not places.locked:
            return []
        probed = limits.only if limits.probe else None
        held = [p.subject for p in places.pauses if not (p.breaker and p.subject == probed)]
        held += limits.spared
        values = self._values(scan, limits) | {
            "held_scopes": [subject.scope for subject in held],
            "held_values": [subject.value for subject in held],
            "only_scope": limits.only and limits.only.scope,
            "only_value": limits.only and limits.only.value,
            "locked": places.locked,
            "fresh": places.looked,
            "cursors": [scan.after(bucket) for bucket in places.looked],
            "later_buckets": places.later_buckets,
            "later_keys": places.later_keys,
        }
        texts = self._texts(limits)
        statement = texts.claim_around_pauses if held or limits.only else texts.claim
        return statement.run(conn, values, _event_row).fetchall()


class _Watched:
    """Buckets to look into. `way` leads from each bucket to the next of them; None: all are."""

    def __init__(self, way: list[int] | None) -> None:
        self.way = way
        self._texts: dict[int | None, str | None] = {}

    def text(self, part: int | None) -> str | None:
        """The way, or that through a part of the buckets; written out once, not at every claim."""
        if part not in self._texts:
            way = self.way
            if part is not None:
                watched = [b for b in range(BUCKETS) if way is None or way[b] == b]
                way = next_owned(part_of(watched, part))
            self._texts[part] = None if way is None else f"{{{','.join(map(str, way))}}}"
        return self._texts[part]


class _Places(NamedTuple):
    fresh: list[int]
    locked: list[int]
    looked: list[int]  # those of the fresh ones that are locked
    mixed: bool  # in some of those that have fresh rows others wait
    later_buckets: list[int]
    later_keys: list[str]
    later: tuple[datetime, int]  # where the next look goes on
    more_later: bool
    pauses: list["_Pause"]

    @property
    def empty(self) -> bool:
        return not self.fresh and not self.later_keys and not self.more_later

    @property
    def plain(self) -> bool:
        """Nothing waits and nothing is held."""
        return not self.mixed and not self.later_keys and not self.pauses


def block_of(tid: str) -> int:
    return int(tid.strip("()").partition(",")[0])


def _claimed(rows: list[Event]) -> tuple[Claim | None, dict[str, Any]]:
    """The claim, and what the statement says beside it."""
    if not rows:
        return None, {}
    header = _header(rows)
    events = [row for row in rows if row.generation]
    if not events:
        return None, header
    claim = Claim(events[0].generation, events, header["tids"], header["ids"])
    return _in_order(claim) if len(events) <= IN_ORDER else claim, header


def _in_order(claim: Claim) -> Claim:
    """As they were written, whatever their keys; for many that would take longer than it is worth."""
    tids = re.findall(r"\(\d+,\d+\)", claim.tids)
    placed = sorted(zip(claim.events, tids, strict=True))
    places = ",".join(f'"{tid}"' for _, tid in placed)
    ids = ",".join(str(event.position) for event, _ in placed)
    return Claim(claim.generation, [event for event, _ in placed], f"{{{places}}}", f"{{{ids}}}")


def _header(rows: list[Event]) -> dict[str, Any]:
    return next(row for row in rows if not row.generation).headers  # type: ignore[return-value]


def _plain_places(locking: RawCursor[Any]) -> _Places | None:
    row = locking.fetchone()
    assert row is not None
    fresh, locked, plain, _ = row
    if not plain:
        return None
    return _Places(fresh or [], locked or [], locked or [], False, [], [], THE_PAST, False, [])


class _Pause(NamedTuple):
    subject: Subject
    breaker: bool
    due: bool | None  # of a breaker: it is time to probe


def _steering(places: _Places) -> dict[str, Any]:
    breakers = [pause for pause in places.pauses if pause.breaker]
    return {
        "breakers": len(breakers),
        "probes": tuple(pause.subject for pause in breakers if pause.due),
    }


def _event_row(cursor: Any) -> Callable[[Sequence[Any]], Event]:
    return Event._make


def destination_expression(template: str) -> str:
    """SQL for an event's destination: the row's own, else the template with its fields filled in."""
    default = sql.Literal(template).as_string(None)
    if "{event_type}" in template:
        default = f"replace({default}, '{{event_type}}', o.event_type)"
    if "{key_type}" in template:
        default = f"replace({default}, '{{key_type}}', split_part(o.partition_key, ':', 1))"
    return verbatim(f"coalesce(o.destination, {default})")
