"""What a bench does, and which keys its events have. Pure."""

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import Literal, TypeAlias

Distribution: TypeAlias = Literal["uniform", "zipf", "hot"]

KEY_TYPE = "order"
POISON_KEY = f"{KEY_TYPE}:poison"
POISON_TYPE = "Poison"
EVENT_TYPE = "OrderPaid"


@dataclass(frozen=True)
class Plan:
    events: int = 200_000
    keys: int = 20_000
    distribution: Distribution = "uniform"
    zipf: float = 1.1  # exponent, where the distribution is zipf
    payload_bytes: int = 200
    workers: int = 1
    poison_backlog: int = 0  # events behind one that can never be published
    held_transaction: bool = False
    backlog: int = 0  # rows that wait when the drain begins; 0: as many as are drained
    rate: float = 500.0  # of the steady load, events a second
    seconds: float = 30.0  # of the steady load; 0: none
    per_commit: int = 1  # events of the steady load
    ceilings: bool = True
    partitions: int = 12
    destination: str | None = None  # an existing one; None: the bench makes its own

    @property
    def depth(self) -> int:
        """Rows that wait when the drain begins, the poisoned key's aside."""
        return max(self.backlog, self.events)

    @property
    def plain(self) -> "Plan":
        """The same without what is tried: what a drain is compared with."""
        return replace(self, distribution="uniform", poison_backlog=0, held_transaction=False, backlog=0)

    @property
    def trials(self) -> str:
        """What sets this plan's drain apart from a plain one, in words."""
        named = {
            f"Zipf {self.zipf:g}": self.distribution == "zipf",
            "one hot key": self.distribution == "hot",
            f"{self.poison_backlog:,} events behind a poisoned one": self.poison_backlog > 0,
            "a transaction held open": self.held_transaction,
            f"backlog of {self.backlog:,}": self.backlog > self.events,
        }
        return ", ".join(name for name, tried in named.items() if tried)


def key_number(key: str) -> int:
    """Of any key but the poisoned one."""
    return int(key[len(KEY_TYPE) + 1 :])


def cumulated(plan: Plan) -> list[float]:
    """Upper bounds of the share of each key but the last: a random number in 0..1 falls into one."""
    weights = [1 / rank**plan.zipf for rank in range(1, plan.keys + 1)]
    total = sum(weights)
    return [bound / total for bound in accumulate(weights)][:-1]


class Keys:
    """Draws keys as the plan distributes them."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self._random = Random(seed)
        self._keys = plan.keys
        self._hot = plan.distribution == "hot"
        self._bounds = cumulated(plan) if plan.distribution == "zipf" else None

    def draw(self) -> str:
        if self._bounds is not None:
            return f"{KEY_TYPE}:{bisect_right(self._bounds, self._random.random())}"
        if self._hot and self._random.random() < 0.5:
            return f"{KEY_TYPE}:0"
        return f"{KEY_TYPE}:{self._random.randrange(self._keys)}"
