"""A TCP proxy that can cut, stall and delay: the fault that a network makes, on demand.

Bytes that are stalled or delayed are kept and delivered in order afterwards, as a network would.
"""

import contextlib
import socket
import threading
import time
from typing import Literal, Self
from urllib.parse import urlsplit

Direction = Literal["to_server", "to_client", "both"]


class TcpProxy:
    def __init__(self, target_host: str, target_port: int, *, port: int = 0) -> None:
        self.target = (target_host, target_port)
        self.connections = 0
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self._delay = 0.0
        self._refusing = False
        self._closed = False
        self._lock = threading.Lock()
        self._flowing = {"to_server": threading.Event(), "to_client": threading.Event()}
        for flowing in self._flowing.values():
            flowing.set()
        self._open: set[socket.socket] = set()
        self._listener = self._listen(port)
        self.host = "127.0.0.1"
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self, url: str) -> str:
        """The same URL, through this proxy."""
        parts = urlsplit(url)
        credentials, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{credentials}{at}{self.address}").geturl()

    @property
    def open_connections(self) -> int:
        with self._lock:
            return len(self._open) // 2

    def cut(self) -> None:
        """Close every connection and refuse new ones until `restore`."""
        with self._lock:
            self._refusing = True
        self._shut(self._listener)
        self.drop()

    def drop(self) -> None:
        """Close every connection once; new ones are welcome."""
        with self._lock:
            sockets, self._open = self._open, set()
        for sock in sockets:
            self._shut(sock)

    def stall(self, direction: Direction = "both") -> None:
        """Forward nothing more in this direction; connections stay open and new ones are accepted."""
        for name, flowing in self._flowing.items():
            if direction in (name, "both"):
                flowing.clear()

    def delay(self, seconds: float) -> None:
        """Hold each piece of data for this long, in both directions."""
        self._delay = seconds

    def restore(self) -> None:
        """Behave again."""
        self._delay = 0.0
        for flowing in self._flowing.values():
            flowing.set()
        with self._lock:
            refusing, self._refusing = self._refusing, False
        if refusing and not self._closed:
            self._listener = self._listen(self.port)
            threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self.cut()
        self.restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _listen(port: int) -> socket.socket:
        return socket.create_server(("127.0.0.1", port), backlog=128)

    @staticmethod
    def _shut(sock: socket.socket) -> None:
        # A shutdown wakes the thread that blocks on the socket; closing alone would not.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.target, timeout=5)
            except OSError:
                self._shut(client)
                continue
            server.settimeout(None)
            with self._lock:
                if self._refusing:
                    self._shut(client)
                    self._shut(server)
                    return
                self.connections += 1
                self._open |= {client, server}
            for source, sink, name in ((client, server, "to_server"), (server, client, "to_client")):
                with contextlib.suppress(OSError):  # it may have been dropped already
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=[source, sink, name], daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        flowing = self._flowing[name]
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._delay:
                    time.sleep(self._delay)
                flowing.wait()
                sink.sendall(data)
                with self._lock:
                    if name == "to_server":
                        self.bytes_to_server += len(data)
                    else:
                        self.bytes_to_client += len(data)
        flowing.wait()  # a peer that hangs up is not heard through a stalled direction either
        with self._lock:
            self._open -= {source, sink}
        self._shut(source)
        self._shut(sink)
