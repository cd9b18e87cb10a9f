"""The operator's pages as an application: files for the browser, JSON for the pages, and who may have them.

/metrics, /livez and /readyz answer everybody and never ask the database. All else is for those whom the door
lets in. Every answer carries a policy under which the browser runs nothing but the files beside this module.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from relay import probes
from relay.doctor import examine
from relay.metrics import Metrics
from relay.probes import Probe, always
from relay.settings import Settings
from relay.web.acts import Acts, actor_of
from relay.web.answers import Answer, address_of, body_of, failure_of, json_of, number_of
from relay.web.checkup import Checkup
from relay.web.desk import Desk
from relay.web.door import Door
from relay.web.live import Live
from relay.web.params import place_of
from relay.web.reads import Reads
from relay.web.shield import Shield

THREADS = 8
PAGES = (
    "/",
    "/workers",
    "/waiting",
    "/events",
    "/dead-letters",
    "/pauses",
    "/audit",
    "/doctor",
    "/event",
    "/sign-in",
)
TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}

Handler = Callable[[Request], Answer]


class Pages:
    """One outbox's pages; `app` is the ASGI application."""

    def __init__(
        self, settings: Settings, metrics: Metrics, readiness: Probe, liveness: Probe = always
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._readiness = readiness
        self._liveness = liveness
        self._door = Door(settings)
        self._desk = Desk(settings)
        self._live = Live(self._desk)
        self._reads = Reads(settings, self._desk)
        self._acts = Acts(settings, self._desk)
        self._checkup = Checkup(lambda: examine(settings))
        self._files = {
            file.name: file.read_bytes() for file in files("relay.web").joinpath("static").iterdir()
        }
        routes = [*self._operations(), *self._pages(), *self._data(), *self._actions()]
        app = Starlette(routes=routes, lifespan=self._lifespan)
        app.router.redirect_slashes = False
        self.app = Shield(app, self._door.access)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        self._live.start()
        try:
            yield
        finally:
            await run_in_threadpool(self.close)

    def close(self) -> None:
        self._live.stop()
        self._acts.jobs.stop()
        self._desk.close()

    def _operations(self) -> list[Route]:
        own_thread = anyio.CapacityLimiter(2)

        async def metrics(request: Request) -> Response:
            return _probed(probes.metrics_answer(self._metrics, request.headers.get("accept", "")))

        async def livez(request: Request) -> Response:
            return _probed(probes.livez(self._liveness))

        async def readyz(request: Request) -> Response:
            ask = partial(probes.readyz, self._readiness)
            return _probed(await anyio.to_thread.run_sync(ask, limiter=own_thread))

        return [Route("/metrics", metrics), Route("/livez", livez), Route("/readyz", readyz)]

    def _pages(self) -> list[Route]:
        async def page(request: Request) -> Response:
            return self._file(request, "index.html")

        async def static(request: Request) -> Response:
            return self._file(request, request.path_params["name"])

        return [
            *(Route(path, page) for path in PAGES),
            Route("/static/{name}", static),
        ]

    def _file(self, request: Request, name: str) -> Response:
        content = self._files.get(name)
        kind = TYPES.get(name.rpartition(".")[2])
        if content is None or kind is None:
            return PlainTextResponse("not found\n", HTTPStatus.NOT_FOUND)
        headers = {"Cache-Control": "no-cache", "ETag": f'"{sha256(content).hexdigest()[:16]}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    def _data(self) -> list[Route]:
        reads = self._reads
        looks: dict[str, Callable[[Any], Answer]] = {
            "workers": reads.workers,
            "waiting": reads.waiting,
            "events": reads.events,
            "count": reads.count,
            "dead-letters": reads.dead_letters,
            "pauses": reads.pauses,
            "audit": reads.audit,
        }
        return [
            Route("/api/session", self._endpoint(self._door.session, look=False)),
            Route("/api/live", self._endpoint(self._live_since)),
            Route("/api/doctor", self._endpoint(self._doctor)),
            Route(
                "/api/event",
                self._endpoint(lambda r: reads.event({"event_id": r.query_params.get("id", "")})),
            ),
            *(Route(f"/api/{name}", self._endpoint(_look(look))) for name, look in looks.items()),
        ]

    def _actions(self) -> list[Route]:
        acts = self._acts

        def by(act: Callable[[dict[str, Any], str], Answer]) -> Handler:
            return lambda request: act(request.state.body, request.state.actor)

        actions: dict[str, Handler] = {
            "redrive": by(acts.redrive),
            "preview": lambda request: acts.preview(request.state.body),
            "pause": by(acts.pause),
            "held": lambda request: acts.held(request.state.body),
            "resume": by(acts.resume),
            "job": lambda request: acts.job(number_of(request.state.body)),
            "stop": lambda request: acts.job(number_of(request.state.body), stop=True),
        }
        return [
            Route("/api/sign-in", self._door.sign_in, methods=["POST"]),
            Route("/api/sign-out", self._door.sign_out, methods=["POST"]),
            *(Route(f"/api/do/{name}", self._action(act), methods=["POST"]) for name, act in actions.items()),
        ]

    def _endpoint(self, handler: Handler, *, look: bool = True) -> Callable[[Request], Any]:
        """An answer to a look, for those who may."""

        async def endpoint(request: Request) -> Response:
            try:
                if look:
                    self._door.may_look(request)
                return json_of(await run_in_threadpool(handler, request))
            except Exception as error:  # noqa: BLE001 - told in a sentence, or logged
                return failure_of(error)

        return endpoint

    def _action(self, handler: Handler) -> Callable[[Request], Any]:
        """An answer to whoever may change something, from these pages."""

        async def endpoint(request: Request) -> Response:
            try:
                session = self._door.may_act(request)
                request.state.actor = actor_of(session, address_of(request))
                request.state.body = await body_of(request)
                return json_of(await run_in_threadpool(handler, request))
            except Exception as error:  # noqa: BLE001 - told in a sentence, or logged
                return failure_of(error)

        return endpoint

    def _live_since(self, request: Request) -> Answer:
        return {"samples": self._live.since(place_of(request.query_params.get("after")) or 0)}

    def _doctor(self, request: Request) -> Answer:
        return self._checkup.state(again="again" in request.query_params)


def _look(look: Callable[[Any], Answer]) -> Handler:
    return lambda request: look(request.query_params)


def _probed(answer: probes.Answer) -> Response:
    headers = {"Content-Type": answer.content_type}
    return Response(answer.body, answer.status, headers=headers, media_type=None)
