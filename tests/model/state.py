"""What the model is about: the world that is explored, and one state of it.

Events are numbered by position. The database's part of a state are the rows and leases; each worker knows its
own batch only; what the broker has, and what may yet reach it, nobody in the protocol sees.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from relay.settlement import Act, OnExhausted

Status: TypeAlias = Literal["pending", "processing", "completed", "dead_letter", "failed"]
OUT_OF_LANE: frozenset[Status] = frozenset({"completed", "dead_letter"})

Guard: TypeAlias = Literal[
    "head of the key",  # a head that is not due holds its key
    "cut at what is not due",  # a run ends before the first row that is not due
    "tried heads alone",  # what was tried before is not followed by others
    "busy keys",  # of a key that a lease names nothing is claimed
    "reaper",  # claims touch pending rows only; expired ones come back first, in a transaction of their own
    "order on the wire",  # a publisher gets no event of a key through behind one that it did not
    "publish deadline",  # nothing is handed over once the lease may have run out
    "fence",  # a settle passes by its own lease alone, there and not expired
    "one expiry for all rows",  # the lease's; otherwise a settle asks each row's own as it comes to it
    "lease and rows at once",  # a settle removes its lease and changes its rows in one transaction
]


@dataclass(frozen=True)
class World:
    """What is explored: how much there is of everything, what may happen, which guards are missing."""

    keys: str  # of the events in the order of their positions, a letter each: "aab"
    workers: int = 2
    max_attempts: int = 2
    losses: int = 2  # lost leases are counted up to this
    on_exhausted: OnExhausted = "dead_letter"
    delayed: frozenset[int] = frozenset()  # events that are not due at first
    early_takeover: bool = True  # a worker may be declared dead at any time, rightly or not
    open_settles: bool = True  # things may happen between a settle's fence and its commit
    operators: bool = False  # redrive and skip
    without: frozenset[Guard] = frozenset()

    def has(self, guard: Guard) -> bool:
        return guard not in self.without


class Row(NamedTuple):
    """A row of the outbox: the columns that decide what may happen to it."""

    status: Status = "pending"
    due: bool = True  # its available_at has come
    attempts: int = 0
    losses: int = 0
    generation: int | None = None  # while processing


class Lease(NamedTuple):
    """A row of the lease table."""

    generation: int
    events: tuple[int, ...]
    expired: bool = False


class Batch(NamedTuple):
    """A claim in the hands of a worker, which does not see what becomes of its lease."""

    generation: int
    events: tuple[int, ...]
    handed: int = 0  # so many were handed to the broker, in order
    accepted: frozenset[int] = frozenset()  # the broker has them, whether or not it said so
    late: bool = False  # the publish deadline is over
    settling: tuple[Act, ...] | None = None  # its settle has passed the fence and not committed


class State(NamedTuple):
    rows: tuple[Row, ...]
    leases: tuple[Lease, ...]
    workers: tuple[Batch | None, ...]
    generation: int  # the last one given out
    published: frozenset[int]  # the broker has them
    # Messages on connections at which nobody waits any more. The broker may yet find them, each in its turn.
    adrift: frozenset[tuple[int, ...]]
    # Left their lane unpublished. An older owner may still publish them, behind their successors.
    excused: frozenset[int]


class Step(NamedTuple):
    verb: str
    generation: int | None = None
    worker: int | None = None
    events: tuple[int, ...] = ()
    acts: tuple[str, ...] = ()  # on each of the events


def initial(world: World) -> State:
    rows = tuple(Row(due=event not in world.delayed) for event in range(len(world.keys)))
    return State(rows, (), (None,) * world.workers, 0, frozenset(), frozenset(), frozenset())


def lease_of(state: State, generation: int | None) -> Lease | None:
    for lease in state.leases:
        if lease.generation == generation:
            return lease
    return None
