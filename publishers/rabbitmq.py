"""Publishes to RabbitMQ through pika, with publisher confirms.

Guarantees: an event is Delivered when the broker has confirmed it and routed it to a queue. Messages are
persistent and mandatory. Keys are pipelined; of one key, `max_unconfirmed_per_key` events at a time (1: the
next goes out when the one before it is confirmed, so that nothing can overtake an event a queue refuses).

What is unconfirmed when a connection fails, or `confirm_seconds` pass without its confirm, is reported
Unconfirmed; the connection is dropped, and the next call makes a new one. A message that is still on its
way then can only arrive twice, never ahead of an earlier one.

An event's destination is the exchange; `amq.default` is the default exchange, as in RabbitMQ's own tools,
where the routing key names the queue.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from time import monotonic
from typing import Any, NamedTuple

from relay.errors import MissingExtra, SettingsError
from relay.event import Event
from relay.message import encoder
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed

try:
    import pika
except ImportError as error:
    raise MissingExtra("the RabbitMQ publisher", "rabbitmq") from error

from publishers import classify
from publishers.amqp_errors import Lost
from publishers.amqp_flight import Flight, Lane, Message, conclude
from publishers.amqp_frames import short
from publishers.amqp_link import Link
from publishers.classify import Trouble

log = logging.getLogger(__name__)

WINDOW = 1000
HEARTBEAT_SECONDS = 10
DEFAULT_EXCHANGE = "amq.default"

_PLACEHOLDER = re.compile(r"\{(event_type|key_type)\}")


class Address(NamedTuple):
    exchange: str
    routing_key: str
    delivered: Delivered
    flaw: Refused | None = None


class RabbitPublisher:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self._parameters = connection_parameters(options.get("url"))
        if logging.getLogger("pika").level == logging.NOTSET:
            # It reports every failure at length, in several records; this module does in one.
            logging.getLogger("pika").setLevel(logging.CRITICAL)
        self._template = str(options.get("routing_key", "{event_type}"))
        self._per_key = int(options.get("max_unconfirmed_per_key", 1))
        self._confirm_seconds = float(options.get("confirm_seconds", 15.0))
        if self._per_key < 0 or self._confirm_seconds <= 0:
            raise SettingsError(
                "[rabbitmq] confirm_seconds must be positive and max_unconfirmed_per_key not negative"
            )
        self._headers_of = encoder(options.get("format", "plain"), "rabbitmq")
        self._address = lru_cache(maxsize=4096)(self._find_address)
        self._to_declare = bool(options.get("declare", False))
        self._declared: set[str] = set()
        self._proven = {""}  # exchanges that have taken a message; the default exchange always does
        self._link: Link | None = None
        self._inherited: Link | None = None
        self._process = os.getpid()
        # What an operator should know of: events that got through ahead of one of their key that was
        # refused, and messages that were on their way when their connection was given up.
        self.incidents: Counter[str] = Counter()

    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        messages = self._messages(events)
        lost: Lost | None = None
        if self._to_declare:
            lost = self._declare(messages, deadline)
        flight = Flight(messages, WINDOW, self._per_key, self._proven)
        if lost is None:
            lost = self._carry(flight, deadline)
        if lost is not None and flight.unconfirmed:
            self.incidents["stranded"] += len(flight.unconfirmed)
            log.warning("%s; %d messages were on their way", lost.reason, len(flight.unconfirmed))
        if flight.overtaken:
            self.incidents["overtaken"] += flight.overtaken
            log.error("%d events overtook one of their key that was refused", flight.overtaken)
        return _outcomes(messages, lost)

    def close(self) -> None:
        self._disown()
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _carry(self, flight: Flight, deadline: float) -> Lost | None:
        """Why the flight did not come to its end, if it did not."""
        while not flight.done:
            if monotonic() >= deadline:
                return Lost(Trouble.BROKER, "not published by the deadline")
            link = self._connected(deadline)
            if link.lost is None:
                link.carry(flight, deadline)
            if link.lost is None:
                break
            if link.lost.trouble not in (Trouble.RECORD, Trouble.FATAL) or not flight.unconfirmed:
                return link.lost
            # Something among the unconfirmed made the broker hang up: look for it on new connections.
            flight.interrupt(link.lost.trouble, link.lost.reason)
        return None

    def _connected(self, deadline: float) -> Link:
        """A link that is open, or lost."""
        self._disown()
        if self._link is None or self._link.lost is not None:
            self._declared.clear()
            self._link = Link(self._parameters, self._confirm_seconds, self._headers_of)
        self._link.wait_until_open(deadline)
        return self._link

    def _disown(self) -> None:
        """After a fork the connection is the parent's: kept, so that nothing here touches its socket."""
        if self._process != os.getpid():
            self._inherited, self._link, self._process = self._link, None, os.getpid()

    def _messages(self, events: Sequence[Event]) -> list[Message]:
        messages: list[Message] = []
        lanes: dict[str, Lane] = {}
        for event in events:
            key = event.key
            lane = lanes.get(key)
            if lane is None:
                lane = lanes[key] = Lane()
            address = self._address(event.destination, event.event_type, key.partition(":")[0])
            messages.append(Message(event, lane, *address))
        return messages

    def _find_address(self, destination: str, event_type: str, key_type: str) -> Address:
        values = {"event_type": event_type, "key_type": key_type}
        routing_key = _PLACEHOLDER.sub(lambda found: values[found[1]], self._template)
        exchange = "" if destination == DEFAULT_EXCHANGE else destination
        flaw = None
        if not destination:
            flaw = (
                f"the event names no exchange: give it one, or '{DEFAULT_EXCHANGE}' for the default exchange"
            )
        for what, text in (("exchange", exchange), ("routing key", routing_key)):
            try:
                short(text)
            except ValueError as error:
                flaw = f"the {what} cannot be written as AMQP: {error}"
        return Address(
            exchange,
            routing_key,
            Delivered(f"{destination}/{routing_key}"),
            None if flaw is None else Refused(flaw),
        )

    def _declare(self, messages: Sequence[Message], deadline: float) -> Lost | None:
        for exchange in {message.exchange for message in messages} - self._declared:
            if not exchange or exchange.startswith("amq."):
                continue
            link = self._connected(deadline)
            failure = link.lost or link.declare(exchange, deadline)
            if failure is None:
                self._declared.add(exchange)
                continue
            if failure.trouble is not Trouble.DESTINATION:
                return failure
            doom = classify.outcome(
                failure.trouble, f"exchange '{exchange}' cannot be declared: {failure.reason}"
            )
            for message in messages:
                if message.exchange == exchange:
                    message.doomed = message.doomed or doom
        return None


def connection_parameters(url: Any) -> Any:
    """What to connect to. Errors never quote the URL: it holds a password."""
    text = url.get_secret_value() if hasattr(url, "get_secret_value") else url
    if not text:
        raise SettingsError(
            "publisher = 'rabbitmq' needs an address: set [rabbitmq] url or RELAY_RABBITMQ__URL,"
            " e.g. amqp://user:password@localhost:5672/%2F"
        )
    try:
        if not re.match("amqps?://", text):
            raise ValueError
        parameters = pika.URLParameters(text)
    except OSError as error:
        raise SettingsError(
            f"[rabbitmq] url: the certificates of its ssl_options cannot be read: {error.strerror}"
        ) from None
    except (ValueError, TypeError, SyntaxError):
        raise SettingsError(
            "[rabbitmq] url is not understood: write amqp://user:password@host:5672/%2F, or amqps:// for TLS"
        ) from None
    if parameters.heartbeat is None:
        parameters.heartbeat = HEARTBEAT_SECONDS
    return parameters


def _outcomes(messages: Sequence[Message], lost: Lost | None) -> list[Outcome]:
    reason = "not confirmed in time" if lost is None else lost.reason
    trouble = Trouble.BROKER if lost is None or lost.trouble is Trouble.RECORD else lost.trouble
    missing = classify.outcome(trouble, reason)
    assert isinstance(missing, Unconfirmed)
    if lost is None or not lost.stalled:
        return conclude(messages, missing, missing)
    stuck = Unconfirmed(
        f"{reason}, though it confirmed other messages: the queue may lack replicas",
        "destination",
        holds="route",
    )
    return conclude(messages, missing, stuck)
