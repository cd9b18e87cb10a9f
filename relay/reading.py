"""What the database says about an outbox at one moment. Pure: nothing here does I/O."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Count:
    """A number of events or keys; not exact: at least this many were seen, and `value` is the best guess."""

    value: int
    exact: bool = True


@dataclass(frozen=True)
class Breaker:
    """A breaker that is open; `subject` as people may see it. Probing: it is time to try again."""

    scope: str
    subject: str
    probing: bool = False


@dataclass(frozen=True)
class Upkeep:
    """How well the server keeps a table; None: never, or the server does not say."""

    dead_tuples: int
    autovacuum_seconds: float | None = None  # since the last one


@dataclass(frozen=True)
class Reading:
    """Values for the table-wide gauges."""

    pending: Count
    retrying: Count
    processing: Count
    failed: Count
    dead_letter: Count
    blocked_keys: Count
    oldest_pending_seconds: float
    workers: int
    breakers: tuple[Breaker, ...] = ()
    open_breakers: dict[str, int] = field(default_factory=dict)  # by scope
    operator_pauses: dict[str, int] = field(default_factory=dict)  # by scope
    upkeep: dict[str, Upkeep] = field(default_factory=dict)  # by table
    # Of transactions that keep the server from cleaning up, as far as this role may see them.
    oldest_transaction_seconds: float = 0.0
    held_back_transactions: int = 0
    sees_all_sessions: bool = True
