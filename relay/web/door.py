"""The door to the pages: who is there, what they may do, how they sign in and out.

Whatever changes something demands an operator's session, its CSRF token, and that the request comes from
these pages. Wrong tokens are throttled, and told to the log.
"""

import logging
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from relay import __version__
from relay.settings import Settings
from relay.web.access import SESSION_SECONDS, Access, Role, Session, Throttle, same_origin
from relay.web.answers import Answer, Refused, address_of, body_of, failure_of, json_of, text_of

log = logging.getLogger(__name__)


class Door:
    def __init__(self, settings: Settings) -> None:
        self.access = Access(settings)
        self._table = settings.table
        self._throttle = Throttle()

    def who(self, request: Request) -> Session | None:
        return self.access.read(request.cookies.get(self.access.cookie))

    def may_look(self, request: Request) -> None:
        if self.access.open_to_all or self.who(request) is not None:
            return
        if self.access.closed:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "closed",
                "these pages are open to other machines and no token is set: set http_token",
            )
        raise Refused(HTTPStatus.UNAUTHORIZED, "token", "sign in with a token")

    def may_act(self, request: Request) -> Session:
        self._from_these_pages(request)
        session = self.who(request)
        if session is None or session.role != "operator":
            raise Refused(
                HTTPStatus.FORBIDDEN, "operator", "sign in with the operator's token to change something"
            )
        if not self.access.csrf_is_right(session, request.headers.get("x-relay-csrf", "")):
            raise Refused(HTTPStatus.FORBIDDEN, "csrf", "this page is not of your session: load it again")
        return session

    def _from_these_pages(self, request: Request) -> None:
        if not same_origin(request.headers.get("origin"), request.headers.get("host", "")):
            raise Refused(HTTPStatus.FORBIDDEN, "origin", "this request does not come from these pages")

    def session(self, request: Request) -> Answer:
        """Who looks, and what the pages may show them."""
        session = self.who(request)
        may_look = self.access.open_to_all or session is not None
        return {
            "role": session.role if session else None,
            "name": session.name if session else None,
            "csrf": self.access.csrf(session) if session and session.role == "operator" else None,
            "may_look": may_look,
            "closed": self.access.closed,
            "can_operate": self.access.can_operate,
            "table": self._table if may_look else None,
            "version": __version__ if may_look else None,
        }

    async def sign_in(self, request: Request) -> Response:
        try:
            self._from_these_pages(request)
            body = await body_of(request)
            role = self._role_of(text_of(body, "token"), address_of(request))
        except Exception as error:  # noqa: BLE001 - told in a sentence, or logged
            return failure_of(error)
        answer = json_of({"role": role})
        cookie = self.access.begin(role, text_of(body, "name").strip())
        secure = request.headers.get("origin", "").startswith("https:")
        answer.set_cookie(
            self.access.cookie,
            cookie,
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=secure,
        )
        return answer

    def _role_of(self, token: str, address: str) -> Role:
        if (wait := self._throttle.wait(address)) > 0:
            message = f"too many wrong tokens: wait {wait:.0f} s"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "throttled", message, wait)
        role = self.access.role_of(token)
        if role is None:
            self._throttle.wrong(address)
            log.warning("a wrong token for the operator's pages from %s", address)
            raise Refused(HTTPStatus.UNAUTHORIZED, "wrong", "this token is not known here")
        self._throttle.right(address)
        return role

    async def sign_out(self, request: Request) -> Response:
        try:
            self._from_these_pages(request)
        except Refused as error:
            return failure_of(error)
        answer = json_of({})
        answer.delete_cookie(self.access.cookie, httponly=True, samesite="strict")
        return answer
