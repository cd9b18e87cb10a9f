"""TLS to PostgreSQL, Kafka and RabbitMQ: events arrive, strangers are refused. Certificates are made here."""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from relay.demo.postgres import PostgresServer, ServerError, free_port
from relay.store.migrate import migrate
from tests.conftest import missing
from tests.integration.cli_kit import failure
from tests.integration.cli_kit import relay as command
from tests.servers import postgres
from tests.servers.certificates import Authority
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_rig import read_topic
from tests.servers.rabbit_rig import RabbitRig
from tests.servers.rabbitmq import RabbitNode
from tests.system.relays import RelayProcess, insert, statuses, wait_until

Start = Callable[..., RelayProcess]


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A place that servers which do not run as root may enter."""
    with tempfile.TemporaryDirectory(prefix="outbox-relay-tls-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    try:
        return Authority(directory / "known")
    except ServerError as error:
        missing(str(error))


@pytest.fixture(scope="module")
def stranger(authority: Authority, directory: Path) -> Authority:
    """Another authority, which has vouched for none of the servers."""
    return Authority(directory / "strange")


def findings(**environment: str) -> list[dict[str, str]]:
    done = command("doctor", "--json", **environment)
    assert "Traceback" not in done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return found


def error_of(family: str, **environment: str) -> str:
    (found,) = [each for each in findings(**environment) if each["family"] == family]
    assert found["severity"] == "error", found
    return found["what"]


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[PostgresServer]:
    settings = {
        "ssl": "on",
        "ssl_cert_file": str(authority.certificate),
        "ssl_key_file": str(authority.key),
    }
    try:
        server = postgres.distribution(settings=settings)
    except ServerError as error:
        missing(str(error))
    with server:
        migrate(server.url())
        yield server


def postgres_url_of(server: PostgresServer, ca: Path, host: str = "localhost") -> str:
    # hostaddr: the name is what the certificate is checked against, wherever the name may lead.
    return (
        f"postgresql://postgres@{host}:{server.port}/postgres"
        f"?hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={quote(str(ca), '')}"
    )


def test_a_relay_works_over_a_verified_connection(
    server: PostgresServer, authority: Authority, relay: Start
) -> None:
    insert(server.url(), 10, 2)
    process = relay(postgres_url_of(server, authority.ca))
    wait_until(lambda: statuses(server.url()) == {"completed": 10})
    with psycopg.connect(server.url()) as conn:
        encrypted = conn.execute(
            "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
            " WHERE application_name LIKE 'outbox-relay%'"
        ).fetchone()
    assert encrypted == (True,)
    process.terminate()
    assert process.wait() == 0


def test_a_server_that_another_authority_vouches_for_is_refused_in_a_sentence(
    server: PostgresServer, stranger: Authority
) -> None:
    url = postgres_url_of(server, stranger.ca)
    said = failure(command("run", RELAY_DATABASE_URL=url, RELAY_PUBLISHER="stdout", RELAY_HTTP="off"))
    assert "certificate verify failed" in said
    assert said.endswith("check sslrootcert in database_url")
    assert len(said.splitlines()) == 1


def test_a_certificate_of_another_name_is_refused(server: PostgresServer, authority: Authority) -> None:
    url = postgres_url_of(server, authority.ca, "db.example.com")
    said = error_of("database", RELAY_DATABASE_URL=url, RELAY_PUBLISHER="stdout")
    assert 'does not match host name "db.example.com"' in said


def test_a_missing_file_of_authorities_for_postgresql_is_a_sentence(
    server: PostgresServer, tmp_path: Path
) -> None:
    url = postgres_url_of(server, tmp_path / "missing.pem")
    said = failure(command("status", RELAY_DATABASE_URL=url))
    assert "missing.pem" in said


class SecureBroker(KafkaBroker):
    """Its second listener is TLS; the certificates are PEM files."""

    def __init__(self, authority: Authority) -> None:
        super().__init__()
        self._authority = authority

    @property
    def secure_address(self) -> str:
        return f"localhost:{self.proxied_target}"

    def _properties(self) -> dict[str, str]:
        tls = "listener.name.proxied.ssl"
        return super()._properties() | {
            "advertised.listeners": f"CLIENT://{self.address},PROXIED://{self.secure_address}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,PROXIED:SSL,CONTROLLER:PLAINTEXT",
            f"{tls}.keystore.type": "PEM",
            f"{tls}.keystore.location": str(self._authority.chain()),
            f"{tls}.truststore.type": "PEM",
            f"{tls}.truststore.location": str(self._authority.ca),
        }


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[SecureBroker]:
    try:
        broker = SecureBroker(authority)
    except ServerError as error:
        missing(str(error))
    with broker:
        broker.create_topic("secured")
        yield broker


def kafka_settings(database: str, broker: SecureBroker, ca: Path) -> dict[str, str]:
    config = {"security.protocol": "ssl", "ssl.ca.location": str(ca)}
    return {
        "RELAY_DATABASE_URL": database,
        "RELAY_PUBLISHER": "kafka",
        "RELAY_DESTINATION": "secured",
        "RELAY_KAFKA__BOOTSTRAP_SERVERS": broker.secure_address,
        "RELAY_KAFKA__CONFIG": json.dumps(config),
    }


def test_events_arrive_at_kafka_over_tls(
    database: str, broker: SecureBroker, authority: Authority, relay: Start
) -> None:
    insert(database, 10, 2)
    process = relay(database, "--until-empty", environment=kafka_settings(database, broker, authority.ca))
    assert process.wait() == 0, process.log
    assert statuses(database) == {"completed": 10}
    assert len(read_topic(broker.address, "secured")) == 10
    found = findings(**kafka_settings(database, broker, authority.ca))
    assert not any(each["severity"] == "error" for each in found)


def test_a_broker_that_another_authority_vouches_for_is_refused_in_a_sentence(
    database: str, broker: SecureBroker, stranger: Authority, relay: Start
) -> None:
    settings = kafka_settings(database, broker, stranger.ca)
    said = error_of("kafka", **settings)
    assert "refuses this client" in said
    assert "certificate verify failed" in said
    insert(database, 1, 1)
    process = relay(database, environment=settings)
    wait_until(lambda: "certificate verify failed" in process.log, what="the relay to say so")
    assert "Traceback" not in process.log
    assert statuses(database) == {"pending": 1}


def test_a_missing_file_of_authorities_for_kafka_is_a_wrong_setting(
    database: str, broker: SecureBroker, tmp_path: Path
) -> None:
    settings = kafka_settings(database, broker, tmp_path / "missing.pem")
    said = failure(command("run", **settings), 2)
    assert "ssl.ca.location" in said


@pytest.fixture(scope="module")
def tls_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def node(authority: Authority, tls_port: int) -> Iterator[RabbitNode]:
    settings: dict[str, str | int] = {
        "listeners.ssl.default": tls_port,
        "ssl_options.cacertfile": str(authority.ca),
        "ssl_options.certfile": str(authority.certificate),
        "ssl_options.keyfile": str(authority.key),
    }
    try:
        node = RabbitNode(settings=settings)
    except ServerError as error:
        missing(str(error))
    with node:
        yield node


def rabbit_settings(database: str, rig: RabbitRig, port: int, ca: Path) -> dict[str, str]:
    options = quote(repr({"ca_certs": str(ca), "verify_mode": "CERT_REQUIRED"}), "")
    return {
        "RELAY_DATABASE_URL": database,
        "RELAY_PUBLISHER": "rabbitmq",
        "RELAY_DESTINATION": rig.destination,
        "RELAY_RABBITMQ__URL": f"amqps://guest:guest@localhost:{port}/%2F?ssl_options={options}",
    }


def test_events_arrive_at_rabbitmq_over_tls(
    database: str, node: RabbitNode, tls_port: int, authority: Authority, relay: Start
) -> None:
    rig = RabbitRig(node.url)
    settings = rabbit_settings(database, rig, tls_port, authority.ca)
    insert(database, 10, 2)
    process = relay(database, "--until-empty", environment=settings)
    assert process.wait() == 0, process.log
    assert len(rig.received(10)) == 10
    assert not any(each["severity"] == "error" for each in findings(**settings))


def test_a_node_that_another_authority_vouches_for_is_refused_in_a_sentence(
    database: str, node: RabbitNode, tls_port: int, stranger: Authority, relay: Start
) -> None:
    settings = rabbit_settings(database, RabbitRig(node.url), tls_port, stranger.ca)
    said = error_of("rabbitmq", **settings)
    assert "cannot be reached by TLS" in said
    insert(database, 1, 1)
    process = relay(database, environment=settings)
    wait_until(lambda: "cannot be reached by TLS" in process.log, what="the relay to say so")
    assert "Traceback" not in process.log
    assert statuses(database) == {"pending": 1}


def test_a_missing_file_of_authorities_for_rabbitmq_is_a_wrong_setting(
    database: str, node: RabbitNode, tls_port: int, tmp_path: Path
) -> None:
    settings = rabbit_settings(database, RabbitRig(node.url), tls_port, tmp_path / "missing.pem")
    said = failure(command("run", **settings), 2)
    assert "the certificates of its ssl_options cannot be read" in said
