"""What doctor finds at the brokers: each fault is made, found, fixed by what was printed, and gone."""

import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from uuid import uuid4

import pika
import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relay.demo.postgres import ServerError, free_port
from relay.doctor import finding
from relay.doctor import kafka as doctor_kafka
from relay.doctor import rabbitmq as doctor_rabbitmq
from relay.doctor.kafka_commands import Commands
from tests.conftest import Kafka, missing
from tests.integration.cli_kit import add
from tests.integration.doctor_kit import Clinic, finds_and_fixes
from tests.servers.certificates import Authority
from tests.servers.kafka import KafkaCluster
from tests.servers.process import accepts_connections, wait_until
from tests.servers.rabbitmq import RabbitNode
from tests.system.relays import relays, statuses


def kafka_clinic(database: str, home: Path, address: str, topic: str) -> Clinic:
    return Clinic(
        database,
        home,
        RELAY_PUBLISHER="kafka",
        RELAY_DESTINATION=topic,
        RELAY_KAFKA__BOOTSTRAP_SERVERS=address,
    )


def test_a_missing_topic_and_one_that_is_set_up_to_lose_events(
    database: str, kafka: Kafka, tmp_path: Path
) -> None:
    topic = f"doctor-{uuid4().hex}"
    clinic = kafka_clinic(database, tmp_path, kafka.address, topic)
    finds_and_fixes(clinic, "kafka", f"the topic {topic} does not exist", "error", within=30)
    assert clinic.fault("kafka", "the cluster is one broker").severity == "warning"

    clinic.shell(Commands(kafka.address).configure(topic, "unclean.leader.election.enable", "true"))
    clinic.shell(Commands(kafka.address).configure(topic, "max.message.bytes", 2000))
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload) SELECT 'order:' || i, 'OrderPaid',"
            " jsonb_build_object('text', repeat('x', 1000 * i)) FROM generate_series(1, 5) i"
        )
    wait_until(lambda: not clinic.healed("kafka", "unclean.leader.election"), 30, "the broker to know")
    finds_and_fixes(clinic, "kafka", f"unclean.leader.election.enable is on for {topic}", "error", within=30)
    limit = f"max.message.bytes of {topic} is 2,000, and an event for it has a payload of 5,012 bytes"
    finds_and_fixes(clinic, "kafka", limit, "error", within=30)


@pytest.fixture
def two_brokers() -> Iterator[KafkaCluster]:
    try:
        cluster = KafkaCluster(2, min_insync=1)
    except ServerError as error:
        missing(str(error))
    with cluster:
        yield cluster


@pytest.mark.slow
def test_a_topic_that_would_lose_events_with_one_broker(
    database: str, two_brokers: KafkaCluster, tmp_path: Path
) -> None:
    topic = "few-copies"
    admin = AdminClient({"bootstrap.servers": two_brokers.address})
    few = NewTopic(topic, num_partitions=3, replication_factor=1, config={"min.insync.replicas": "1"})
    admin.create_topics([few])[topic].result(30)
    clinic = kafka_clinic(database, tmp_path, two_brokers.address, topic)
    about = f"the topic {topic} has one copy of each event, and the cluster could keep 2"
    wait_until(lambda: not clinic.healed("kafka", about), 30, "the topic to be known")
    finds_and_fixes(clinic, "kafka", about, "error", within=60)
    about = f"min.insync.replicas of {topic} is 1, with 2 copies"
    finds_and_fixes(clinic, "kafka", about, "error", within=30)
    (left,) = clinic.faults("kafka")
    assert (left.severity, left.what) == ("warning", f"min.insync.replicas of {topic} is 2, with 2 copies")
    assert "publishing stops whenever a single broker is down" in left.why


def test_what_there_is_no_time_for_is_said(
    database: str, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "LONGEST_SECONDS", 0.0)
    clinic = kafka_clinic(database, tmp_path, kafka.address, "not-asked-about")
    assert clinic.fault("kafka", "1 more were not looked at: not-asked-about").severity == "warning"


def test_where_events_go_is_read_from_the_events_too(database: str, kafka: Kafka, tmp_path: Path) -> None:
    suffix = uuid4().hex
    clinic = kafka_clinic(database, tmp_path, kafka.address, f"{{event_type}}-{suffix}")
    assert clinic.faults("kafka") == []
    add(database, "e-1")
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload, destination) VALUES ('a', 'B', '1', %s)",
            [f"own-{suffix}"],
        )
    found = {each.what for each in clinic.faults("kafka")}
    assert found == {f"the topic {name}-{suffix} does not exist" for name in ("OrderPaid", "own")}


@pytest.mark.parametrize(
    "settings",
    [
        {"RELAY_PUBLISHER": "kafka", "RELAY_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:{port}"},
        {"RELAY_PUBLISHER": "rabbitmq", "RELAY_RABBITMQ__URL": "amqp://guest:guest@127.0.0.1:{port}/"},
    ],
    ids=["kafka", "rabbitmq"],
)
@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_a_broker_that_cannot_be_reached_is_a_finding_within_seconds(
    database: str, tmp_path: Path, settings: dict[str, str], silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (doctor_kafka, doctor_rabbitmq):
        monkeypatch.setattr(module, "SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1] if silent else free_port()
        filled = {name: value.format(port=port) for name, value in settings.items()}
        clinic = Clinic(database, tmp_path, **filled)
        started = time.monotonic()
        family = settings["RELAY_PUBLISHER"]
        found = clinic.fault(family, f"127.0.0.1:{port}")
        assert time.monotonic() - started < 20
    assert found.severity == "error"
    assert found.fix.startswith("export RELAY_")


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"RELAY_PUBLISHER": "kafka"}, "needs an address"),
        ({"RELAY_PUBLISHER": "rabbitmq", "RELAY_RABBITMQ__URL": "http://x"}, "is not understood"),
        ({"RELAY_PUBLISHER": "webhook"}, "needs a destination"),
        ({"RELAY_PUBLISHER": "kafkaesque"}, "did you mean 'kafka'?"),
    ],
)
def test_settings_that_no_publisher_takes_are_a_finding(
    database: str, tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    clinic = Clinic(database, tmp_path, **settings)
    assert clinic.fault(settings["RELAY_PUBLISHER"], said).severity == "error"


class ManagedNode(RabbitNode):
    """With the management API, where `rabbitmqadmin` finds it."""

    def __init__(self) -> None:
        self.management_port = free_port()
        super().__init__(
            plugins=["rabbitmq_management"],
            settings={"management.tcp.port": self.management_port, "management.tcp.ip": "127.0.0.1"},
        )

    @property
    def management_url(self) -> str:
        return f"http://guest:guest@127.0.0.1:{self.management_port}"

    def _answers(self) -> bool:
        return super()._answers() and accepts_connections(self.management_port)


@pytest.fixture(scope="module")
def managed() -> Iterator[ManagedNode]:
    try:
        node = ManagedNode()
    except ServerError as error:
        missing(str(error))
    with node:
        yield node


@pytest.fixture
def rabbit(database: str, managed: ManagedNode, tmp_path: Path) -> Clinic:
    (tmp_path / ".rabbitmqadmin.conf").write_text(f"[default]\nport = {managed.management_port}\n")
    return Clinic(
        database,
        tmp_path,
        RELAY_PUBLISHER="rabbitmq",
        RELAY_DESTINATION=f"doctor-{uuid4().hex}",
        RELAY_RABBITMQ__URL=managed.url,
        RELAY_RABBITMQ__MANAGEMENT_URL=managed.management_url,
    )


def declare(clinic: Clinic, *, bound: bool) -> None:
    """The exchange of the destination, with or without a queue."""
    name = clinic.settings.destination
    connection = pika.BlockingConnection(pika.URLParameters(clinic.environment["RELAY_RABBITMQ__URL"]))
    channel = connection.channel()
    channel.exchange_declare(name, "topic", durable=True)
    if bound:
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, name, "#")
    connection.close()


def test_a_missing_exchange(rabbit: Clinic) -> None:
    name = rabbit.settings.destination
    finds_and_fixes(rabbit, "rabbitmq", f"the exchange {name} does not exist", "error")
    assert rabbit.faults("rabbitmq") == [], "what was declared has a queue"


def test_a_missing_exchange_that_the_relay_will_declare_is_no_fault(rabbit: Clinic) -> None:
    rabbit.environment["RELAY_RABBITMQ__DECLARE"] = "true"
    assert rabbit.faults("rabbitmq") == []


def test_an_exchange_without_a_bound_queue(rabbit: Clinic) -> None:
    declare(rabbit, bound=False)
    about = f"the exchange {rabbit.settings.destination} leads to no queue"
    finds_and_fixes(rabbit, "rabbitmq", about, "error")


def test_without_the_management_api_bindings_cannot_be_seen_and_nothing_is_sent_to_find_out(
    rabbit: Clinic,
) -> None:
    declare(rabbit, bound=True)
    management = rabbit.environment.pop("RELAY_RABBITMQ__MANAGEMENT_URL")
    found = rabbit.fault("rabbitmq", "cannot be seen over AMQP")
    assert found.severity == "info"
    assert found.fix.startswith("export RELAY_RABBITMQ__MANAGEMENT_URL=")
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.environment["RELAY_RABBITMQ__URL"]))
    queue = connection.channel().queue_declare(rabbit.settings.destination, passive=True)
    assert queue.method.message_count == 0
    connection.close()
    rabbit.environment["RELAY_RABBITMQ__MANAGEMENT_URL"] = management
    assert rabbit.faults("rabbitmq") == []


def test_events_that_came_back_because_no_queue_takes_them(rabbit: Clinic) -> None:
    rabbit.environment.pop("RELAY_RABBITMQ__MANAGEMENT_URL")
    declare(rabbit, bound=False)
    add(rabbit.database, "e-1")
    with relays(rabbit.home) as start:
        start(rabbit.database, environment=rabbit.environment)
        wait_until(lambda: not rabbit.healed("rabbitmq", "no queue takes"), 60, "the event to come back")
        name = rabbit.settings.destination
        about = f"no queue takes OrderPaid from the exchange {name}"
        finds_and_fixes(rabbit, "rabbitmq", about, "error", within=60)
    assert statuses(rabbit.database) == {"completed": 1}


def test_a_missing_queue_of_the_default_exchange(rabbit: Clinic) -> None:
    rabbit.environment["RELAY_DESTINATION"] = "amq.default"
    event_type = f"Type{uuid4().hex}"
    with psycopg.connect(rabbit.database) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload) VALUES ('a', %s, '1')", [event_type]
        )
    finds_and_fixes(rabbit, "rabbitmq", f"the queue {event_type} does not exist", "error")


def test_a_management_api_that_does_not_answer_is_a_warning_and_shows_no_password(rabbit: Clinic) -> None:
    declare(rabbit, bound=True)
    right = rabbit.environment["RELAY_RABBITMQ__MANAGEMENT_URL"]
    wrong = right.replace("guest:guest", "guest:sesame")
    rabbit.environment["RELAY_RABBITMQ__MANAGEMENT_URL"] = wrong
    found = rabbit.fault("rabbitmq", "the management API at 127.0.0.1 answered 401")
    assert found.severity == "warning"
    assert "sesame" not in str(found)
    rabbit.environment["RELAY_RABBITMQ__MANAGEMENT_URL"] = f"http://guest:sesame@127.0.0.1:{free_port()}"
    assert "cannot be reached" in rabbit.fault("rabbitmq", "the management API at 127.0.0.1").what


def test_a_password_of_the_management_api_may_have_any_character() -> None:
    logins: list[str | None] = []

    class Management(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            logins.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Management) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        base = f"http://ana%40shop:p%2Fw%3A%25%C3%A9@127.0.0.1:{server.server_port}"
        assert doctor_rabbitmq._ask(base, "/api/exchanges") == []
    assert logins == [f"Basic {b64encode('ana@shop:p/w:%é'.encode()).decode()}"]


def webhook_clinic(database: str, home: Path, url: str, **settings: str) -> Clinic:
    secret = {"RELAY_WEBHOOK__SECRET": "a secret"}
    return Clinic(database, home, RELAY_PUBLISHER="webhook", RELAY_DESTINATION=url, **secret | settings)


def test_a_webhook_at_a_private_address(database: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        clinic = webhook_clinic(database, tmp_path, f"http://{host}/hook")
        finds_and_fixes(clinic, "webhook", f"{host} is at 127.0.0.1, which is no public", "error")
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b"", "no request is made to find out"


def test_a_webhook_that_is_not_encrypted_or_not_signed(database: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/hook"
        clinic = webhook_clinic(database, tmp_path, url, RELAY_WEBHOOK__ALLOW_PRIVATE="true")
        assert clinic.fault("webhook", "is not encrypted (http)").severity == "warning"
        del clinic.environment["RELAY_WEBHOOK__SECRET"]
        finds_and_fixes(clinic, "webhook", "is not signed", "warning")
        assert len(clinic.environment["RELAY_WEBHOOK__SECRET"]) == 64


def test_a_webhook_whose_name_leads_nowhere(database: str, tmp_path: Path) -> None:
    clinic = webhook_clinic(database, tmp_path, "https://nowhere.invalid/hook?token=sesame")
    found = clinic.fault("webhook", "nowhere.invalid cannot be resolved")
    assert found.severity == "error"
    assert "sesame" not in str(found)


def test_a_webhook_whose_certificate_nobody_vouches_for(database: str, tmp_path: Path) -> None:
    context = Authority(tmp_path / "tls").context()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            accepted, _ = server.accept()
            with suppress(OSError), context.wrap_socket(accepted, server_side=True):
                pass

        thread = threading.Thread(target=answer)
        thread.start()
        host = f"localhost:{server.getsockname()[1]}"
        clinic = webhook_clinic(database, tmp_path, f"https://{host}/", RELAY_WEBHOOK__ALLOW_PRIVATE="true")
        found = clinic.fault("webhook", f"the certificate of {host} is not trusted")
        thread.join()
    assert found.severity == "error"


def test_a_row_that_goes_to_no_url(database: str, tmp_path: Path) -> None:
    clinic = webhook_clinic(database, tmp_path, "https://nowhere.invalid/hook")
    with psycopg.connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox (partition_key, event_type, payload, destination) VALUES ('a', 'B', '1', 'b')"
        )
    assert clinic.fault("webhook", "'b' is no http or https URL").severity == "error"
