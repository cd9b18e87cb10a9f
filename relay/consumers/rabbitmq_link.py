"""One connection to RabbitMQ that consumes a queue, in a thread of its own.

The thread serves the connection, so that a long handler costs no heartbeat; messages wait in a queue here.
A link that fails says why in `lost` and is never used again. `close` sends the acknowledgements that are on
their way, and ends within seconds whatever the network does.
"""

import logging
import threading
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import pika
from pika.exceptions import AMQPError, ConnectionWrongStateError

from publishers.amqp_errors import explain
from relay.errors import RelayError

log = logging.getLogger(__name__)

OPEN_SECONDS = 15.0
CLOSE_SECONDS = 5.0
SLICE_SECONDS = 1.0


class Link:
    def __init__(self, parameters: Any, queue: str, prefetch: int, name: str) -> None:
        """RelayError where it cannot be made."""
        self.lost: str | None = None
        self._parameters = parameters
        self._queue = queue
        self._prefetch = prefetch
        self._name = name
        self._messages: SimpleQueue[tuple[int, Any, bytes]] = SimpleQueue()
        self._opened = threading.Event()
        self._closing = False
        self._connection: Any = None
        self._channel: Any = None
        if logging.getLogger("pika").level == logging.NOTSET:
            # It reports every failure at length, in several records; this module does in one.
            logging.getLogger("pika").setLevel(logging.CRITICAL)
        self._thread = threading.Thread(target=self._run, name=f"rabbitmq {queue}", daemon=True)
        self._thread.start()
        if not self._opened.wait(OPEN_SECONDS):
            self._closing = True
            raise RelayError(f"RabbitMQ at {parameters.host}:{parameters.port} did not answer in time")
        if self.lost is not None:
            raise RelayError(self.lost)

    def take(self, seconds: float) -> tuple[int, Any, bytes] | None:
        """The next message: its delivery tag, properties and body."""
        try:
            return self._messages.get(timeout=seconds) if seconds > 0 else self._messages.get_nowait()
        except Empty:
            return None

    def acknowledge(self, tag: int) -> None:
        with suppress(ConnectionWrongStateError):  # lost: it comes again
            self._connection.add_callback_threadsafe(partial(self._acknowledge, tag))

    def close(self) -> None:
        self._closing = True
        with suppress(ConnectionWrongStateError):
            self._connection.add_callback_threadsafe(lambda: None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            log.error("the connection to RabbitMQ did not end in %g s", CLOSE_SECONDS)

    # All that follows runs in the link's own thread.

    def _run(self) -> None:
        try:
            self._connection = pika.BlockingConnection(self._parameters)
            self._consume()
            self._opened.set()
            while not self._closing and self.lost is None:
                self._connection.process_data_events(SLICE_SECONDS)
                self._look_at_the_channel()
            self._connection.process_data_events(0)  # acknowledgements that were asked for before
        except (AMQPError, OSError) as error:
            self.lost = explain(error, self._parameters).reason
        except Exception as error:
            log.exception("the connection to RabbitMQ failed")
            self.lost = f"the connection to RabbitMQ failed: {error}"
        finally:
            self._opened.set()
            with suppress(AMQPError, OSError):
                if self._connection is not None and self._connection.is_open:
                    self._connection.close()

    def _consume(self) -> None:
        channel = self._channel = self._connection.channel()
        channel.basic_qos(prefetch_count=self._prefetch)
        channel.add_on_cancel_callback(self._on_cancel)
        channel.basic_consume(self._queue, self._on_message, consumer_tag=f"{self._name} {id(self):x}")

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._messages.put((method.delivery_tag, properties, body))

    def _on_cancel(self, frame: Any) -> None:
        self.lost = f"RabbitMQ ended the consumption of queue {self._queue}: was it deleted?"

    def _look_at_the_channel(self) -> None:
        """The broker may close it alone, for example when its consumer_timeout is over."""
        if self.lost is None and not self._channel.is_open:
            # The client raises this nowhere as long as its connection lives.
            reason = getattr(self._channel, "_closing_reason", None)
            said = getattr(reason, "reply_text", None) or "its log says why"
            self.lost = f"RabbitMQ closed the channel that consumes queue {self._queue}: {said}"

    def _acknowledge(self, tag: int) -> None:
        if self._channel.is_open:  # else it comes again
            self._channel.basic_ack(tag)
