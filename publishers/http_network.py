"""The sockets under httpcore's connection pool: every wait ends by the request's deadline.

httpcore's own timeouts start again with every byte that arrives, so a server that sends one byte at a time
holds a request for as long as it likes. Here each wait gets what is left of the request's time. Addresses
are checked before the connection is made (publishers/addresses.py). `cut` ends all waits at once.
"""

import select
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

import httpcore

from publishers.addresses import Address, Resolver, resolve


class Network(httpcore.NetworkBackend):
    def __init__(self, allow_private: bool, getaddrinfo: Resolver = socket.getaddrinfo) -> None:
        self._allow_private = allow_private
        self._getaddrinfo = getaddrinfo
        self._request = threading.local()  # a request belongs to one thread
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_cut = False

    @contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """What this thread does inside ends by the deadline."""
        self._request.deadline = deadline
        self._request.connected = False
        try:
            yield
        finally:
            del self._request.deadline

    def hasten(self, deadline: float) -> None:
        """End what this thread is doing by this deadline, if it is the earlier one."""
        self._request.deadline = min(self._request.deadline, deadline)

    @property
    def connected(self) -> bool:
        """Whether this thread made a new connection since it entered `until`."""
        return bool(self._request.connected)

    def remaining(self) -> float:
        seconds = float(self._request.deadline) - monotonic()
        if seconds <= 0:
            raise TimeoutError("the deadline has passed")
        return seconds

    def cut(self) -> None:
        """End every wait that is under way, and refuse new connections."""
        with self._lock:
            self._is_cut = True
            for sock in self._open:
                with suppress(OSError):
                    # Not SSLSocket's own shutdown: after it, a write that races with us would be in clear.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def opened(self, sock: socket.socket) -> None:
        with self._lock:
            if self._is_cut:
                sock.close()
                raise ConnectionAbortedError("the publisher was closed")
            self._open.add(sock)

    def closed(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.discard(sock)
            sock.close()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        self._request.connected = True
        with _as(httpcore.ConnectTimeout, httpcore.ConnectError):
            addresses = resolve(host, port, self._allow_private, self._getaddrinfo)
            return Stream(self._connect(addresses), self)

    def _connect(self, addresses: list[Address]) -> socket.socket:
        failure: OSError = OSError("the name has no address")
        for left, (family, sockaddr) in zip(range(len(addresses), 0, -1), addresses, strict=True):
            seconds = self.remaining() / left
            sock = socket.socket(family, socket.SOCK_STREAM)
            self.opened(sock)
            try:
                sock.settimeout(seconds)
                sock.connect(sockaddr)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except OSError as error:
                self.closed(sock)
                failure = error
        raise failure


class Stream(httpcore.NetworkStream):
    def __init__(self, sock: socket.socket, network: Network) -> None:
        self._sock = sock
        self._network = network

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _as(httpcore.ReadTimeout, httpcore.ReadError):
            self._sock.settimeout(self._network.remaining())
            return self._sock.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        left = memoryview(buffer)
        with _as(httpcore.WriteTimeout, httpcore.WriteError):
            while left:
                self._sock.settimeout(self._network.remaining())
                left = left[self._sock.send(left) :]

    def close(self) -> None:
        self._network.closed(self._sock)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        try:
            with _as(httpcore.ConnectTimeout, httpcore.ConnectError):
                self._sock.settimeout(self._network.remaining())
                secured = ssl_context.wrap_socket(
                    self._sock, server_hostname=server_hostname, do_handshake_on_connect=False
                )
                # The plain socket is an empty shell from here on.
                self._network.closed(self._sock)
                self._network.opened(secured)
                self._sock = secured
                secured.do_handshake()
        except BaseException:
            self.close()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return _readable(self._sock)
        if info == "ssl_object" and isinstance(self._sock, ssl.SSLSocket):
            return self._sock
        return None


def _readable(sock: socket.socket) -> bool:
    """Whether a read would not wait: on an idle connection, that the server has closed it."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


@contextmanager
def _as(timeout: type[Exception], failure: type[Exception]) -> Iterator[None]:
    """Errors of sockets as httpcore names them, the error itself inside: the pool drops causes."""
    try:
        yield
    except TimeoutError as error:
        raise timeout(error) from error
    except (OSError, UnicodeError) as error:  # the latter for a name that no resolver can be asked for
        raise failure(error) from error
