"""Servers for tests. See the fixtures; each test that asks for one is marked `server`.

A server comes from the environment (RELAY_TEST_DATABASE_URL, RELAY_TEST_KAFKA, RELAY_TEST_RABBITMQ),
else from Docker where an engine answers, else it runs natively. All test processes of a run share it.
Where there is none the test is skipped, and fails where CI is set.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import psycopg
import pytest
from filelock import FileLock
from psycopg import sql

from relay.demo.postgres import PostgresServer, ServerError
from tests.servers import postgres as postgres_servers
from tests.servers.kafka import KafkaBroker, KafkaCluster, create_topic
from tests.servers.pgbouncer import PgBouncer
from tests.servers.proxy import TcpProxy
from tests.servers.rabbitmq import RabbitNode
from tests.servers.supervisor import SupervisorHandle, ask, run_directory

SERVER_FIXTURES = {
    "postgres_url",
    "own_postgres",
    "kafka",
    "own_kafka",
    "own_kafka_cluster",
    "rabbitmq",
    "own_rabbitmq",
}
TEMPLATE_LOCK = 7_402_118
Server = TypeVar("Server", PostgresServer, KafkaBroker, KafkaCluster, RabbitNode)


def build_template(url: str) -> None:
    """Make the tables in the database that every `database` is a copy of."""
    from relay.store.migrate import migrate

    migrate(url)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.add_cleanup(SupervisorHandle().close)
        config.add_cleanup(_drop_template)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_postgres" in metafunc.fixturenames:
        metafunc.parametrize("postgres_version", [15, 18], indirect=True, ids="postgres{}".format)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SERVER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("server")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What tests have measured, and their seeds: a test tells it by `record_property("tells", …)`."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    told = [str(value) for report in reports for name, value in report.user_properties if name == "tells"]
    if told:
        terminalreporter.section("told by tests")
        terminalreporter.write_line("\n".join(told))


def missing(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason.splitlines()[0])


def obtain(name: str) -> dict[str, Any]:
    """Where the shared server of this name is; the test is skipped where there is none."""
    answer = ask(name)
    if "missing" in answer:
        missing(answer["missing"])
    return answer


@pytest.fixture
def postgres_version(request: pytest.FixtureRequest) -> int | None:
    """15 or 18 where the test asks for one, by `any_postgres` or `@pytest.mark.postgres(15)`."""
    if hasattr(request, "param"):
        return int(request.param)
    marker = request.node.get_closest_marker("postgres")
    return int(marker.args[0]) if marker else None


@pytest.fixture
def any_postgres(postgres_version: int) -> int:
    """Ask for this to run a test once on each supported PostgreSQL; the value is its version."""
    return postgres_version


@pytest.fixture
def postgres_url(postgres_version: int | None) -> str:
    """The URL of a PostgreSQL server, as its superuser."""
    configured = os.environ.get("RELAY_TEST_DATABASE_URL")
    if configured and postgres_version in (None, _major_version(configured)):
        return configured
    url: str = obtain(f"postgres{postgres_version or 18}")["url"]
    return url


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    """The URL of a new database with the tables of the relay in it."""
    yield from _new_database(postgres_url, _template(postgres_url))


@pytest.fixture
def empty_database(postgres_url: str) -> Iterator[str]:
    """The URL of a new, empty database."""
    yield from _new_database(postgres_url, "template1")


def _major_version(url: str) -> int:
    with psycopg.connect(url) as connection:
        return connection.info.server_version // 10_000


def _at(url: str, dbname: str) -> str:
    return urlsplit(url)._replace(path=f"/{dbname}").geturl()


def _template_name() -> str:
    return f"relay_{run_directory().name.rpartition('-')[2]}_template".lower()


def _drop_template() -> None:
    """Leave nothing on a server that outlives the run."""
    if url := os.environ.get("RELAY_TEST_DATABASE_URL"):
        with psycopg.connect(url, autocommit=True) as admin:
            _drop(admin, _template_name())


def _template(url: str) -> str:
    """The name of this run's template database, made by whichever test process comes first."""
    name = _template_name()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("SELECT pg_advisory_lock(%s)", [TEMPLATE_LOCK])
        known = admin.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone()
        if known is None:
            draft = f"{name}_draft"
            _drop(admin, draft)
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(draft)))
            build_template(_at(url, draft))
            admin.execute(
                sql.SQL("ALTER DATABASE {} RENAME TO {}").format(sql.Identifier(draft), sql.Identifier(name))
            )
    return name


def _new_database(url: str, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
    yield _at(url, name)
    with psycopg.connect(url, autocommit=True) as admin:
        _drop(admin, name)


def _drop(admin: psycopg.Connection, name: str) -> None:
    admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def own_postgres(postgres_version: int | None) -> Iterator[PostgresServer]:
    """A server of this test alone, to kill and restart."""
    make = postgres_servers.distribution if postgres_version == 15 else postgres_servers.embedded
    yield from _own(make)


@pytest.fixture
def pooler() -> Iterator[Callable[..., str]]:
    """`pooler(url, mode="transaction")` is the URL of the same database through a PgBouncer in that mode."""
    with ExitStack() as stack:

        def make(url: str, mode: str = "transaction") -> str:
            try:
                return stack.enter_context(PgBouncer(url, mode)).url
            except ServerError as error:
                missing(str(error))

        yield make


@pytest.fixture
def pgbouncer(database: str, pooler: Callable[..., str]) -> str:
    """The URL of `database` through a PgBouncer in transaction mode, with few sessions for all clients."""
    return pooler(database)


@dataclass(frozen=True)
class Kafka:
    """The shared broker. `proxied_…` are None where it did not come from us."""

    address: str
    proxied_port: int | None = None
    proxied_target: int | None = None

    def create_topic(
        self, partitions: int = 1, *, config: Mapping[str, str] | None = None, name: str | None = None
    ) -> str:
        """Make a topic of a new name, and return the name."""
        topic = name or f"topic-{uuid.uuid4().hex}"
        create_topic(self.address, topic, partitions, config=config)
        return topic


@pytest.fixture
def kafka() -> Kafka:
    """The shared broker: use topics of your own, and do not stop it."""
    configured = os.environ.get("RELAY_TEST_KAFKA")
    return Kafka(configured) if configured else Kafka(**obtain("kafka"))


@pytest.fixture
def kafka_proxy(kafka: Kafka) -> Iterator[TcpProxy]:
    """A proxy in front of the shared broker: a client that bootstraps from its address stays behind it.

    One test at a time has it.
    """
    if kafka.proxied_port is None or kafka.proxied_target is None:
        missing("A proxy in front of Kafka needs the broker that the tests run themselves.")
    with (
        FileLock(run_directory() / "kafka-proxy.lock"),
        TcpProxy("127.0.0.1", kafka.proxied_target, port=kafka.proxied_port) as proxy,
    ):
        yield proxy


@pytest.fixture
def own_kafka() -> Iterator[KafkaBroker]:
    """A broker of this test alone, to kill, freeze and restart."""
    yield from _own(KafkaBroker)


@pytest.fixture
def own_kafka_cluster() -> Iterator[KafkaCluster]:
    """Three brokers of this test alone; a write needs two of them."""
    yield from _own(KafkaCluster)


@pytest.fixture
def rabbitmq() -> str:
    """The URL of the shared RabbitMQ node: use exchanges and queues of your own, and do not stop it."""
    return os.environ.get("RELAY_TEST_RABBITMQ") or obtain("rabbitmq")["url"]


@pytest.fixture
def own_rabbitmq() -> Iterator[RabbitNode]:
    """A node of this test alone, to kill, freeze and restart."""
    yield from _own(RabbitNode)


def _own(make: Callable[[], Server]) -> Iterator[Server]:
    try:
        server = make()
    except ServerError as error:
        missing(str(error))
    with server:
        yield server


@pytest.fixture
def proxy() -> Iterator[Callable[[str], TcpProxy]]:
    """`proxy(url_or_address)` puts a TcpProxy before a server; `.url(url)` is the same URL through it."""
    with ExitStack() as stack:

        def make(target: str) -> TcpProxy:
            parts = urlsplit(target if "://" in target else f"//{target}")
            return stack.enter_context(TcpProxy(parts.hostname or "", parts.port or 0))

        yield make
