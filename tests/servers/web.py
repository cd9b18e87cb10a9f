"""An HTTP server that records what it is sent and behaves as badly as a test wants, in one thread.

One thread, because tests of publishers count threads. `behave` answers one request; what it does to the
writer is its own business.
"""

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeAlias

Writer: TypeAlias = asyncio.StreamWriter
LONGEST_HEAD = 1 << 20


@dataclass(frozen=True)
class Request:
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int  # which of the server's connections it came by, from 1

    def header(self, name: str) -> str | None:
        found = [value for other, value in self.headers if other.lower() == name.lower()]
        assert len(found) <= 1, f"{name} was sent {len(found)} times"
        return found[0] if found else None


Behaviour: TypeAlias = Callable[[Request, Writer], Awaitable[None]]


def answer(status: int, body: bytes = b"ok", **headers: str) -> Behaviour:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    whole = "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    async def behave(request: Request, writer: Writer) -> None:
        writer.write(whole)

    return behave


async def hang(request: Request, writer: Writer) -> None:
    """Never answers; ends with the connection or the server."""
    await asyncio.Event().wait()


async def disconnect(request: Request, writer: Writer) -> None:
    writer.close()


@dataclass
class WebServer:
    behave: Behaviour = field(default_factory=lambda: answer(200))
    tls: ssl.SSLContext | None = None
    reads: bool = True  # False: accepts connections and reads nothing
    address: str = "127.0.0.1"
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    def __enter__(self) -> "WebServer":
        self._changed = threading.Condition()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="web server")
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, rest: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{rest}"

    def wait_for(self, requests: int = 0, connections: int = 0, seconds: float = 10) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.requests) >= requests and self.connections >= connections, seconds
            )

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(
            self._serve, self.address, self.port, ssl=self.tls, limit=LONGEST_HEAD, backlog=256
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with self._changed:
            self.connections += 1
            number = self.connections
            self._changed.notify_all()
        try:
            if not self.reads:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                await self._stop.wait()
            while not writer.is_closing():
                request = await _read(reader, number)
                with self._changed:
                    self.requests.append(request)
                    self._changed.notify_all()
                await self.behave(request, writer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, connection: int) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    headers = []
    for line in lines:
        name, _, value = line.partition(":")
        headers.append((name, value.strip()))
    length = int({name.lower(): value for name, value in headers}["content-length"])
    method, target, _ = first.split(" ")
    assert method == "POST"
    return Request(target, headers, await reader.readexactly(length), connection)
