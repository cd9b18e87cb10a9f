"""Requests read and answers written: JSON both ways, and each failure by its kind and in a sentence."""

import json
import logging
from datetime import datetime
from http import HTTPStatus
from typing import Any, TypeAlias

import psycopg
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from relay.errors import RelayError
from relay.store.limits import TooSlow
from relay.web.desk import Busy, Unreachable, sentence
from relay.web.jobs import Occupied
from relay.web.params import Wrong

log = logging.getLogger(__name__)

LARGEST_BODY = 64 * 1024

Answer: TypeAlias = dict[str, Any]


class Refused(Exception):
    """An answer that says no."""

    def __init__(self, status: HTTPStatus, kind: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.retry_after = retry_after


async def body_of(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise Wrong("send JSON")
    content = b""
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > LARGEST_BODY:
                raise Wrong("this is too long")
    except ClientDisconnect:
        raise Wrong("the request ended before it was whole") from None
    try:
        body = json.loads(content)
        # Half of a surrogate pair is JSON and no text: nothing can be made of it, here or in the database.
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Wrong("a text here has half a character: write it in UTF-8") from None
    except (ValueError, RecursionError):
        raise Wrong("this is not JSON, or nested too deep") from None
    if not isinstance(body, dict):
        raise Wrong("send a JSON object")
    return body


def text_of(body: dict[str, Any], name: str) -> str:
    """The text of that name; what is none counts as not given."""
    value = body.get(name)
    return value if isinstance(value, str) else ""


def number_of(body: dict[str, Any]) -> int:
    number = body.get("number")
    if not isinstance(number, int):
        raise Wrong("number: that of an action")
    return number


def address_of(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def json_of(answer: Answer, status: int = 200) -> Response:
    text = json.dumps(answer, ensure_ascii=False, default=_plain, separators=(",", ":"))
    return Response(text.encode(errors="replace"), status, media_type="application/json")


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def failure_of(error: Exception) -> Response:
    """What went wrong, in a sentence and by its kind: the pages have a state for each."""
    retry_after = 0.0
    match error:
        case Refused():
            status, kind, retry_after = error.status, error.kind, error.retry_after
        case Wrong():
            status, kind = HTTPStatus.BAD_REQUEST, "wrong"
        case Busy():
            status, kind, retry_after = HTTPStatus.SERVICE_UNAVAILABLE, "busy", 2.0
        case Unreachable():
            status, kind, retry_after = HTTPStatus.SERVICE_UNAVAILABLE, "unreachable", 2.0
        case TooSlow() | psycopg.errors.QueryCanceled():
            status, kind = HTTPStatus.GATEWAY_TIMEOUT, "slow"
        case Occupied():
            status, kind = HTTPStatus.CONFLICT, "occupied"
        case RelayError() | psycopg.Error():
            status, kind = HTTPStatus.UNPROCESSABLE_ENTITY, "failed"
        case _:
            log.error("the operator's pages failed", exc_info=error)
            return json_of({"error": "bug", "message": "an error of the relay: see its log"}, 500)
    answer = json_of({"error": kind, "message": sentence(error)}, status)
    if retry_after:
        answer.headers["Retry-After"] = str(max(round(retry_after), 1))
    return answer
