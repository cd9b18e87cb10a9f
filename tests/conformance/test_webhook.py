"""The suite against a real HTTP server."""

from collections.abc import Iterator

import pytest

from publishers.http_headers import from_text
from publishers.webhook import WebhookPublisher
from relay.event import Event
from relay.testing import PublisherConformance, Received
from tests.servers.web import Request, WebServer, Writer, answer

ABOUT_THE_REQUEST = {"host", "user-agent", "content-type", "content-length", "idempotency-key"}


class WebhookRig:
    def __init__(self, server: WebServer) -> None:
        self._server = server
        server.behave = self._behave
        self._taken: list[Request] = []
        self.destination = server.url("/hook")

    async def _behave(self, request: Request, writer: Writer) -> None:
        if request.target == "/refuse":
            await answer(422)(request, writer)
        else:
            self._taken.append(request)
            await answer(200)(request, writer)

    def make(self) -> WebhookPublisher:
        return WebhookPublisher({"allow_private": True})

    def received(self, at_least: int) -> list[Received]:
        self._server.wait_for(requests=at_least)
        return [_received(request) for request in self._taken]

    def undeliverable(self, event: Event) -> Event:
        return event._replace(destination=self._server.url("/refuse"))


def _received(request: Request) -> Received:
    headers = {
        name: from_text(value)
        for name, value in request.headers
        if name.lower() not in ABOUT_THE_REQUEST and not name.startswith("X-Outbox-")
    }
    return Received(from_text(request.header("Idempotency-Key") or ""), request.body, headers)


class TestWebhook(PublisherConformance):
    @pytest.fixture
    def rig(self) -> Iterator[WebhookRig]:
        with WebServer() as server:
            yield WebhookRig(server)
