"""Where a bench publishes, and how what arrived there is read back."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from relay.bench.checker import Found
from relay.bench.plan import Plan
from relay.errors import SettingsError
from relay.settings import Settings


class Place(Protocol):
    """A destination of the bench's own."""

    name: str

    def messages(self) -> Iterator[Found]:
        """What has arrived, each key's messages in their order."""


class Broker(Protocol):
    source: str  # where messages are read back, in words
    process: int | None  # the server's, where it runs on this machine

    def place(self) -> AbstractContextManager[Place]:
        """Somewhere to publish that is empty, and gone afterwards."""


class NoBroker:
    """The publisher keeps or prints what it is given, or its word has to do."""

    process: int | None = None

    def __init__(self, settings: Settings, plan: Plan) -> None:
        self._name = plan.destination or settings.destination
        kept = {"stdout": "what was printed", "memory": "what was kept in memory"}
        self.source = kept.get(settings.publisher, "what the publisher reported")
        if settings.publisher == "webhook" and plan.destination is None:
            raise SettingsError("a bench of the webhook publisher needs a receiver: pass --destination URL")

    @contextmanager
    def place(self) -> Iterator[Place]:
        yield _Nowhere(self._name)


class _Nowhere:
    def __init__(self, name: str) -> None:
        self.name = name

    def messages(self) -> Iterator[Found]:
        raise NotImplementedError("read from the processes themselves")


def broker_of(settings: Settings, plan: Plan) -> Broker:
    if settings.publisher == "kafka":
        from relay.bench.kafka_broker import KafkaBench  # noqa: PLC0415 - an extra

        return KafkaBench(settings.publisher_section(), plan)
    if settings.publisher == "rabbitmq":
        from relay.bench.rabbitmq_broker import RabbitBench  # noqa: PLC0415 - an extra

        return RabbitBench(settings.publisher_section(), plan)
    return NoBroker(settings, plan)
