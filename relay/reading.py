"""What the database says about an outbox at one moment. Pure: nothing here does I/O."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """Values for the gauges; None: the database did not say in time."""

    pending: float | None = None
    processing: float | None = None
    dead_letter: float | None = None
    failed: float | None = None
    oldest_pending_seconds: float | None = None
    workers: float | None = None
