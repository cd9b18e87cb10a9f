"""What every answer of the pages carries, which names they answer to, and how many at once. Plain ASGI.

The policy lets the browser run and load the files of these pages and nothing else: no inline script or
style, no other site, no frame, and no way to make HTML out of text. Probes and metrics are answered whoever
else asks.
"""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relay.web.access import Access
from relay.web.answers import failure_of
from relay.web.desk import Busy

OPEN = ("/metrics", "/livez", "/readyz")
MOST_REQUESTS = 200
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Shield:
    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._under_way = 0  # but for those that are open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def shielded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        if scope["path"] in OPEN:
            await self._app(scope, receive, shielded)
        elif (refusal := self._refusal(Headers(scope=scope).get("host", ""))) is not None:
            await refusal(scope, receive, shielded)
        else:
            self._under_way += 1
            try:
                await self._app(scope, receive, shielded)
            finally:
                self._under_way -= 1

    def _refusal(self, host: str) -> Response | None:
        if not self._access.host_is_ours(host):
            said = "These pages answer to localhost only. To reach them by another name, set http_token.\n"
            return PlainTextResponse(said, 421)
        if self._under_way >= MOST_REQUESTS:
            return failure_of(Busy(f"{MOST_REQUESTS} requests are under way: try again"))
        return None
