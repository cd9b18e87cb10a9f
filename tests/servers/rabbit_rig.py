"""A place of one's own on a RabbitMQ node: an exchange, a queue, and what has arrived in it."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any
from uuid import uuid4

import pika

from publishers.rabbitmq import RabbitPublisher
from relay.event import Event
from relay.outcome import Delivered, Outcome
from relay.testing import Received, make_event
from tests.servers.process import wait_until


class RabbitRig:
    """A topic exchange and a queue behind it that takes everything."""

    def __init__(
        self, url: str, arguments: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """`arguments` are the queue's, `options` those of every publisher it makes."""
        self.url = url
        self.arguments = dict(arguments or {})
        self.options = {"url": url} | dict(options or {})
        self.destination = self.queue = f"rig-{uuid4().hex}"
        with self.channel() as channel:
            channel.exchange_declare(self.destination, "topic", durable=True)
            channel.queue_declare(self.queue, durable=True, arguments=self.arguments)
            channel.queue_bind(self.queue, self.destination, "#")

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            connection.close()

    def make(self, **options: Any) -> RabbitPublisher:
        return RabbitPublisher(self.options | options)

    def event(self, key: str = "order:1", **fields: Any) -> Event:
        return make_event(key, **({"destination": self.destination} | fields))

    def received(self, at_least: int) -> list[Received]:
        return [
            Received(properties.message_id, body, properties.headers)
            for _, properties, body in self.messages(at_least)
        ]

    def messages(self, at_least: int) -> list[Any]:
        """Everything in the queue, which keeps it."""
        with self.channel() as channel:
            wait_until(
                lambda: channel.queue_declare(self.queue, passive=True).method.message_count >= at_least,
                20,
                f"{at_least} messages",
            )
            found = []
            while (message := channel.basic_get(self.queue))[0] is not None:
                found.append(message)
            return found

    def drain(self) -> list[str]:
        """Take everything out of the queue; the event ids."""
        with self.channel() as channel:
            found = []
            while (message := channel.basic_get(self.queue, auto_ack=True))[0] is not None:
                found.append(message[1].message_id)
            return found

    def undeliverable(self, event: Event) -> Event:
        return event._replace(destination=f"no-such-exchange-{uuid4().hex}")

    @contextlib.contextmanager
    def publisher(self, **options: Any) -> Iterator[RabbitPublisher]:
        publisher = self.make(**options)
        try:
            yield publisher
        finally:
            publisher.close()

    def assert_in_order(self, events: Sequence[Event]) -> None:
        """The queue holds these events and no others; the first occurrences of each key are in order."""
        arrived = list(dict.fromkeys(self.drain()))
        assert set(arrived) == {event.event_id for event in events}
        for key in {event.key for event in events}:
            lane = [event.event_id for event in events if event.key == key]
            assert [event_id for event_id in arrived if event_id in lane] == lane


def publish(publisher: RabbitPublisher, *events: Event, seconds: float = 30.0) -> list[Any]:
    return list(publisher.publish(events, monotonic() + seconds))


def delivered(outcomes: Sequence[Outcome]) -> list[bool]:
    return [isinstance(outcome, Delivered) for outcome in outcomes]
