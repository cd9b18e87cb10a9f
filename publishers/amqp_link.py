"""One connection to RabbitMQ, in a thread of its own, with publisher confirms.

Guarantees: a flight that it carries ends by its deadline, and earlier where nothing is confirmed for
`confirm_seconds`. A link that fails, or that holds messages at the end of a flight, is lost: it says why
and is never used again. A channel that the broker closes is opened anew and the flight goes on.

While the broker blocks publishers (an alarm) nothing more is sent, and the wait counts only towards the
deadline. `close` and `discard` end the thread within seconds, whatever the network does.
"""

import logging
import threading
from functools import partial
from time import monotonic
from typing import Any

import pika
from pika.adapters.select_connection import IOLoop
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from publishers import classify
from publishers.amqp_errors import Lost, explain
from publishers.amqp_flight import Flight
from publishers.amqp_frames import Frames, HeadersOf, Unsendable
from publishers.classify import Trouble
from relay.outcome import Refused

log = logging.getLogger(__name__)

GOODBYE_SECONDS = 1.5
CLOSE_SECONDS = 3.0
WRITE_BYTES = 1 << 16  # that go to the socket at once, at least where there are so many


class Link:
    def __init__(self, parameters: Any, confirm_seconds: float, headers_of: HeadersOf) -> None:
        self.lost: Lost | None = None
        self._parameters = parameters
        self._where = f"RabbitMQ at {parameters.host}:{parameters.port}"
        self._confirm_seconds = confirm_seconds
        self._headers_of = headers_of
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._over = threading.Event()
        self._flight: Flight | None = None
        self._loop = IOLoop()
        self._connection: Any = None
        self._channel: Any = None
        self._frames: Frames | None = None  # of that channel
        self._tag = 0
        self._blocked: str | None = None
        self._oldest: object = None
        self._oldest_since = 0.0
        self._thread = threading.Thread(target=self._run, name="rabbitmq", daemon=True)
        self._thread.start()

    # Called from the publisher's thread.

    def wait_until_open(self, deadline: float) -> None:
        """Afterwards the link is open, or lost."""
        seconds = min(deadline - monotonic(), self._confirm_seconds)
        if not self._opened.wait(max(0.0, seconds)):
            self.discard(Lost(Trouble.BROKER, f"{self._where} did not answer in time"))

    def carry(self, flight: Flight, deadline: float) -> None:
        """Afterwards the flight is done, or the link is lost."""
        over = threading.Event()
        with self._lock:
            if self.lost is not None:
                return
            self._flight, self._over = flight, over
        self._loop.add_callback_threadsafe(self._pump)
        if not over.wait(max(0.0, deadline - monotonic())):
            self.discard(Lost(Trouble.BROKER, self._too_late("by the deadline")))

    def declare(self, exchange: str, deadline: float) -> Lost | None:
        """Make a durable topic exchange and a queue of its name that takes all; what kept it from that."""
        done = threading.Event()
        refused: list[str] = []
        self._loop.add_callback_threadsafe(partial(self._declare, exchange, done, refused))
        while not done.wait(0.05):
            if self.lost is not None:
                return self.lost
            if monotonic() > deadline:
                return Lost(Trouble.BROKER, self._too_late("the declaration by the deadline"))
        return Lost(Trouble.DESTINATION, refused[0]) if refused else None

    def close(self) -> None:
        self._loop.add_callback_threadsafe(self._say_goodbye)
        self._join()

    def discard(self, lost: Lost) -> None:
        """Drop the connection without a word: whatever it still holds may or may not arrive."""
        self._lose(lost)
        self._loop.add_callback_threadsafe(partial(self._terminate, lost))
        self._join()

    def _join(self) -> None:
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            log.error("the connection to %s did not end in %g s", self._where, CLOSE_SECONDS)

    # All that follows runs in the link's own thread.

    def _run(self) -> None:
        try:
            self._connection = pika.SelectConnection(
                self._parameters,
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_closed,
                on_close_callback=self._on_closed,
                custom_ioloop=self._loop,
            )
            self._loop.start()
        except Exception as error:
            log.exception("the connection to %s failed", self._where)
            self._give_up(Lost(Trouble.FATAL, f"the RabbitMQ client failed: {error!r}"))
        finally:
            self._loop.close()

    def _give_up(self, lost: Lost) -> None:
        self._terminate(lost)
        if self._connection is not None and not self._connection.is_closed:
            self._loop.start()  # until the socket is closed

    def _on_open(self, connection: Any) -> None:
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        self._open_channel()
        self._watch()

    def _open_channel(self) -> None:
        if self._connection.is_open:
            self._connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=partial(self._on_confirming, channel))

    def _on_confirming(self, channel: Any, _frame: Any) -> None:
        self._frames = Frames(self._headers_of, channel.channel_number, channel.connection.params.frame_max)
        self._channel, self._tag = channel, 0
        self._opened.set()
        self._pump()

    def _pump(self) -> None:
        """Send what may be sent."""
        flight, channel, frames = self._flight, self._channel, self._frames
        if flight is None or channel is None or frames is None or self._blocked is not None:
            return
        ready: list[bytes] = []
        size = 0
        while (message := flight.take()) is not None:
            try:
                written = frames.message(message.event, message.exchange, message.routing_key)
            except Unsendable as error:
                message.fail(Refused(str(error)))
                continue
            ready.append(written)
            size += len(written)
            self._tag += 1
            flight.unconfirmed[self._tag] = message
            if size >= WRITE_BYTES or message is flight.probe:
                self._write(ready)
                ready, size = [], 0
            if message is flight.probe:
                # Any question will do: its answer comes after the broker has looked for the exchange.
                channel.basic_qos(callback=partial(self._on_passed, flight))
        self._write(ready)
        if flight.done:
            self._flight = None
            self._over.set()

    def _write(self, ready: list[bytes]) -> None:
        if ready:
            # The client's public way takes one message at a time, and a system call for each of its frames.
            self._connection._output_marshaled_frames([b"".join(ready)])

    def _on_confirm(self, frame: Any) -> None:
        flight, method = self._flight, frame.method
        if flight is None:
            return
        settle = flight.confirm if method.INDEX == pika.spec.Basic.Ack.INDEX else flight.refuse
        settle(method.delivery_tag, method.multiple)
        self._pump()

    def _on_passed(self, flight: Flight, _frame: Any) -> None:
        if flight is self._flight:
            flight.passed()
            self._pump()

    def _on_return(self, _channel: Any, _method: Any, properties: Any, _body: bytes) -> None:
        if self._flight is not None:
            self._flight.give_back(properties.message_id)

    def _on_channel_closed(self, channel: Any, error: Exception) -> None:
        if not isinstance(error, ChannelClosedByBroker):
            return  # with its connection, which tells why
        self._channel = None
        trouble = classify.rabbitmq(error.reply_code)
        if trouble not in (Trouble.DESTINATION, Trouble.RECORD):
            self._terminate(explain(error, self._parameters))
            return
        log.warning("%s closed the channel: %s", self._where, error.reply_text)
        if self._flight is not None:
            self._flight.interrupt(trouble, error.reply_text)
        self._loop.add_callback(self._open_channel)

    def _on_blocked(self, _connection: Any, frame: Any) -> None:
        self._blocked = str(frame.method.reason)
        log.warning("%s takes no messages for now: %s", self._where, self._blocked)

    def _on_unblocked(self, _connection: Any, _frame: Any) -> None:
        self._blocked = None
        log.warning("%s takes messages again", self._where)
        self._pump()

    def _watch(self) -> None:
        """Give up where the oldest unconfirmed message stays the same for too long."""
        flight, now = self._flight, monotonic()
        oldest = None if flight is None else (self._channel, next(iter(flight.unconfirmed), None))
        if oldest is None or self._blocked is not None or oldest != self._oldest:
            self._oldest, self._oldest_since = oldest, now
        elif now - self._oldest_since >= self._confirm_seconds:
            self._terminate(Lost(Trouble.BROKER, self._too_late(f"for {self._confirm_seconds:g} s"), True))
            return
        self._loop.call_later(min(1.0, self._confirm_seconds / 10), self._watch)

    def _too_late(self, when: str) -> str:
        if self._blocked is not None:
            return f"{self._where} takes no messages ({self._blocked}): it needs more memory or disk"
        return f"{self._where} did not confirm {when}"

    def _declare(self, exchange: str, done: threading.Event, refused: list[str]) -> None:
        def on_closed(_channel: Any, error: Exception) -> None:
            if isinstance(error, ChannelClosedByBroker):
                refused.append(error.reply_text)
                done.set()

        def on_bound(channel: Any) -> None:
            done.set()
            channel.close()

        def on_open(channel: Any) -> None:
            channel.add_on_close_callback(on_closed)
            channel.exchange_declare(exchange, "topic", durable=True)
            channel.queue_declare(exchange, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind(exchange, exchange, "#", callback=lambda _: on_bound(channel))

        if self._connection.is_open:
            self._connection.channel(on_open_callback=on_open)

    def _say_goodbye(self) -> None:
        lost = Lost(Trouble.BROKER, "the publisher was closed")
        if self._connection.is_open:
            self._lose(lost)
            self._connection.close()
            self._loop.call_later(GOODBYE_SECONDS, partial(self._terminate, lost))
        else:
            self._terminate(lost)

    def _terminate(self, lost: Lost) -> None:
        self._lose(lost)
        if self._connection is not None and not self._connection.is_closed:
            # The client has no public way to drop a connection without asking the other side.
            self._connection._terminate_stream(AMQPConnectionError(lost.reason))

    def _on_closed(self, _connection: Any, error: BaseException) -> None:
        self._lose(explain(error, self._parameters))
        self._loop.stop()

    def _lose(self, lost: Lost) -> None:
        with self._lock:
            self.lost = self.lost or lost
            self._flight = None  # what is still heard of it comes too late
            self._opened.set()
            self._over.set()
