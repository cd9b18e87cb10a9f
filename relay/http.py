"""The relay's HTTP endpoints: /metrics, /livez, /readyz.

/livez answers as long as the process does, without asking the database; /readyz says 503 and why while the
relay is not relaying. The default port moves to the next free one; a port that somebody chose must be free.
"""

import errno
import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from prometheus_client.exposition import choose_encoder

from relay.errors import SettingsError
from relay.metrics import Metrics
from relay.settings import Settings

log = logging.getLogger(__name__)

PORTS_TO_TRY = 100
TEXT = "text/plain; charset=utf-8"

Readiness = Callable[[], str | None]


class HttpServer:
    """One server on the setting `http`; readiness() says None when ready, otherwise why not."""

    def __init__(self, settings: Settings, metrics: Metrics, readiness: Readiness) -> None:
        self._address = settings.http
        self._chosen = "http" in settings.model_fields_set
        self._handler = _handler(metrics, readiness)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int | None:
        """The port in use; None while stopped or switched off."""
        return int(self._server.server_address[1]) if self._server else None

    def start(self) -> None:
        """Listen; SettingsError where the address cannot be used."""
        if self._address == "off" or self._server is not None:
            return
        host, _, port = self._address.rpartition(":")
        self._server = self._bind(host.strip("[]"), int(port))
        serve = partial(self._server.serve_forever, poll_interval=0.1)
        self._thread = threading.Thread(target=serve, name="relay-http", daemon=True)
        self._thread.start()
        log.info("metrics and health on http://%s:%d", host, self.port)

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        if self._thread is not None:
            self._thread.join()

    def _bind(self, host: str, port: int) -> "_Server":
        last = port if self._chosen else min(port + PORTS_TO_TRY, 65535)
        for candidate in range(port, last + 1):
            try:
                server = _Server(host, candidate, self._handler)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise SettingsError(f"http = {self._address} cannot be used: {error.strerror}") from error
                continue
            if candidate != port:
                log.warning("port %d is in use: metrics and health are on port %d", port, candidate)
            return server
        raise SettingsError(
            f"http = {self._address} is in use: choose another port or stop what listens there"
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        super().__init__(address[:2], handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        # Not HTTPServer's own, which asks the DNS for this host's name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


def _handler(metrics: Metrics, readiness: Readiness) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # of a client that sends nothing
        server_version = "outbox-relay"
        sys_version = ""

        def do_GET(self) -> None:
            match urlsplit(self.path).path:
                case "/metrics":
                    encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                    self._answer(HTTPStatus.OK, encode(metrics.registry), content_type)
                case "/livez":
                    self._say(HTTPStatus.OK, "alive")
                case "/readyz":
                    reason = readiness()
                    status = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
                    self._say(status, reason or "ready")
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
