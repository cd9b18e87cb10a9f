"""What pika does by itself: the ceiling of the RabbitMQ publisher.

The same messages through one channel with confirms, and nothing kept of an acknowledgement but that it came.
Twice: in batches, as the publisher sends them (a window of unconfirmed messages, and a wait at the end of
each batch until all of it is confirmed), and free-running (the window, and never a wait).
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import pika

from publishers.rabbitmq import WINDOW
from relay.event import Event
from relay.message import plain_headers


class RawPikaLoop:
    """One run: each batch is sent when the one before it is confirmed."""

    def __init__(self, url: str, batches: Sequence[Sequence[Event]]) -> None:
        self._batches = batches
        self._batch = 0
        self._sent_of_batch = 0
        self._tag = 0
        self._acked = 0
        self._unconfirmed: set[int] = set()
        self._started = 0.0
        self.seconds: list[float] = []  # of each batch
        self._channel: Any = None
        self._failure: BaseException | None = None
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=self._failed,
            on_close_callback=self._closed,
        )

    def run(self) -> list[float]:
        """Seconds from the first message of each batch to its last acknowledgement."""
        self._connection.ioloop.start()
        self._connection.ioloop.close()
        if self._failure is not None:
            raise self._failure
        return self.seconds

    def _failed(self, connection: Any, error: BaseException) -> None:
        self._failure = error
        connection.ioloop.stop()

    def _closed(self, connection: Any, error: BaseException) -> None:
        if len(self.seconds) < len(self._batches):
            self._failure = error
        connection.ioloop.stop()

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirmed, callback=lambda _frame: self._begin())

    def _begin(self) -> None:
        self._started = perf_counter()
        self._pump()

    def _pump(self) -> None:
        batch = self._batches[self._batch]
        while self._sent_of_batch < len(batch) and len(self._unconfirmed) < WINDOW:
            event = batch[self._sent_of_batch]
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
            self._sent_of_batch += 1
            self._tag += 1
            self._unconfirmed.add(self._tag)

    def _confirmed(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            self._unconfirmed.difference_update(range(self._acked + 1, tag + 1))
            self._acked = max(self._acked, tag)
        else:
            self._unconfirmed.discard(tag)
        if self._unconfirmed or self._sent_of_batch < len(self._batches[self._batch]):
            self._pump()
            return
        now = perf_counter()
        self.seconds.append(now - self._started)
        self._batch, self._sent_of_batch = self._batch + 1, 0
        if self._batch == len(self._batches):
            self._connection.close()
        else:
            self._started = now
            self._pump()


def in_batches(url: str, batches: Sequence[Sequence[Event]]) -> list[float]:
    return RawPikaLoop(url, batches).run()


def free_running(url: str, batches: Sequence[Sequence[Event]]) -> float:
    """Seconds for all of them as one batch."""
    return sum(RawPikaLoop(url, [[event for batch in batches for event in batch]]).run())
