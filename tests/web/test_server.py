"""The pages' server: who says nothing holds nobody up, least of all the probes."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from relay.web import server, shield
from tests.web.client import Client
from tests.web.conftest import Serve

PROBES = ("/livez", "/readyz", "/metrics")
HALF_A_REQUEST = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def visitor(serve: Serve) -> Client:
    return Client(serve().port or 0)


@pytest.fixture
def sockets(visitor: Client) -> Iterator[list[socket.socket]]:
    """As many connections as fill the server, and more, over which nobody says anything."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", visitor.port), timeout=30))
            for _ in range(server.MOST_CONNECTIONS + 20)
        ]


def test_clients_that_say_nothing_do_not_hold_up_the_others(
    visitor: Client, sockets: list[socket.socket]
) -> None:
    for path in (*PROBES, "/api/events", "/"):
        assert visitor.get(path).status == 200, path
    assert sockets[0].recv(1) == b"", "the one that was silent longest gives way"


@pytest.mark.parametrize("said", [b"", HALF_A_REQUEST, HALF_A_REQUEST + b"\r\n" + HALF_A_REQUEST])
def test_a_client_that_asks_nothing_is_hung_up_on(
    visitor: Client, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", visitor.port), timeout=30) as silent:
        silent.sendall(said)
        answers = b"".join(iter(lambda: silent.recv(4096), b""))
    assert answers.count(b"HTTP/1.1 200") == said.count(b"\r\n\r\n")


def test_probes_are_answered_while_requests_without_end_are_under_way(
    visitor: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shield, "MOST_REQUESTS", 3)
    endless = (
        "POST /api/sign-in HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
    )
    with ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", visitor.port), timeout=30))
            client.sendall(endless.encode())
            assert client.recv(4096).startswith(b"HTTP/1.1 100"), "it is under way"
        for path in PROBES:
            assert visitor.get(path).status == 200, path
        refused = visitor.get("/api/events")
        assert (refused.status, refused.json["error"]) == (503, "busy")
        assert refused.headers["retry-after"] == "2"
