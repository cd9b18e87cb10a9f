"""The proxy that other tests cut, stall and delay connections with."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.servers.process import wait_until
from tests.servers.proxy import TcpProxy

SHORT = 0.15


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                while data := connection.recv(65536):
                    connection.sendall(data)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=echo, args=[listener.accept()[0]], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def echo(echo_port: int, proxy: Callable[[str], TcpProxy]) -> TcpProxy:
    return proxy(f"127.0.0.1:{echo_port}")


@pytest.fixture
def client(echo: TcpProxy) -> Iterator[socket.socket]:
    with connect(echo) as client:
        yield client


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=5)


def say(client: socket.socket, words: bytes) -> bytes:
    client.sendall(words)
    return client.recv(1024)


def hears_nothing(client: socket.socket) -> bool:
    client.settimeout(SHORT)
    try:
        return client.recv(1024) is None
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)


def test_bytes_pass_in_both_directions_and_are_counted(echo: TcpProxy, client: socket.socket) -> None:
    assert say(client, b"hello") == b"hello"
    wait_until(lambda: (echo.bytes_to_server, echo.bytes_to_client) == (5, 5), 5, "the counts")
    assert echo.connections == 1


def test_a_cut_closes_connections_and_refuses_new_ones_until_restored(
    echo: TcpProxy, client: socket.socket
) -> None:
    say(client, b"hello")
    echo.cut()
    assert client.recv(1024) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(echo)
    echo.restore()
    with connect(echo) as again:
        assert say(again, b"hello") == b"hello"
    assert echo.connections == 2


def test_a_drop_closes_connections_and_accepts_new_ones(echo: TcpProxy, client: socket.socket) -> None:
    say(client, b"hello")
    echo.drop()
    assert client.recv(1024) == b""
    with connect(echo) as again:
        assert say(again, b"hello") == b"hello"


@pytest.mark.parametrize("direction", ["to_server", "to_client", "both"])
def test_a_stall_keeps_the_connection_and_the_bytes(
    echo: TcpProxy, client: socket.socket, direction: str
) -> None:
    echo.stall(direction)  # type: ignore[arg-type]
    client.sendall(b"hello")
    assert hears_nothing(client)
    assert echo.open_connections == 1
    assert echo.bytes_to_server == (5 if direction == "to_client" else 0)
    assert echo.bytes_to_client == 0
    echo.restore()
    assert client.recv(1024) == b"hello"


def test_a_delay_holds_bytes_back(echo: TcpProxy, client: socket.socket) -> None:
    echo.delay(2 * SHORT)
    client.sendall(b"hello")
    assert hears_nothing(client)
    assert client.recv(1024) == b"hello"


def test_a_peer_that_hangs_up_is_passed_on(echo: TcpProxy, client: socket.socket) -> None:
    say(client, b"hello")
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1024) == b""
    wait_until(lambda: echo.open_connections == 0, 5, "the connection to end")


def test_a_url_keeps_everything_but_its_address(echo: TcpProxy) -> None:
    through = echo.url("postgresql://me:secret@db.example:5432/shop?sslmode=disable")
    assert through == f"postgresql://me:secret@127.0.0.1:{echo.port}/shop?sslmode=disable"
