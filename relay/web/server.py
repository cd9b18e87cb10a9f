"""Runs the pages in a thread of their own, on a socket that is already bound."""

import asyncio
import logging
import socket
import threading
from contextlib import suppress

import uvicorn

from relay.errors import RelayError
from relay.metrics import Metrics
from relay.probes import Probe, always
from relay.settings import Settings
from relay.web.app import Pages

START_SECONDS = 10.0
GOODBYE_SECONDS = 1
TICK_SECONDS = 1.0
MOST_CONNECTIONS = 200


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
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            lifespan="on",
            ws="none",
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=10,
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
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), TICK_SECONDS)
