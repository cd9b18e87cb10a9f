"""A message as the frames of an AMQP channel, ready for the socket. Pure.

Properties over one frame make the broker hang up on everybody, so they fail here, for their event alone.
Written by hand because the client's own way from a message to its frames takes most of the time of a publish.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from pika.spec import Basic, BasicProperties

from relay.event import Event
from relay.message import Headers

HeadersOf: TypeAlias = Callable[[Event], Headers]

SHORT_STRING = 255
FRAME_OVERHEAD = 8  # of each frame: what it is, its channel and size, and its end
FRAME_END = b"\xce"
METHOD, HEADER, BODY = 1, 2, 3
MANDATORY = b"\x01"
PERSISTENT = b"\x02"

_FLAGS = (
    BasicProperties.FLAG_CONTENT_TYPE
    | BasicProperties.FLAG_HEADERS
    | BasicProperties.FLAG_DELIVERY_MODE
    | BasicProperties.FLAG_MESSAGE_ID
    | BasicProperties.FLAG_TIMESTAMP
    | BasicProperties.FLAG_TYPE
)
_frame = struct.Struct(">BHI").pack
_content = struct.Struct(">HHQ").pack
_CONTENT_BYTES = 12  # what stands before the properties in their frame
_long = struct.Struct(">I").pack
_timestamp = struct.Struct(">Q").pack


class Unsendable(Exception):
    """The event cannot be written as AMQP; the text says why."""


class Frames:
    """Writes messages for one channel."""

    def __init__(self, headers_of: HeadersOf, channel: int, frame_max: int) -> None:
        self._headers_of = headers_of
        self._channel = channel
        self._frame_max = frame_max
        self._publish = lru_cache(maxsize=4096)(self._publish_frame)
        self._start = struct.pack(">H", _FLAGS) + short("application/json")

    def message(self, event: Event, exchange: str, routing_key: str) -> bytes:
        """The frames of one mandatory, persistent message, one behind the other."""
        properties = self.properties(event)
        channel, body = self._channel, event.payload
        size = len(body)
        most = self._frame_max - FRAME_OVERHEAD
        pieces = [
            self._publish(exchange, routing_key),
            _frame(HEADER, channel, _CONTENT_BYTES + len(properties)),
            _content(Basic.INDEX, 0, size),
            properties,
            FRAME_END,
        ]
        for start in range(0, size, most):
            part = body if size <= most else body[start : start + most]
            pieces += (_frame(BODY, channel, len(part)), part, FRAME_END)
        return b"".join(pieces)

    def properties(self, event: Event) -> bytes:
        try:
            pieces: list[bytes] = []
            for name, value in self._headers_of(event):
                text = value.encode()
                pieces += (_field(name), _long(len(text)), text)
            table = b"".join(pieces)
            seconds = max(0, int(event.created_at.timestamp()))
            encoded = b"".join(
                (
                    self._start,
                    _long(len(table)),
                    table,
                    PERSISTENT,
                    short(event.event_id),
                    _timestamp(seconds),
                    short(event.event_type),
                )
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise Unsendable(f"the event cannot be written as AMQP: {error}") from error
        if len(encoded) + _CONTENT_BYTES + FRAME_OVERHEAD > self._frame_max:
            raise Unsendable(
                f"the event's headers take {len(encoded):,} bytes, more than one frame of RabbitMQ holds"
                f" ({self._frame_max:,} bytes): shorten them"
            )
        return encoded

    def _publish_frame(self, exchange: str, routing_key: str) -> bytes:
        method = b"".join(
            (_long(Basic.Publish.INDEX), b"\0\0", short(exchange), short(routing_key), MANDATORY)
        )
        return _frame(METHOD, self._channel, len(method)) + method + FRAME_END


def short(text: str) -> bytes:
    """A short string; ValueError where it is none."""
    encoded = text.encode()
    if len(encoded) > SHORT_STRING:
        raise ValueError(f"'{text[:40]}…' is longer than {SHORT_STRING} bytes")
    return bytes((len(encoded),)) + encoded


@lru_cache(maxsize=4096)
def _field(name: str) -> bytes:
    """The name of a header, and the mark of a text value."""
    return short(name) + b"S"
