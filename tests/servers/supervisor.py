"""Owns the servers that all test processes of a run share.

The pytest process that the user started launches one supervisor and holds the other end of its stdin.
Test processes ask for a server by name over a socket; the first to ask makes it start, all get the same
answer. When stdin closes, however the run ended, the supervisor stops every server and exits.

It answers one question at a time, from one thread: the servers end with the thread that started them.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol

from relay.demo.postgres import PostgresServer, ServerError
from tests.servers import containers, postgres
from tests.servers.kafka import KafkaBroker
from tests.servers.rabbitmq import RabbitNode

ADDRESS = "RELAY_TEST_SUPERVISOR"
Answer = dict[str, Any]


class Stoppable(Protocol):
    def stop(self) -> None: ...


class SupervisorHandle:
    """The pytest process's end: closing it ends the supervisor and with it all servers."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="outbox-relay-tests-"))
        address = self.directory / "supervisor"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen(128)
            fd = listener.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.servers.supervisor", str(fd), str(self.directory)],
                cwd=Path(__file__).resolve().parents[2],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[fd],
                start_new_session=True,  # a Ctrl-C is for pytest alone
            )
        os.environ[ADDRESS] = str(address)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        os.environ.pop(ADDRESS, None)


def ask(name: str) -> Answer:
    """The server of this name: where it is, or under `missing` why there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        connection.sendall(f"{name}\n".encode())
        with connection.makefile() as lines:
            answer: Answer = json.loads(lines.readline())
    return answer


def run_directory() -> Path:
    """A directory that all test processes of this run share."""
    return Path(os.environ[ADDRESS]).parent


class Supervisor:
    def __init__(self) -> None:
        self._owned: list[Stoppable] = []
        self._answers: dict[str, Answer] = {}
        self._docker: bool | None = None

    def answer(self, name: str) -> Answer:
        if name not in self._answers:
            try:
                self._answers[name] = self._start(name)
            except ServerError as error:
                self._answers[name] = {"missing": str(error)}
        return self._answers[name]

    def stop(self) -> None:
        for server in reversed(self._owned):
            server.stop()

    def _start(self, name: str) -> Answer:
        if self._docker is None:
            self._docker = containers.docker_answers()
        if self._docker:
            container, where = containers.start(name)
            self._owned.append(container)
            return where
        match name:
            case "postgres15":
                return self._postgres(postgres.distribution())
            case "postgres18":
                return self._postgres(postgres.embedded())
            case "kafka":
                broker = KafkaBroker()
                self._owned.append(broker)
                broker.start()
                return {
                    "address": broker.address,
                    "proxied_port": broker.proxied_port,
                    "proxied_target": broker.proxied_target,
                }
            case "rabbitmq":
                node = RabbitNode()
                self._owned.append(node)
                node.start()
                return {"url": node.url}
        raise ServerError(f"There is no server called {name}.")

    def _postgres(self, server: PostgresServer) -> Answer:
        self._owned.append(server)
        server.start()
        return {"url": server.url()}


def serve(listener: socket.socket, supervisor: Supervisor) -> None:
    """Answer until stdin closes."""
    while True:
        readable, _, _ = select.select([sys.stdin, listener], [], [])
        if sys.stdin in readable:
            return
        connection, _ = listener.accept()
        # Whoever asked may be gone by the time the server is up.
        with contextlib.suppress(OSError), connection, connection.makefile("rw") as lines:
            lines.write(json.dumps(supervisor.answer(lines.readline().strip())) + "\n")


def main() -> None:
    fd, directory = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    supervisor = Supervisor()
    try:
        serve(socket.socket(fileno=int(fd)), supervisor)
    finally:
        supervisor.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
