"""Claims runs of due events, per key from its head, under bucket locks.

Guarantees: of a key with a live lease nothing is claimed; a claim takes the head of a lane and the
due rows directly behind it, never past one that is not due. Two statements, because the second one's
snapshot must be younger than the locks that the first one takes.

A claim touches pending rows only. If it changed fewer rows than it chose, somebody wrote without the
bucket's lock: it rolls back and the next claim looks again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from psycopg import Connection, sql
from psycopg.pq import TransactionStatus

from relay.errors import Overtaken
from relay.event import Event
from relay.pause import Subject
from relay.scan import BUCKETS, BUCKETS_PER_CLAIM, THE_PAST, Scan, next_owned, reach
from relay.store.claim_sql import (
    CHOSEN,
    CHOSEN_IN_PLAIN,
    CLAIM,
    DUE,
    DUE_AND_NOT_HELD,
    FRAGMENTS,
    HEADS_PER_CLAIM,
    HELD,
    LATER_ROWS_PER_CLAIM,
    LOCK,
)
from relay.store.connection import StoreConnection, Table, localise
from relay.store.sqltext import Statement, fill, regclass, verbatim


@dataclass(frozen=True)
class Claim:
    """Events of one lease, in `position` order."""

    generation: int
    events: list[Event]
    tids: str  # where the rows are, for the settle; opaque
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
    lost_once: int = 0  # heads left alone because they lost a lease before
    lost_more: int = 0
    breakers: int = 0  # that hold something back
    probes: tuple[Subject, ...] = ()  # those of them whose time has come


class Claiming:
    """The claim statements of one outbox, for one worker."""

    def __init__(self, table: Table, worker: str, destination: str, lease_seconds: float) -> None:
        words = {
            **FRAGMENTS,
            "DESTINATION": destination_expression(destination),
            "GENERATION": verbatim(regclass(table.name, "generation")),
        }
        self._lock = Statement(fill(LOCK, table.name, **words))

        def claim(chosen: str, **more: str) -> Statement:
            return Statement(fill(CLAIM, table.name, CHOSEN=chosen, **words, **more))

        # Events that wait and pauses are rarer than claims that meet neither: statements of their own.
        free = {"HELD": "", "DUE": DUE, "MAY_BE_PLAIN": "true"}
        held = {"HELD": HELD, "DUE": DUE_AND_NOT_HELD, "MAY_BE_PLAIN": "false"}
        self._claim_plain = claim(CHOSEN_IN_PLAIN, **free)
        self._claim = claim(CHOSEN, **free)
        self._claim_around_pauses = claim(CHOSEN, **held)
        self._owned: list[int] | None = None
        self._owned_text: str | None = None
        self._fixed: dict[str, Any] = {
            "namespace": table.bucket_locks,
            "worker": worker,
            "lease_seconds": lease_seconds,
        }

    def watch(self, buckets: Sequence[int] | None) -> None:
        """Look into these buckets only, from the next claim on; None: into all of them."""
        everything = buckets is None or len(buckets) == BUCKETS
        self._owned = None if everything else next_owned(buckets or ())
        # Written out once: a list would be at every claim.
        self._owned_text = None if self._owned is None else f"{{{','.join(map(str, self._owned))}}}"

    def claim(self, conn: Connection[Any], scan: Scan, limits: Limits) -> Look:
        """Claim what is due, from where `scan` stands, and move it on.

        The connection must be in autocommit mode: the transaction here is the claim's own.
        """
        if scan.idle and (look := self._glance(conn, scan, limits)):
            return look
        conn.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            localise(conn)
            look = self._look(conn, scan, limits)
            conn.execute("COMMIT")
        except BaseException:
            if not conn.broken and conn.info.transaction_status != TransactionStatus.IDLE:
                conn.execute("ROLLBACK")
            raise
        return look

    def _glance(self, conn: Connection[Any], scan: Scan, limits: Limits) -> Look | None:
        """In one statement: nothing to claim, as the last time. None: there may be something."""
        if isinstance(conn, StoreConnection) and conn.pooled:
            return None  # its settings hold in transactions only
        places = self._lock_buckets(conn, scan.copy(), everywhere=limits.everywhere)
        if not places.empty:
            return None
        scan.pass_over([])
        return Look(None, 0, **_steering(places))

    def _look(self, conn: Connection[Any], scan: Scan, limits: Limits) -> Look:
        places = self._lock_buckets(conn, scan, everywhere=limits.everywhere)
        scan.idle = places.empty
        looked = [bucket for bucket in places.fresh if bucket in places.locked]
        if not looked:
            scan.pass_over(places.fresh)
        if not places.locked:
            return Look(None, len(places.fresh), len(places.fresh), places.more_later, **_steering(places))
        rows = self._take(conn, scan, limits, places, looked)
        header: dict[str, Any] = next(row for row in rows if not row.generation).headers  # type: ignore[assignment]
        events = [row for row in rows if row.generation]
        events.sort()
        if len(events) != header["chosen"]:
            raise Overtaken(f"a claim chose {header['chosen']} events but changed {len(events)}")
        full = header["seen"] >= max(limits.rows, limits.heads) or header["cut"]
        scan.advance(looked, header["buckets"], full=full)
        claim = Claim(events[0].generation, events, header["tids"], header["ids"]) if events else None
        return Look(
            claim,
            len(places.fresh),
            len(places.fresh) - len(looked),
            full or places.more_later,
            header["lost_once"],
            header["lost_more"],
            **_steering(places),
        )

    def _lock_buckets(self, conn: Connection[Any], scan: Scan, *, everywhere: bool) -> "_Places":
        owned = None if everywhere else self._owned
        values = self._fixed | {
            "start": scan.start,
            "owned": None if everywhere else self._owned_text,
            "buckets": scan.width,
            "later_buckets": BUCKETS_PER_CLAIM,
            "later_at": scan.later[0],
            "later_id": scan.later[1],
            "later_rows": 0 if scan.later_rests else LATER_ROWS_PER_CLAIM,
        }
        row = self._lock.run(conn, values).fetchone()
        assert row is not None
        fresh, locked, mixed, later_buckets, later_keys, later_at, later_ids, pauses = (
            column or [] for column in row
        )
        n = reach(later_buckets, BUCKETS_PER_CLAIM, owned)
        more_later = scan.later_rests or n < len(later_keys) or n == LATER_ROWS_PER_CLAIM
        if not scan.later_rests:
            scan.later = (later_at[n - 1], later_ids[n - 1]) if more_later else THE_PAST
        held = [_Pause(Subject(scope, value), *kind) for scope, value, *kind in pauses]
        keys = later_keys[:n]
        return _Places(fresh, frozenset(locked), bool(mixed), later_buckets[:n], keys, more_later, held)

    def _take(
        self, conn: Connection[Any], scan: Scan, limits: Limits, places: "_Places", looked: list[int]
    ) -> list[Event]:
        probed = limits.only if limits.probe else None
        held = [p.subject for p in places.pauses if not (p.breaker and p.subject == probed)]
        held += limits.spared
        values = self._fixed | {
            "held_scopes": [subject.scope for subject in held],
            "held_values": [subject.value for subject in held],
            "only_scope": limits.only and limits.only.scope,
            "only_value": limits.only and limits.only.value,
            "locked": list(places.locked),
            "fresh": looked,
            "cursors": [scan.after(bucket) for bucket in looked],
            "later_buckets": places.later_buckets,
            "later_keys": places.later_keys,
            "heads": max(limits.rows, limits.heads),
            "rows": limits.rows,
            "bytes": limits.bytes,
            "losses_from": limits.losses[0],
            "losses_to": limits.losses[1],
            "min_age": limits.min_age,
        }
        if held or limits.only:
            statement = self._claim_around_pauses
        else:
            statement = self._claim if places.mixed or places.later_keys else self._claim_plain
        return statement.run(conn, values, _event_row).fetchall()


class _Places(NamedTuple):
    fresh: list[int]
    locked: frozenset[int]
    mixed: bool  # in some of those that have fresh rows others wait
    later_buckets: list[int]
    later_keys: list[str]
    more_later: bool
    pauses: list["_Pause"]

    @property
    def empty(self) -> bool:
        return not self.fresh and not self.later_keys and not self.more_later


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
