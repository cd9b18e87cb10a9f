"""The servers that the other tests stand on: they start, answer, and can be broken in each promised way."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pika
import psutil
import psycopg
import pytest
from confluent_kafka import Consumer, Producer

from relay.demo.postgres import PostgresServer
from tests.conftest import Kafka
from tests.servers.kafka import KafkaBroker, KafkaCluster
from tests.servers.process import wait_until
from tests.servers.proxy import TcpProxy
from tests.servers.rabbitmq import RabbitNode

ROOT = Path(__file__).resolve().parents[2]


def produce(address: str, topic: str, value: bytes = b"hello") -> None:
    producer = Producer({"bootstrap.servers": address})
    producer.produce(topic, value)
    assert producer.flush(20) == 0


def consume(address: str, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def test_an_empty_database_is_on_the_version_asked_for(any_postgres: int, empty_database: str) -> None:
    with psycopg.connect(empty_database) as connection:
        assert connection.info.server_version // 10_000 == any_postgres
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert connection.execute("SELECT count(*) FROM pg_class WHERE relname = 'outbox'").fetchone() == (0,)


def test_a_killed_postgres_recovers_what_was_committed(
    any_postgres: int, own_postgres: PostgresServer
) -> None:
    with psycopg.connect(own_postgres.url()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    own_postgres.kill()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(own_postgres.url())
    own_postgres.start()
    with psycopg.connect(own_postgres.url()) as connection:
        assert connection.execute("SELECT one FROM kept").fetchone() == (1,)
        own_postgres.restart()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_stopped_postgres_leaves_nothing_behind() -> None:
    with PostgresServer.embedded() as server:
        with psycopg.connect(server.url()) as connection:
            assert connection.info.password == server.password
            row = connection.execute("SHOW data_directory").fetchone()
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.url().replace(f":{server.password}@", ":wrong@"))
    assert row is not None
    assert not Path(row[0]).parent.exists()


def test_a_postgres_ends_with_the_process_that_started_it() -> None:
    script = (
        "import sys; from relay.demo.postgres import PostgresServer as S; s = S.embedded(); s.start();"
        "print(s.pid, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert process.stdout is not None
    server = psutil.Process(int(process.stdout.readline()))
    home = Path(server.cmdline()[2]).parent
    process.kill()
    process.communicate()
    wait_until(lambda: ended(server), 10, "the server to end")
    shutil.rmtree(home)


def ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_kafka_carries_a_message(kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=3)
    produce(kafka.address, topic)
    assert consume(kafka.address, topic) == b"hello"


def test_a_client_behind_the_kafka_proxy_is_cut_off_with_it(kafka: Kafka, kafka_proxy: TcpProxy) -> None:
    topic = kafka.create_topic()
    produce(kafka_proxy.address, topic)
    assert kafka_proxy.bytes_to_server > 0
    producer = Producer(
        {"bootstrap.servers": kafka_proxy.address, "message.timeout.ms": 60_000, "log_level": 0}
    )
    producer.list_topics(topic, timeout=10)
    kafka_proxy.stall()
    producer.produce(topic, b"late")
    assert producer.flush(0.3) == 1
    kafka_proxy.restore()
    assert producer.flush(20) == 0


def test_a_kafka_broker_keeps_its_data_when_killed_and_answers_after_a_freeze(own_kafka: KafkaBroker) -> None:
    own_kafka.create_topic("kept")
    produce(own_kafka.address, "kept")
    own_kafka.kill()
    own_kafka.start()
    own_kafka.pause()
    own_kafka.resume()
    produce(own_kafka.address, "kept", b"second")
    assert consume(own_kafka.address, "kept") == b"hello"


@pytest.mark.slow
def test_a_kafka_cluster_serves_on_after_losing_a_broker(own_kafka_cluster: KafkaCluster) -> None:
    own_kafka_cluster.create_topic("replicated")
    own_kafka_cluster.brokers[0].kill()
    produce(own_kafka_cluster.address, "replicated")
    assert consume(own_kafka_cluster.address, "replicated") == b"hello"


def test_rabbitmq_carries_a_message(rabbitmq: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(rabbitmq)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_publish("", queue, b"hello", mandatory=True)
        assert channel.basic_get(queue, auto_ack=True)[2] == b"hello"


def test_a_rabbitmq_node_keeps_its_queues_when_killed(own_rabbitmq: RabbitNode) -> None:
    with pika.BlockingConnection(pika.URLParameters(own_rabbitmq.url)) as connection:
        connection.channel().queue_declare("kept", durable=True)
    own_rabbitmq.kill()
    own_rabbitmq.start()
    assert "kept" in own_rabbitmq.ctl("list_queues", "name")


def test_a_database_is_reached_through_a_proxy(empty_database: str, proxy: Callable[[str], TcpProxy]) -> None:
    between = proxy(empty_database)
    with psycopg.connect(between.url(empty_database)) as connection:
        between.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_the_shared_servers_end_when_the_run_is_killed() -> None:
    script = (
        "import sys; from tests.servers.supervisor import SupervisorHandle, ask;"
        "h = SupervisorHandle(); print(ask('postgres18')['url'], flush=True); sys.stdin.read()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert run.stdout is not None
    url = run.stdout.readline().strip()
    psycopg.connect(url).close()
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()

    def gone() -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return True
        return False

    wait_until(gone, 15, "the server to end")
