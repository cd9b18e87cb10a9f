"""Publishes each event as one signed HTTP POST to the URL that is its destination.

Guarantees: delivered means a 2xx answer. Of a key one request is under way at a time, and behind one that
was not delivered nothing of that key is sent. The call ends by its deadline and a request by its timeout,
both as wholes, however slowly a server sends. Redirects are not followed, proxies of the environment not
used, private addresses not reached unless allowed.

Whatever is told to people names the host only: a URL may contain secrets.
"""

import logging
import os
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from time import monotonic, time
from traceback import format_tb
from typing import Any

from publishers import classify
from publishers.classify import Trouble
from relay.errors import MissingExtra, SettingsError
from relay.event import Event
from relay.message import Format
from relay.outcome import Delivered, Outcome, Unconfirmed

try:
    import httpcore
    import httpx
except ImportError as error:
    raise MissingExtra("the webhook publisher", "webhook") from error

from publishers.addresses import AddressRefused, Resolver
from publishers.http_headers import request_headers
from publishers.http_network import Network
from publishers.signing import sign
from publishers.webhook_call import Call
from publishers.webhook_target import Secrets, Target, target_of

log = logging.getLogger(__name__)
# Its debug lines quote answers, and the Location of a redirect may repeat a URL with its secrets.
logging.getLogger("httpcore").setLevel(logging.INFO)

CONNECTIONS = 32
IDLE_SECONDS = 30.0
BODY_BYTES = 64 * 1024
BODY_SECONDS = 1.0
LONGEST_RETRY_AFTER = 3600.0
CLOSE_SECONDS = 3.0
# Left at the end of a call for threads to report what happened to them.
REPORT_SECONDS = 0.05


CLOSED = Unconfirmed("the publisher was closed", "broker", holds=None)
NO_THREAD = Unconfirmed(
    "every thread still waits for the name resolver of this machine", "broker", holds="host"
)


class WebhookPublisher:
    def __init__(self, options: Mapping[str, Any], getaddrinfo: Resolver = socket.getaddrinfo) -> None:
        destination = str(options.get("destination", "https://"))
        if not destination.lower().startswith(("http://", "https://")):
            raise SettingsError(
                "publisher = 'webhook' needs a destination that is an http or https URL: set destination or"
                " RELAY_DESTINATION, e.g. https://hooks.example.com/{event_type}"
            )
        self._secrets = Secrets(options.get("secret"))
        self._timeout = float(options.get("timeout_seconds", 10.0))
        if not self._timeout > 0:
            raise SettingsError("[webhook] timeout_seconds must be more than 0")
        self._format: Format = options.get("format", "plain")
        self._network = Network(bool(options.get("allow_private", False)), getaddrinfo)
        self._pool = _pool(self._network)
        self._threads: list[threading.Thread] = []
        self._closed = False

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        if self._closed:
            return [CLOSED] * len(events)
        targets = [target_of(event.destination) for event in events]
        call = Call(events, [target.host for target in targets], deadline - REPORT_SECONDS)
        # Threads that an earlier call left to the resolver count: there are never more than this.
        waiting = [thread for thread in self._threads if thread.is_alive()]
        if events and len(waiting) >= CONNECTIONS:
            return [NO_THREAD] * len(events)
        threads = [
            threading.Thread(target=self._work, args=(call, targets, deadline), name="webhook", daemon=True)
            for _ in range(min(call.width, CONNECTIONS - len(waiting)))
        ]
        for thread in threads:
            thread.start()
        self._threads = waiting + threads
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))
        return call.finish()

    def close(self) -> None:
        self._closed = True
        self._network.cut()
        until = monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        self._pool.close()

    def _work(self, call: Call, targets: Sequence[Target], deadline: float) -> None:
        while (turn := call.take()) is not None:
            target = targets[turn.place]
            trouble: Trouble | None = None
            outcome: Outcome
            try:
                trouble, outcome = self._send(turn.event, target, deadline - REPORT_SECONDS)
            except Exception as error:  # noqa: BLE001 - every event gets an outcome, whatever happens
                # Not the error's own text, which may quote the URL.
                where = "".join(format_tb(error.__traceback__))
                log.error("posting to %s failed with %s:\n%s", target.host, type(error).__name__, where)
                outcome = Unconfirmed(f"posting to {target.host} failed: {type(error).__name__}")
            call.settle(turn, outcome, of_host=trouble is Trouble.HOST)

    def _send(self, event: Event, target: Target, deadline: float) -> tuple[Trouble | None, Outcome]:
        """Whose trouble it was, if any, and what became of the event."""
        if target.url is None:
            reason = f"the destination {target.host} is no http or https URL"
            return _trouble("url", f"{reason}: the row's own destination must be one")
        started = monotonic()
        until = min(deadline, started + self._timeout)
        try:
            status, retry_after = self._post(event, target, target.url, until)
        except AddressRefused as refused:
            return _trouble(
                "private",
                f"{target.host} is at {refused}, which is no public address:"
                " set [webhook] allow_private if it is meant",
            )
        except (
            httpcore.TimeoutException,
            httpcore.NetworkError,
            httpcore.RemoteProtocolError,
            TimeoutError,  # its time was up before anything was sent
        ) as error:
            return (
                (None, CLOSED) if self._closed else _trouble(*_explain(error, target.host, until - started))
            )
        if 200 <= status < 300:
            return None, Delivered(str(status))
        return _trouble(status, _describe(target.host, status), retry_after)

    def _post(
        self, event: Event, target: Target, url: httpcore.URL, until: float
    ) -> tuple[int, float | None]:
        """The answer's status and Retry-After. Tries again where a kept connection turns out to be dead."""
        while True:
            with self._network.until(until):
                try:
                    return self._exchange(event, target, url)
                except (httpcore.ReadError, httpcore.WriteError, httpcore.RemoteProtocolError):
                    if self._network.connected or self._closed:
                        raise

    def _exchange(self, event: Event, target: Target, url: httpcore.URL) -> tuple[int, float | None]:
        secret = self._secrets.of(target)
        signature = None if secret is None else sign(secret, event.payload)
        headers = request_headers(event, self._format, target.host, target.credentials, signature)
        timeouts = {"timeout": {"pool": self._network.remaining()}}
        with self._pool.stream(
            "POST", url, headers=headers, content=event.payload, extensions=timeouts
        ) as response:
            self._read_out(response)
            return response.status, _retry_after(response.headers)

    def _read_out(self, response: httpcore.Response) -> None:
        """The answer's body is of no interest; read to its end, the connection can be used again."""
        self._network.hasten(monotonic() + BODY_SECONDS)
        left = BODY_BYTES
        try:
            for chunk in response.iter_stream():
                left -= len(chunk)
                if left < 0:
                    return
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
            # The status has been received: what it says stands.
            return


def _pool(network: Network) -> httpcore.ConnectionPool:
    return httpcore.ConnectionPool(
        ssl_context=httpx.create_ssl_context(),
        max_connections=CONNECTIONS,
        keepalive_expiry=IDLE_SECONDS,
        network_backend=network,
    )


def _trouble(what: int | str, reason: str, retry_after: float | None = None) -> tuple[Trouble, Outcome]:
    trouble = classify.webhook(what)
    return trouble, classify.outcome(trouble, reason, retry_after)


def _describe(host: str, status: int) -> str:
    try:
        answer = f"{host} answered {status} {HTTPStatus(status).phrase}"
    except ValueError:
        answer = f"{host} answered {status}"
    return f"{answer}; redirects are not followed" if 300 <= status < 400 else answer


def _explain(error: Exception, host: str, seconds: float) -> tuple[str, str]:
    """The entry of the table and a sentence, in words of our own: the error's may quote the server."""
    match error, error.args[0] if error.args else None:
        case _, socket.gaierror() as cause:
            found = "resolver", f"{host} could not be resolved: {cause.strerror}"
        case _, UnicodeError():
            found = "resolver", f"{host} could not be resolved: it is no name"
        case _, ssl.SSLCertVerificationError() as cause:
            found = "tls", f"the certificate of {host} is not trusted: {cause.verify_message}"
        case _, ssl.SSLError() as cause:
            found = "tls", f"{host} could not be reached by TLS: {cause.reason or 'the connection ended'}"
        case httpcore.TimeoutException() | TimeoutError(), _:
            found = "timeout", f"{host} did not answer within {seconds:.3g} s"
        case httpcore.RemoteProtocolError(), _:
            found = "protocol", f"{host} closed the connection or answered with something that is not HTTP"
        case _, cause:
            number = getattr(cause, "errno", None)
            why = os.strerror(number) if number else "it ended"
            found = "connection", f"the connection to {host} failed: {why}"
    return found


def _retry_after(headers: Sequence[tuple[bytes, bytes]]) -> float | None:
    """Seconds that the server asks to be left alone; an hour at most."""
    for name, value in headers:
        if name.lower() == b"retry-after":
            text = value.decode("latin-1").strip()
            try:
                seconds = float(text) if text.isascii() and text.isdigit() else _seconds_until(text)
            except (ValueError, OverflowError):
                return None
            return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)
    return None


def _seconds_until(date: str) -> float:
    return parsedate_to_datetime(date).timestamp() - time()
