"""What the Kafka and RabbitMQ servers of the tests share: a process with a directory and a log."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from relay.demo.postgres import ServerError, launch


class ServerProcess:
    """A server that is started, stopped, killed and frozen; `_argv` says how it is run.

    It runs in a session of its own, so that signals reach every process it has started.
    """

    name = "server"
    start_seconds = 60.0
    account: pwd.struct_passwd | None = None  # whom it runs as; None: ourselves

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix=f"outbox-relay-{self.name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    def _argv(self) -> Sequence[str]:
        raise NotImplementedError

    def _env(self) -> Mapping[str, str] | None:
        return None

    def _answers(self) -> bool:
        raise NotImplementedError

    def _prepare(self) -> None:
        """What is needed before the first start and may be repeated."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError(f"{self.name} is not running.")
        return self._process.pid

    @property
    def log(self) -> str:
        path = self.home / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def launch(self) -> None:
        """Start without waiting for the server to answer."""
        if self.running:
            return
        self._prepare()
        with (self.home / "server.log").open("ab") as log:
            self._process = launch(self._argv(), log, account=self.account, cwd=self.home, env=self._env())

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        wait_until(lambda: self._answers() or not self.running, self.start_seconds, f"{self.name} to answer")
        if not self.running:
            raise ServerError(f"{self.name} did not start:\n{self.log[-2000:]}")

    def terminate(self) -> None:
        """End in an orderly way and keep the data; `start` goes on from there."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and keep the data."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.terminate()
        self.start()

    def stop(self) -> None:
        """End and forget everything."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)

    def pause(self) -> None:
        """Freeze: connections stay open, nothing answers."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(f"Waited {seconds:g} s for {what}.")
        time.sleep(0.05)


def accepts_connections(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
