"""An exchange and a queue of the bench's own on the user's RabbitMQ: made, read back, deleted."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from publishers import rabbitmq as _the_extra  # noqa: F401 - says what to install where it is missing
from relay.bench.checker import Found
from relay.bench.local_processes import listening_process
from relay.bench.plan import Plan
from relay.errors import RelayError, SettingsError

import pika  # isort: skip
from pika.exceptions import AMQPError  # isort: skip

PREFETCH = 5000
SILENCE_SECONDS = 10.0


class RabbitBench:
    source = "the queue"

    def __init__(self, options: Mapping[str, Any], plan: Plan) -> None:
        if not options.get("url"):
            raise SettingsError("a bench of RabbitMQ needs its address: set RELAY_RABBITMQ__URL")
        if plan.destination is not None:
            raise SettingsError("a bench of RabbitMQ makes its own exchange: leave --destination out")
        self._parameters = pika.URLParameters(options["url"])
        self.process = listening_process(self._parameters.host, self._parameters.port)

    @contextmanager
    def place(self) -> Iterator["Queue"]:
        """A topic exchange with a quorum queue that takes all, as the publisher itself would declare them."""
        name = f"relay-bench-{secrets.token_hex(4)}"
        try:
            with self._channel() as channel:
                channel.exchange_declare(name, "topic", durable=True)
                channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
                channel.queue_bind(name, name, "#")
            yield Queue(self, name)
        except AMQPError as error:
            raise RelayError(
                f"RabbitMQ did not let the bench use an exchange and a queue of its own: {error!r}"
            ) from error
        finally:
            with suppress(AMQPError), self._channel() as channel:
                channel.queue_delete(name)
                channel.exchange_delete(name)

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        connection = pika.BlockingConnection(self._parameters)
        try:
            yield connection.channel()
        finally:
            with suppress(AMQPError):
                connection.close()


class Queue:
    def __init__(self, broker: RabbitBench, name: str) -> None:
        self.name = name
        self._broker = broker

    def messages(self) -> Iterator[Found]:
        """Takes them out of the queue."""
        with self._broker._channel() as channel:
            expected = channel.queue_declare(self.name, passive=True).method.message_count
            if not expected:
                return
            channel.basic_qos(prefetch_count=PREFETCH)
            for method, properties, _body in channel.consume(self.name, inactivity_timeout=SILENCE_SECONDS):
                if method is None:
                    raise RelayError(f"{expected} messages of the queue {self.name} could not be read back")
                yield _found(properties.headers)
                expected -= 1
                if expected == 0 or expected % (PREFETCH // 2) == 0:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                if expected == 0:
                    channel.cancel()
                    return


def _found(headers: Mapping[str, Any]) -> Found:
    key = headers.get("partition_key") or headers["cloudEvents:partitionkey"]
    return Found(str(key), int(headers.get("position") or headers["cloudEvents:position"]))
