"""Rung by the settler for a claimer that sleeps behind what is in flight.

An event whose key is in flight cannot be claimed, and nobody notifies again when its sibling is settled.
"""

import socket
import threading
from contextlib import suppress


class Bell:
    def __init__(self) -> None:
        self._ear, self._clapper = socket.socketpair()
        self._ear.setblocking(False)
        self._clapper.setblocking(False)
        self._lock = threading.Lock()
        self._awaited = False
        self.strokes = 0  # heard or not

    def ring(self) -> None:
        """A batch has left the worker."""
        with self._lock:
            self.strokes += 1
            awaited, self._awaited = self._awaited, False
        if awaited:
            with suppress(BlockingIOError):
                self._clapper.send(b"!")

    def await_next(self, since: int) -> bool:
        """Have the next stroke heard; False: it came already, there were more than `since`."""
        with suppress(BlockingIOError):
            self._ear.recv(64)
        with self._lock:
            self._awaited = self.strokes == since
            return self._awaited

    def fileno(self) -> int:
        """Readable once an awaited stroke has come."""
        return self._ear.fileno()

    def close(self) -> None:
        self._ear.close()
        self._clapper.close()
