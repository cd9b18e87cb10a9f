"""A proxy before a Kafka broker that knows requests from one another, and can hold a produce request back.

What is between two requests of one client can so be made to happen, not just hoped for.
"""

import contextlib
import socket
import struct
import threading
from typing import BinaryIO, Self

from tests.servers.kafka import KafkaBroker

PRODUCE = 0


class KafkaGate:
    """Stands where the broker's `proxied_port` is."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._target = ("127.0.0.1", broker.proxied_target)
        self._held_number = 0
        self._passed = 0
        self._lock = threading.Lock()
        self._open = threading.Event()
        self.held = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", broker.proxied_port))
        self.address = f"127.0.0.1:{broker.proxied_port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, number: int) -> None:
        """Let the next `number` - 1 produce requests pass and keep the one after; `held` says when."""
        with self._lock:
            self._held_number = self._passed + number

    def release(self) -> None:
        self._open.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                threading.Thread(target=self._forward_requests, args=[client, server], daemon=True).start()
                threading.Thread(target=self._forward_answers, args=[server, client], daemon=True).start()

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), client.makefile("rb") as requests:
            while request := _read_request(requests):
                if struct.unpack_from(">h", request, 4)[0] == PRODUCE:
                    self._pass()
                server.sendall(request)

    def _pass(self) -> None:
        with self._lock:
            self._passed += 1
            mine = self._passed == self._held_number
        if mine:
            self.held.set()
            self._open.wait()

    @staticmethod
    def _forward_answers(server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)


def _read_request(requests: BinaryIO) -> bytes:
    size = requests.read(4)
    return size + requests.read(struct.unpack(">i", size)[0]) if len(size) == 4 else b""
