"""A bounded hand-over between two threads, which either side can end."""

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """Holds at most `size` items. After close() nothing can be put, and get() empties what is left."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[T] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: T) -> bool:
        """Wait for room; False: the channel was closed and the item was not taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._size)
            if self._closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def get(self) -> T | None:
        """Wait for an item; None: the channel is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items))
            if not self._items:
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def ready(self, seconds: float) -> bool:
        """Wait so long at most; whether get() would return at once."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or bool(self._items), seconds)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Close and drop what is in it."""
        with self._changed:
            self._items.clear()
        self.close()
