"""What goes into a claim and what comes out of it: limits, looks, and what its statements answer."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from psycopg import RawCursor

from relay.event import Event
from relay.pause import Subject
from relay.scan import BUCKETS, THE_PAST, next_owned, part_of
from relay.store.claim_sql import HEADS_PER_CLAIM

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


class Watched:
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


class Pause(NamedTuple):
    subject: Subject
    breaker: bool
    due: bool | None  # of a breaker: it is time to probe


class Places(NamedTuple):
    fresh: list[int]
    locked: list[int]
    looked: list[int]  # those of the fresh ones that are locked
    mixed: bool  # in some of those that have fresh rows others wait
    later_buckets: list[int]
    later_keys: list[str]
    later: tuple[datetime, int]  # where the next look goes on
    more_later: bool
    pauses: list[Pause]

    @property
    def empty(self) -> bool:
        return not self.fresh and not self.later_keys and not self.more_later

    @property
    def plain(self) -> bool:
        """Nothing waits and nothing is held."""
        return not self.mixed and not self.later_keys and not self.pauses


def block_of(tid: str) -> int:
    return int(tid.strip("()").partition(",")[0])


def plain_places(locking: RawCursor[Any]) -> Places | None:
    row = locking.fetchone()
    assert row is not None
    fresh, locked, plain, _ = row
    if not plain:
        return None
    return Places(fresh or [], locked or [], locked or [], False, [], [], THE_PAST, False, [])


def steering(places: Places) -> dict[str, Any]:
    breakers = [pause for pause in places.pauses if pause.breaker]
    return {
        "breakers": len(breakers),
        "probes": tuple(pause.subject for pause in breakers if pause.due),
    }


def claimed(rows: list[Event]) -> tuple[Claim | None, dict[str, Any]]:
    """The claim, and what the statement says beside it."""
    if not rows:
        return None, {}
    header = header_of(rows)
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


def header_of(rows: list[Event]) -> dict[str, Any]:
    return next(row for row in rows if not row.generation).headers  # type: ignore[return-value]


def event_row(cursor: Any) -> Callable[[Sequence[Any]], Event]:
    return Event._make
