"""How far a consumer has come in one partition. Pure.

Messages are done in any order across keys; the offset to commit is that of the first one that is not.
"""

from collections import deque


class Progress:
    def __init__(self) -> None:
        self._taken: deque[int] = deque()
        self._done: set[int] = set()
        self._next: int | None = None
        self._committed: int | None = None

    def take(self, offset: int) -> None:
        self._taken.append(offset)

    def done(self, offset: int) -> None:
        self._done.add(offset)
        while self._taken and self._taken[0] in self._done:
            first = self._taken.popleft()
            self._done.remove(first)
            self._next = first + 1

    def to_commit(self) -> int | None:
        """The offset of the next message to read after a restart; None: nothing new to commit."""
        return self._next if self._next != self._committed else None

    def commit(self, offset: int | None) -> None:
        """Told when it is sent; with None where that failed."""
        self._committed = offset
