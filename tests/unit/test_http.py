"""The HTTP endpoints: what they answer, and which port they take."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import relay.http
from relay.errors import SettingsError
from relay.http import HttpServer
from relay.metrics import Metrics
from relay.settings import Settings


@pytest.fixture(autouse=True, params=[True, False], ids=["pages", "plain"])
def with_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Each test runs with the operator's pages and with the small server that stands in without them."""
    monkeypatch.setattr(relay.http, "has_pages", lambda: request.param)
    return bool(request.param)


def settings(**values: str) -> Settings:
    return Settings(database_url="postgresql://nobody@127.0.0.1:1/none", **values)  # type: ignore[arg-type]


@contextmanager
def serving(server: HttpServer) -> Iterator[HttpServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def taken_port(port: int = 0) -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        yield listener.getsockname()[1]


def get(server: HttpServer, path: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urlopen(Request(f"http://127.0.0.1:{server.port}{path}", method=method), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def any_port() -> Settings:
    return settings(http="127.0.0.1:0")


def test_metrics_are_served_in_the_format_that_was_asked_for() -> None:
    metrics = Metrics()
    metrics.claimed.inc(7)
    with serving(HttpServer(any_port(), metrics, lambda: None)) as server:
        assert "relay_claimed_events_total 7.0" in get(server, "/metrics")[1]
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        with urlopen(
            Request(f"http://127.0.0.1:{server.port}/metrics", headers=accept), timeout=10
        ) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert answer.read().endswith(b"# EOF\n")


def test_the_process_is_alive_even_where_it_is_not_ready() -> None:
    reason: list[str | None] = ["not connected to the database"]
    with serving(HttpServer(any_port(), Metrics(), lambda: reason[0])) as server:
        assert get(server, "/livez") == (200, "alive\n")
        assert get(server, "/readyz") == (503, "not connected to the database\n")
        reason[0] = None
        assert get(server, "/readyz?verbose=1") == (200, "ready\n")


def test_a_process_that_only_a_restart_would_help_is_not_alive() -> None:
    wrong: list[str | None] = [None]
    with serving(HttpServer(any_port(), Metrics(), lambda: None, lambda: wrong[0])) as server:
        assert get(server, "/livez") == (200, "alive\n")
        wrong[0] = "the publisher hangs"
        assert get(server, "/livez") == (503, "the publisher hangs\n")
        assert get(server, "/readyz")[0] == 200


def test_a_readiness_that_hangs_does_not_hold_up_the_others() -> None:
    release = threading.Event()

    def hangs() -> None:
        release.wait(30)

    with serving(HttpServer(any_port(), Metrics(), hangs)) as server:
        stuck = HTTPConnection("127.0.0.1", server.port or 0, timeout=30)
        stuck.request("GET", "/readyz")
        assert get(server, "/livez")[0] == 200
        release.set()
        assert stuck.getresponse().status == 200
        stuck.close()


@pytest.mark.parametrize("path", ["/metrics/", "/metricsx", "/../livez"])
def test_everything_else_is_not_found(path: str) -> None:
    with serving(HttpServer(any_port(), Metrics(), lambda: None)) as server:
        assert get(server, path)[0] == 404


def test_head_answers_without_a_body_and_other_methods_are_refused() -> None:
    with serving(HttpServer(any_port(), Metrics(), lambda: None)) as server:
        assert get(server, "/livez", "HEAD") == (200, "")
        assert get(server, "/livez", "POST")[0] in (405, 501)


def test_the_first_page_is_there_or_says_what_to_install(with_pages: bool) -> None:
    with serving(HttpServer(any_port(), Metrics(), lambda: None)) as server:
        status, text = get(server, "/")
    if with_pages:
        assert status == 200
        assert "<main" in text
    else:
        assert (status, text) == (404, "this page needs the extra 'web': pip install 'outbox-relay[web]'\n")


def test_a_busy_default_port_moves_to_the_next_free_one_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with taken_port() as port:
        default = settings()
        monkeypatch.setitem(default.__dict__, "http", f"127.0.0.1:{port}")
        with serving(HttpServer(default, Metrics(), lambda: None)) as server:
            assert server.port is not None
            assert server.port > port
            assert get(server, "/livez")[0] == 200
            assert f"port {port} is in use: metrics and health are on port {server.port}" in caplog.text


def test_a_busy_port_that_was_chosen_is_an_error_in_the_settings() -> None:
    with taken_port() as port, pytest.raises(SettingsError, match=f"http = 127.0.0.1:{port} is in use"):
        HttpServer(settings(http=f"127.0.0.1:{port}"), Metrics(), lambda: None).start()


def test_an_address_that_is_not_this_machines_is_an_error_in_the_settings() -> None:
    with pytest.raises(SettingsError, match=r"http = 192\.0\.2\.1:80 cannot be used"):
        HttpServer(settings(http="192.0.2.1:80"), Metrics(), lambda: None).start()


def test_it_can_be_switched_off() -> None:
    server = HttpServer(settings(http="off"), Metrics(), lambda: None)
    with serving(server):
        assert server.port is None


def test_stopping_frees_the_port_at_once_and_twice_is_fine() -> None:
    server = HttpServer(any_port(), Metrics(), lambda: None)
    server.start()
    port = server.port
    assert port is not None
    get(server, "/livez")
    server.stop()
    server.stop()
    assert server.port is None
    with serving(HttpServer(settings(http=f"127.0.0.1:{port}"), Metrics(), lambda: None)) as again:
        assert again.port == port
    assert not [thread for thread in threading.enumerate() if thread.name == "relay-http"]
