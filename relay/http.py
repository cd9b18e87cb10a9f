"""The relay's HTTP address: /metrics, /livez, /readyz, and the operator's pages where the extra `web` is.

/livez says 503 where only a restart would help and asks no database; /readyz says 503 and why while the relay
is not relaying. The default port moves to the next free one; a port that somebody chose must be free.
Without the extra a small server of the standard library answers the same three, and says what to install.
"""

import errno
import logging
import socket
import threading
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import urlsplit

from relay.errors import MissingExtra, SettingsError
from relay.metrics import Metrics
from relay.probes import TEXT, Probe, always, livez, metrics_answer, readyz
from relay.settings import Settings

log = logging.getLogger(__name__)

PORTS_TO_TRY = 100
BACKLOG = 128


def has_pages() -> bool:
    """Whether the extra `web` is installed."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn"))


class _Serving(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


class HttpServer:
    """One server on the setting `http`; a probe says None when all is well, otherwise what is not."""

    def __init__(
        self, settings: Settings, metrics: Metrics, readiness: Probe, liveness: Probe = always
    ) -> None:
        self._settings = settings
        self._address = settings.http
        self._chosen = "http" in settings.model_fields_set
        self._metrics = metrics
        self._readiness = readiness
        self._liveness = liveness
        self._port: int | None = None
        self._server: _Serving | None = None

    @property
    def port(self) -> int | None:
        """The port in use; None while stopped or switched off."""
        return self._port

    def start(self) -> None:
        """Listen; SettingsError where the address cannot be used."""
        if self._address == "off" or self._server is not None:
            return
        host, _, port = self._address.rpartition(":")
        listener = self._bind(host.strip("[]"), int(port))
        self._port = int(listener.getsockname()[1])
        try:
            self._server = self._serving(listener)
            self._server.start()
        except BaseException:
            listener.close()
            self._server = self._port = None
            raise
        what = "metrics, health and the operator's pages" if has_pages() else "metrics and health"
        log.info("%s on http://%s:%d", what, host, self._port)

    def stop(self) -> None:
        server, self._server, self._port = self._server, None, None
        if server is not None:
            server.stop()

    def _serving(self, listener: socket.socket) -> _Serving:
        if not has_pages():
            return _Plain(listener, _handler(self._metrics, self._readiness, self._liveness))
        from relay.web.server import PagesServer  # noqa: PLC0415 - the extra may not be installed

        return PagesServer(listener, self._settings, self._metrics, self._readiness, self._liveness)

    def _bind(self, host: str, port: int) -> socket.socket:
        last = port if self._chosen else min(port + PORTS_TO_TRY, 65535)
        for candidate in range(port, last + 1):
            try:
                listener = _listen(host, candidate)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise SettingsError(f"http = {self._address} cannot be used: {error.strerror}") from error
                continue
            if candidate != port:
                log.warning("port %d is in use: metrics and health are on port %d", port, candidate)
            return listener
        raise SettingsError(
            f"http = {self._address} is in use: choose another port or stop what listens there"
        )


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address[:2])
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class _Plain(ThreadingHTTPServer):
    """The small server, on a socket that listens already."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        address = listener.getsockname()
        super().__init__(address[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = str(address[0]), int(address[1])
        serve = partial(self.serve_forever, poll_interval=0.1)
        self._thread = threading.Thread(target=serve, name="relay-http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


def _handler(metrics: Metrics, readiness: Probe, liveness: Probe) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # of a client that sends nothing
        server_version = "outbox-relay"
        sys_version = ""

        def do_GET(self) -> None:
            match urlsplit(self.path).path:
                case "/metrics":
                    self._answer(*metrics_answer(metrics, self.headers.get("Accept", "")))
                case "/livez":
                    self._answer(*livez(liveness))
                case "/readyz":
                    self._answer(*readyz(readiness))
                case "/":
                    self._say(HTTPStatus.NOT_FOUND, str(MissingExtra("this page", "web")))
                case _:
                    self._say(HTTPStatus.NOT_FOUND, "not found: see /metrics, /livez, /readyz")

        do_HEAD = do_GET  # noqa: N815

        def _say(self, status: HTTPStatus, text: str) -> None:
            self._answer(status, f"{text}\n".encode(), TEXT)

        def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            log.debug("http: %s", format % args)

    return Handler
