"""How far a consumer has come in one partition. Pure.

Messages are done in any order across keys; the offset to commit is that of the first one that is not. Only
those that are not done are remembered: one that waits for days costs no memory for all that go on behind it.
"""


class Progress:
    def __init__(self) -> None:
        self._open: dict[int, None] = {}  # in the order in which they were taken
        self._next: int | None = None  # behind all that were taken
        self._committed: int | None = None

    def take(self, offset: int) -> None:
        if self._next is None:
            self._committed = offset  # as good as: whoever starts now begins here
        self._open[offset] = None
        self._next = offset + 1

    def done(self, offset: int) -> None:
        self._open.pop(offset, None)

    def to_commit(self) -> int | None:
        """The offset of the next message to read after a restart; None: nothing new to commit."""
        offset = next(iter(self._open), self._next)
        return offset if offset != self._committed else None

    def commit(self, offset: int | None) -> None:
        """Told when it is sent; with None where that failed."""
        self._committed = offset
