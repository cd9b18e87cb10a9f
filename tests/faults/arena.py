"""The servers of the fault suite, and how to get at them: started once, used by one run after another."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

from relay.demo.postgres import PostgresServer
from relay.testing import Received
from tests.faults.checker import Message
from tests.servers import postgres
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_rig import KafkaRig
from tests.servers.proxy import TcpProxy
from tests.servers.rabbit_rig import RabbitRig
from tests.servers.rabbitmq import RabbitNode

BrokerName: TypeAlias = Literal["kafka", "rabbitmq"]

CONFIRM_SECONDS = 1.5


class Startable(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


Server = TypeVar("Server", bound=Startable)


class Operated(Generic[Server]):
    """A server and the one thread that starts and stops it: Linux ends a server with its starter."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._operator = ThreadPoolExecutor(1)

    def do(self, act: Callable[[Server], object]) -> None:
        self._operator.submit(act, self.server).result()

    def __enter__(self) -> Self:
        try:
            self.do(lambda server: server.start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.do(lambda server: server.stop())
        self._operator.shutdown()


class Place:
    """Where the events of one run go: on a broker, by way of a proxy."""

    server: Operated[KafkaBroker] | Operated[RabbitNode]

    def __init__(
        self, kind: BrokerName, rig: KafkaRig | RabbitRig, options: dict[str, Any], proxy: TcpProxy
    ) -> None:
        self.destination = rig.destination
        self.options = {"kind": kind} | options
        self.proxy = proxy
        self._rig = rig

    def messages(self) -> list[Message]:
        return [_message(received) for received in self._rig.received(0)]


def _message(received: Received) -> Message:
    headers = received.headers
    place = int(headers["position"]), int(headers["lease_generation"])
    return Message(received.event_id, headers["partition_key"], *place)


class Arena:
    """`with Arena() as arena`: PostgreSQL at once, a broker when it is first asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._brokers: dict[BrokerName, Any] = {}
        self._proxies: dict[BrokerName, TcpProxy] = {}

    def __enter__(self) -> Self:
        self.postgres: Operated[PostgresServer] = self._stack.enter_context(Operated(postgres.embedded()))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def place(self, kind: BrokerName) -> Place:
        """A new topic or queue, which is empty."""
        if kind not in self._brokers:
            self._brokers[kind] = self._stack.enter_context(
                Operated(KafkaBroker()) if kind == "kafka" else Operated(RabbitNode())
            )
            self._proxies[kind] = self._stack.enter_context(self._proxy(kind))
        operated, proxy = self._brokers[kind], self._proxies[kind]
        if kind == "kafka":
            topic = KafkaRig(operated.server.address)
            place = Place(kind, topic, {"bootstrap_servers": proxy.address}, proxy)
        else:
            queue = RabbitRig(operated.server.url)
            options = {"url": proxy.url(operated.server.url), "confirm_seconds": CONFIRM_SECONDS}
            place = Place(kind, queue, options, proxy)
        place.server = operated
        return place

    def _proxy(self, kind: BrokerName) -> TcpProxy:
        server = self._brokers[kind].server
        if kind == "kafka":
            return TcpProxy("127.0.0.1", server.proxied_target, port=server.proxied_port)
        return TcpProxy("127.0.0.1", server.port)
