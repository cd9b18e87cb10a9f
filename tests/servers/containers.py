"""The same servers from containers, for machines where a Docker engine answers."""

from typing import Any

from relay.demo.postgres import ServerError


def docker_answers() -> bool:
    import docker

    try:
        client = docker.from_env(timeout=5)
        client.ping()
    except Exception:  # noqa: BLE001 - whatever it is, there is no engine to use
        return False
    client.close()
    return True


def start_postgres(version: int) -> tuple[Any, dict[str, Any]]:
    from testcontainers.postgres import PostgresContainer

    container = PostgresContainer(f"postgres:{version}", driver=None).with_command(
        "postgres -c fsync=off -c full_page_writes=off -c max_connections=300"
        " -c shared_buffers=256MB -c wal_level=logical -c max_wal_size=4GB"
    )
    return container.start(), {"url": container.get_connection_url()}


def start_kafka() -> tuple[Any, dict[str, Any]]:
    from testcontainers.kafka import KafkaContainer

    container = KafkaContainer("confluentinc/cp-kafka:8.1.0").with_kraft()
    container.with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false")
    container.with_env("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0")
    return container.start(), {"address": container.get_bootstrap_server()}


def start_rabbitmq() -> tuple[Any, dict[str, Any]]:
    from testcontainers.rabbitmq import RabbitMqContainer

    container = RabbitMqContainer("rabbitmq:3.13").start()
    host, port = container.get_container_host_ip(), container.get_exposed_port(5672)
    return container, {"url": f"amqp://guest:guest@{host}:{port}/%2F"}


def start(name: str) -> tuple[Any, dict[str, Any]]:
    try:
        match name:
            case "postgres15":
                return start_postgres(15)
            case "postgres18":
                return start_postgres(18)
            case "kafka":
                return start_kafka()
            case _:
                return start_rabbitmq()
    except Exception as error:
        raise ServerError(f"The container of {name} did not start: {error}") from error
