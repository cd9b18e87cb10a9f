"""Claims runs of due events, per key from its head, under bucket locks.

Guarantees: of a key with a live lease nothing is claimed; a claim takes the head of a lane and the
due rows directly behind it, never past one that is not due. Two statements, because the second one's
snapshot must be younger than the locks that the first one takes.

A claim writes one row, its lease. The rows of its events stay as they are: the settle changes them, and so do
the reaper and a mark, always through the lease.

Where nothing waits and nothing is held, which is nearly always, shorter statements do. The second takes
all it needs from what the first has left in the transaction, so they travel together: a claim is one trip.
"""

from collections.abc import Sequence
from typing import Any

from psycopg import Connection, RawCursor
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
    reach,
)
from relay.store.claim_sql import (
    ABOVE,
    CLAIM,
    CLAIM_PLAIN,
    DUE,
    DUE_AND_NOT_HELD,
    FRAGMENTS,
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
from relay.store.look import (
    Limits,
    Look,
    Pause,
    Places,
    Watched,
    block_of,
    claimed,
    event_row,
    header_of,
    plain_places,
    steering,
)
from relay.store.sqltext import Statement, destination_expression, fill, regclass, verbatim

# Where a claim met events that are not easy, so many looks do not count on it.
HARD_LOOKS = 16


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
        self._everything = self._watched = Watched(None)
        self._fixed: dict[str, Any] = {
            "namespace": table.bucket_locks,
            "worker": worker,
            "lease_seconds": lease_seconds,
        }

    def watch(self, buckets: Sequence[int] | None) -> None:
        """Look into these buckets only, from the next claim on; None: into all of them."""
        everything = buckets is None or len(buckets) == BUCKETS
        # In one step: it is another thread that claims.
        self._watched = Watched(None if everything else next_owned(buckets or ()))

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
    ) -> tuple[Places | None, list[Event]]:
        """Where nothing waits and nothing is held; no places: not all is easy, and nothing was claimed."""

        def lock() -> RawCursor[Any]:
            return self._texts(limits).lock_plain.run(conn, self._lock_values(scan, limits))

        def take() -> RawCursor[Any]:
            return self._texts(limits).claim_plain.run(conn, self._values(scan, limits), event_row)

        if self.stepwise:
            with own_transaction(conn):
                places = plain_places(lock())
                return self._unless_hard(places, take().fetchall() if places and places.locked else [])
        if scan.idle:
            # There was nothing the last time: look first.
            places = plain_places(lock())
            if places is None or places.empty:
                return places, []
        with conn.pipeline():
            # Without a BEGIN a pipeline is one transaction in which each statement has its own snapshot.
            locking, taking = lock(), take()
        return self._unless_hard(plain_places(locking), taking.fetchall())

    def _unless_hard(self, places: Places | None, rows: list[Event]) -> tuple[Places | None, list[Event]]:
        """Where some events were not easy, others like them are likely to follow."""
        if rows and not header_of(rows)["easy"]:
            self._hard_looks = HARD_LOOKS
            return None, []
        return places, rows

    def claim_tail(self, conn: Connection[Any], tail: Tail, limits: Limits) -> Look:
        """Claim what has come to the end of the table, whatever the indexes are full of."""
        values = self._fixed | {
            "tail": tail.block,
            "reach": FIRST_TAIL_BLOCKS,
            "after": Int8(tail.after),
            "owned": self._watching(limits).text(None),
            "later_rows": LATER_ROWS_PER_CLAIM,
            "later_buckets": BUCKETS_PER_CLAIM,
        }
        with own_transaction(conn):
            row = self._statements.lock_tail.run(conn, values).fetchone()
            assert row is not None
            blocks, oldest, waiting, locked, blocked, buckets, keys, ids, pauses = row
            held = [Pause(Subject(scope, value), *kind) for scope, value, *kind in pauses or []]
            places = Places([], locked or [], [], True, buckets or [], keys or [], THE_PAST, False, held)
            rows = self._take(conn, Scan(), limits, places)
        claim, header = claimed(rows)
        tail.advance(blocks, block_of(oldest) if oldest else None)
        if not header.get("cut"):  # what a limit has left is there for the next claim
            looked_at = (ids or [])[: reach(places.later_buckets, BUCKETS_PER_CLAIM)]
            tail.looked_at(looked_at, len({event.key for event in claim.events}) if claim else 0)
        full = len(places.later_keys) == LATER_ROWS_PER_CLAIM
        blocked = blocked or (bool(locked) and not claim)
        return Look(claim, 0, full=full, waiting=waiting, blocked=blocked, **steering(places))

    def _seen(self, scan: Scan, limits: Limits, places: Places, rows: list[Event]) -> Look:
        """Move the scan on behind what was taken."""
        scan.later = places.later
        scan.idle = places.empty
        # Behind a cursor is not all of a bucket.
        every_bucket = len(places.fresh) < scan.width and places.looked == places.fresh
        whole = every_bucket and not scan.keys and not places.more_later and scan.horizon == FOREVER
        if not places.looked:
            scan.pass_over(places.fresh)
        if not places.locked:
            scan.later_rests = False  # this look was for fresh ones alone
            return Look(None, len(places.fresh), len(places.fresh), places.more_later, **steering(places))
        claim, header = claimed(rows)
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
            **steering(places),
        )

    def _texts(self, limits: Limits) -> _Statements:
        return self._statements if limits.floor is None else self._above_floor

    def _watching(self, limits: Limits) -> Watched:
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

    def _lock_buckets(self, conn: Connection[Any], scan: Scan, limits: Limits) -> Places:
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
        return Places(
            fresh,
            locked,
            [bucket for bucket in fresh if bucket in mine],
            bool(mixed),
            later_buckets[:n],
            later_keys[:n],
            later,
            more_later,
            [Pause(Subject(scope, value), *kind) for scope, value, *kind in pauses],
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

    def _take(self, conn: Connection[Any], scan: Scan, limits: Limits, places: Places) -> list[Event]:
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
        return statement.run(conn, values, event_row).fetchall()
