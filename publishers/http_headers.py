"""The headers of a webhook request: what an event carries, in characters that HTTP can carry.

Headers are ASCII. In the plain format a value that is not goes as RFC 8187 writes it, `UTF-8''` and
percent-encoded; with CloudEvents values are percent-encoded as that binding says. A row's own headers
never replace the relay's, nor those that frame the request.

Many servers drop header names with underscores, so the relay's own go twice: as on every transport
(`event_id`), and as `X-Outbox-Event-Id`.
"""

import re
from base64 import b64encode
from urllib.parse import quote, unquote

from publishers.signing import HEADER as SIGNATURE
from relay.event import RESERVED_HEADERS, Event
from relay.message import CLOUDEVENTS_PREFIX, Format, Headers, cloudevents_headers, plain_headers

PREFIX = CLOUDEVENTS_PREFIX["webhook"]
ENCODED = "UTF-8''"

_PLAIN_TEXT = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_TOKEN_SAFE = "!#$&'*+-.^_`|~"
_VALUE_SAFE = "!#$&+-.^_`|~"
_CLOUDEVENTS_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
# Not for rows to set: how the request is framed and read, and what says who sent it.
_NOT_FOR_ROWS = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "x-signature",
    }
)
_PREFIXES_NOT_FOR_ROWS = ("proxy-", "x-outbox-", PREFIX)


def request_headers(
    event: Event, wanted: Format, host: str, credentials: tuple[str, str] | None, signature: str | None
) -> list[tuple[bytes, bytes]]:
    """Everything but Content-Length, in the order it is sent."""
    headers: Headers = [
        ("Host", host),
        ("User-Agent", "outbox-relay"),
        ("Content-Type", "application/json"),
        ("Idempotency-Key", text(event.event_id)),
    ]
    if signature is not None:
        headers.append((SIGNATURE, signature))
    rows = _plain(event) if wanted == "plain" else _cloudevents(event, host)
    if credentials is not None:
        headers.append(("Authorization", _basic(*credentials)))
        rows = [item for item in rows if item[0].lower() != "authorization"]
    return [(name.encode(), value.encode()) for name, value in headers + rows]


def text(value: str) -> str:
    """The value as a plain header carries it; `from_text` reads it back."""
    if _PLAIN_TEXT.fullmatch(value) and not value.startswith(ENCODED):
        return value
    return ENCODED + quote(value, safe=_VALUE_SAFE)


def from_text(value: str) -> str:
    return unquote(value.removeprefix(ENCODED)) if value.startswith(ENCODED) else value


def _plain(event: Event) -> Headers:
    headers: Headers = []
    for name, value in plain_headers(event):
        if name in RESERVED_HEADERS:
            headers.append((name, text(value)))
            headers.append((f"X-Outbox-{name.replace('_', '-').title()}", text(value)))
        elif _for_rows(name):
            headers.append((_token(name), text(value)))
    return headers


def _cloudevents(event: Event, host: str) -> Headers:
    headers: Headers = []
    for name, value in cloudevents_headers(event, PREFIX, source=f"outbox:{host}"):
        if name.startswith(PREFIX):
            headers.append((name, quote(value, safe=_CLOUDEVENTS_SAFE)))
        elif _for_rows(name):
            headers.append((_token(name), text(value)))
    return headers


def _for_rows(name: str) -> bool:
    # A server that reads `-` and `_` alike must not take a row's header for one of the relay's.
    alike = name.lower().replace("_", "-")
    return (
        alike not in _NOT_FOR_ROWS
        and alike.replace("-", "_") not in RESERVED_HEADERS
        and not alike.startswith(_PREFIXES_NOT_FOR_ROWS)
    )


def _token(name: str) -> str:
    return quote(name, safe=_TOKEN_SAFE)


def _basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()
