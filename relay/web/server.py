"""Runs the pages in a thread of their own, on a socket that is already bound.

A connection that asks nothing is ended after its time, and sooner where there are many: the one that was
silent longest gives way to the newest. So nobody who only connects keeps a probe from its answer.
"""

import asyncio
import logging
import socket
import threading
from contextlib import suppress
from typing import cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from relay.errors import RelayError
from relay.metrics import Metrics
from relay.probes import Probe, always
from relay.settings import Settings
from relay.web.app import Pages

START_SECONDS = 10.0
GOODBYE_SECONDS = 1
TICK_SECONDS = 1.0
MOST_CONNECTIONS = 200
SILENT_SECONDS = 10.0


class PagesServer:
    """Serves until stopped; takes the socket over."""

    def __init__(
        self,
        listener: socket.socket,
        settings: Settings,
        metrics: Metrics,
        readiness: Probe,
        liveness: Probe = always,
    ) -> None:
        self._listener = listener
        pages = Pages(settings, metrics, readiness, liveness)
        config = uvicorn.Config(
            pages.app,
            http=_Connection,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            lifespan="on",
            ws="none",
            timeout_keep_alive=round(SILENT_SECONDS),
            timeout_graceful_shutdown=GOODBYE_SECONDS,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=[[listener]], name="relay-http", daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        if not self._server.up.wait(START_SECONDS):
            raise RelayError("the operator's pages did not start: see the log")

    def stop(self) -> None:
        self._server.leave()
        self._thread.join()
        self._listener.close()


class _Connection(H11Protocol):
    """Knows since when it asks nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._silent_since = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            others = [one for one in self.connections if isinstance(one, _Connection) and one is not self]
            max(others, key=_Connection.silent_seconds).end_if_silent()

    def on_response_complete(self) -> None:
        self._silent_since = self.loop.time()
        super().on_response_complete()

    def silent_seconds(self) -> float:
        """For how long no request is under way; part of one is none. Below 0: one is, or this has ended."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        asks = cycle is not None and not cycle.response_complete
        return -1.0 if asks or self.transport.is_closing() else self.loop.time() - self._silent_since

    def end_if_silent(self, seconds: float = 0.0) -> None:
        if self.silent_seconds() >= seconds:
            self.transport.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()
        self._leaving = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def leave(self) -> None:
        """From another thread."""
        self.should_exit = True
        with suppress(RuntimeError):  # it has left already
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._leaving.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self.up.set()

    async def main_loop(self) -> None:
        """As uvicorn's own, which wakes up ten times a second to see what time it is and whether to leave."""
        while not await self.on_tick(0):
            for one in self.server_state.connections:
                if isinstance(one, _Connection):
                    one.end_if_silent(SILENT_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), TICK_SECONDS)
