"""Apache Kafka brokers for tests, in KRaft combined mode, from the jars that `make servers` downloads.

Each broker has two client listeners: `address`, and one whose advertised port is `proxied_port`, where
nothing listens until a test puts a `TcpProxy(…, target_port=broker.proxied_target, port=broker.proxied_port)`
there. A client given that port talks to the broker only through the proxy.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relay.demo.postgres import ServerError, free_port
from tests.servers.process import ServerProcess, wait_until

VERSION = "4.1.0"
CLUSTER_ID = "b3V0Ym94LXJlbGF5LXRlcw"


class KafkaBroker(ServerProcess):
    name = "kafka"

    def __init__(
        self,
        node_id: int = 1,
        *,
        settings: Mapping[str, str] | None = None,
        voters: Mapping[int, int] | None = None,
    ) -> None:
        self.jars = find_jars()
        super().__init__()
        self.node_id = node_id
        self.port = free_port()
        self.proxied_port = free_port()
        self.proxied_target = free_port()
        self.voters = dict(voters or {node_id: free_port()})
        self.settings = dict(settings or {})

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def create_topic(
        self, topic: str, partitions: int = 1, *, config: Mapping[str, str] | None = None
    ) -> None:
        create_topic(self.address, topic, partitions, config=config)

    def _prepare(self) -> None:
        properties = self.home / "server.properties"
        if properties.exists():
            return
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._properties().items()))
        with (self.home / "server.log").open("wb") as log:
            subprocess.run(
                [*self._java(), "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)],
                stdout=log,
                stderr=log,
                check=True,
            )

    def _properties(self) -> dict[str, str]:
        client, proxied = f"CLIENT://{self.address}", f"PROXIED://127.0.0.1:{self.proxied_port}"
        replicas = str(len(self.voters))
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            "controller.quorum.voters": ",".join(
                f"{node}@127.0.0.1:{port}" for node, port in self.voters.items()
            ),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{client},PROXIED://127.0.0.1:{self.proxied_target},"
            f"CONTROLLER://127.0.0.1:{self.voters[self.node_id]}",
            "advertised.listeners": f"{client},{proxied}",
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in ("CLIENT", "PROXIED", "CONTROLLER")
            ),
            "inter.broker.listener.name": "CLIENT",
            "log.dirs": str(self.home / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # A broker that was killed comes back only after its old session has ended.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            **self.settings,
        }

    def _java(self) -> list[str]:
        # Stopping at the first compiler tier halves the CPU time of a start.
        tuning = ["-Xmx512m", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        return ["java", *tuning, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{self.jars}/*"]

    def _argv(self) -> Sequence[str]:
        return [*self._java(), "kafka.Kafka", str(self.home / "server.properties")]

    def _answers(self) -> bool:
        return len(_brokers(self.address)) > 0


class KafkaCluster:
    """Brokers that replicate to each other; topics made through it have a copy on each."""

    def __init__(self, size: int = 3, *, min_insync: int = 2) -> None:
        voters = {node: free_port() for node in range(1, size + 1)}
        settings = {
            "default.replication.factor": str(size),
            "min.insync.replicas": str(min_insync),
        }
        self.brokers = [KafkaBroker(node, settings=settings, voters=voters) for node in voters]

    @property
    def address(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def create_topic(
        self, topic: str, partitions: int = 1, *, config: Mapping[str, str] | None = None
    ) -> None:
        create_topic(self.address, topic, partitions, config=config)

    def start(self) -> None:
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_until_ready()
        size = len(self.brokers)
        wait_until(lambda: len(_brokers(self.address)) == size, 60, "all brokers to register")

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def find_jars() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jars = cache / "outbox-relay" / f"kafka-{VERSION}"
    if not jars.is_dir():
        raise ServerError("The jars of Apache Kafka are not there: make servers.")
    if shutil.which("java") is None:
        raise ServerError("Apache Kafka needs Java: make servers.")
    return jars


def create_topic(
    address: str, topic: str, partitions: int = 1, *, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic and wait until every partition of it has a leader."""
    admin = AdminClient({"bootstrap.servers": address})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))
    admin.create_topics([new])[topic].result(30)

    def led() -> bool:
        found = admin.list_topics(topic, timeout=5).topics[topic].partitions
        return len(found) == partitions and all(p.leader >= 0 for p in found.values())

    wait_until(led, 30, f"leaders of the topic {topic}")


def _brokers(address: str) -> list[int]:
    config: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0, "error_cb": lambda _: None}
    admin = AdminClient(config)
    try:
        return list(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return []
