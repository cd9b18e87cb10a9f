"""The parent's end of the processes under test: started together, set off together, always ended."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from time import monotonic
from typing import Any

from relay.bench.local_processes import read_stat
from relay.errors import RelayError

START_SECONDS = 60.0
END_SECONDS = 10.0

# Not fork: clients of brokers do not survive one, and memory would be counted that is the parent's.
_SPAWN = multiprocessing.get_context("spawn")


class Child:
    """One process that runs `target(pipe, job)`."""

    def __init__(self, target: Callable[[Pipe, Any], None], job: Any) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=target, args=(theirs, job), daemon=True)
        with _ctrl_c_is_ours():
            self._process.start()
        theirs.close()

    def send(self, message: str) -> None:
        self._pipe.send(message)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def cpu(self) -> float:
        """Seconds that it has used so far."""
        stat = read_stat(self.pid)
        return stat.cpu if stat else 0.0

    def receive(self, seconds: float | None = None, meanwhile: Callable[[], None] = lambda: None) -> Any:
        """The next message; what the process failed with is raised. `meanwhile` is called while waiting."""
        deadline = None if seconds is None else monotonic() + seconds
        while not self._pipe.poll(0.2):
            meanwhile()
            if deadline is not None and monotonic() > deadline:
                raise RelayError(f"a process of the bench did not answer in {seconds:.0f} s")
        try:
            message = self._pipe.recv()
        except EOFError:
            self._process.join(END_SECONDS)
            raise RelayError(f"a process of the bench ended with {self._process.exitcode}") from None
        if isinstance(message, BaseException):
            raise message
        return message

    def end(self) -> None:
        self._pipe.close()
        self._process.join(0.5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextmanager
def children(target: Callable[[Pipe, Any], None], jobs: Sequence[Any]) -> Iterator[list[Child]]:
    """Processes that are ready to go; gone afterwards, whatever happened."""
    started: list[Child] = []
    try:
        for job in jobs:
            child = Child(target, job)
            started.append(child)
        for child in started:
            child.receive(START_SECONDS)
        yield started
    finally:
        for child in started:
            child.end()


@contextmanager
def _ctrl_c_is_ours() -> Iterator[None]:
    """A process started inside never sees the terminal's Ctrl-C: the parent ends it in order."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
