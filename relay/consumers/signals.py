"""Stops a consumer on SIGTERM or SIGINT: the first finishes what is in hand, the second does not wait."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While inside; in the main thread alone, as Python has it."""

    def handle(number: int, frame: object) -> None:
        stop()
        restore()  # a second one ends a handler that hangs

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        restore()
