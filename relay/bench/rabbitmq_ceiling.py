"""What pika does by itself: the ceiling of the RabbitMQ publisher.

The same messages through one channel with confirms, a window of them on their way at a time, and nothing
kept of an acknowledgement but that it came.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import pika

from relay.event import Event
from relay.message import plain_headers

WINDOW = 1000


class RawPikaLoop:
    def __init__(self, url: str, events: Sequence[Event]) -> None:
        self._events = events
        self._sent = 0
        self._acked = 0
        self._unconfirmed: set[int] = set()
        self._started = self._ended = 0.0
        self._channel: Any = None
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_close_callback=lambda connection, _reason: connection.ioloop.stop(),
        )

    def run(self) -> float:
        """Seconds from the first message to the last acknowledgement."""
        self._connection.ioloop.start()
        self._connection.ioloop.close()
        return self._ended - self._started

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirmed, callback=lambda _frame: self._begin())

    def _begin(self) -> None:
        self._started = perf_counter()
        self._pump()

    def _pump(self) -> None:
        while self._sent < len(self._events) and len(self._unconfirmed) < WINDOW:
            event = self._events[self._sent]
            properties = pika.BasicProperties(
                content_type="application/json",
                delivery_mode=2,
                message_id=event.event_id,
                type=event.event_type,
                timestamp=int(event.created_at.timestamp()),
                headers=dict(plain_headers(event)),
            )
            self._channel.basic_publish(
                event.destination, event.event_type, event.payload, properties, mandatory=True
            )
            self._sent += 1
            self._unconfirmed.add(self._sent)

    def _confirmed(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            self._unconfirmed.difference_update(range(self._acked + 1, tag + 1))
            self._acked = max(self._acked, tag)
        else:
            self._unconfirmed.discard(tag)
        if not self._unconfirmed and self._sent == len(self._events):
            self._ended = perf_counter()
            self._connection.close()
        else:
            self._pump()
