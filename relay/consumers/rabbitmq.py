"""Consumes one RabbitMQ queue.

Guarantees, beside those of `consumer`: a message is acknowledged when it has been applied or parked in a
transaction that has been committed. Whatever is unacknowledged when the connection fails comes again, at
its old place in the queue, and is found in the inbox if it had been applied. A connection that fails is made
anew, and so is one whose channel the broker closes; the first one must succeed.

Order per key needs one consumer at a time on the queue: declare it with x-single-active-consumer and run
as many consumers as you like, one of which works.
"""

import logging
import re
from time import monotonic
from typing import Any, Unpack

from relay.backoff import Rising
from relay.consumers.applying import Handler
from relay.consumers.consumer import Consumer, Options
from relay.consumers.lanes import Delivery
from relay.consumers.message import Raw, lane_key, text_of, texts
from relay.errors import MissingExtra, RelayError, SettingsError

try:
    import pika
except ImportError as error:
    raise MissingExtra("a RabbitMQ consumer", "rabbitmq") from error

from relay.consumers.rabbitmq_link import Link

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10


class RabbitConsumer(Consumer):
    transport = "rabbitmq"

    def __init__(
        self,
        name: str,
        handler: Handler,
        *,
        url: str,
        queue: str,
        prefetch: int = 100,
        **options: Unpack[Options],
    ) -> None:
        """prefetch: how many messages are held at most; options: see Consumer."""
        super().__init__(name, handler, **options)
        if not queue or prefetch < 1:
            raise SettingsError("queue must be the name of a queue, and prefetch 1 or more")
        self._parameters = _parameters(url)
        self._queue = queue
        self._prefetch = prefetch
        self._link: Link | None = None
        self._again = Rising(0.1, 10.0)
        self._next_open = 0.0

    def _open(self) -> None:
        self._link = Link(self._parameters, self._queue, self._prefetch, f"outbox-relay {self.name}")
        self._again.reset()

    def _take(self, seconds: float) -> Delivery | None:
        if self._link is None:
            self._open_again(seconds)
            return None
        link = self._link
        if link.lost is not None:
            log.warning("%s; connecting again", link.lost)
            self._lanes.drop(link)
            self._link = None
            return None
        taken = link.take(seconds)
        if taken is None:
            return None
        tag, properties, body = taken
        headers = texts((properties.headers or {}).items())
        raw = Raw(
            body,
            headers,
            self._queue,
            text_of(properties.message_id),
            text_of(properties.type),
            transport=self.transport,
        )
        return Delivery(link, lane_key(raw), raw, tag)

    def _done(self, delivery: Delivery) -> None:
        assert isinstance(delivery.place, Link)
        delivery.place.acknowledge(delivery.token)

    def _close(self) -> None:
        if self._link is not None:
            self._link.close()

    def _open_again(self, seconds: float) -> None:
        left = self._next_open - monotonic()
        if left > 0:
            self._stopping.wait(min(left, seconds))
            return
        try:
            self._open()
            log.info("consumer %s is connected to RabbitMQ again", self.name)
        except RelayError as error:
            self._next_open = monotonic() + self._again.step()
            log.warning("%s; trying again", error)


def _parameters(url: str) -> Any:
    """What to connect to. Errors never quote the URL: it holds a password."""
    try:
        if not re.match("amqps?://", url):
            raise ValueError
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError, SyntaxError, OSError):
        raise SettingsError(
            "url is not understood: write amqp://user:password@host:5672/%2F, or amqps:// for TLS"
        ) from None
    if parameters.heartbeat is None:
        parameters.heartbeat = HEARTBEAT_SECONDS
    return parameters
