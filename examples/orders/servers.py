"""The shop's servers: those that the environment names, else throwaway ones; and what the shop needs there.

Nothing here is of interest for a service of your own: you have servers, and migrations that make your tables.
"""

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pika
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from examples.orders.shop import SOURCES, Shop
from examples.orders.tables import create_tables, make_engine
from relay.demo.helper import Helper
from relay.demo.postgres import PostgresServer, base_directory
from relay.store.migrate import migrate

PARTITIONS = 4
SECONDS = 10.0


def make_directory(stack: ExitStack) -> Path:
    """A directory that goes with the stack."""
    directory = Path(tempfile.mkdtemp(prefix="outbox-relay-example-", dir=base_directory()))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    directory.chmod(0o711)  # root's server runs as another user, who has to pass through
    return directory


def with_servers(shop: Shop, directory: Path, stack: ExitStack) -> Shop:
    """The shop with a throwaway server, which goes with the stack, for each one that it lacks."""
    needs_broker = not (shop.kafka or shop.rabbitmq)
    helper = stack.enter_context(Helper(directory, shop.source("billing") if needs_broker else None))
    if needs_broker:
        shop = replace(shop, kafka=helper.bootstrap_servers())
    if not shop.database_url:
        server = stack.enter_context(PostgresServer.embedded(within=directory))
        shop = replace(shop, database_url=server.url())
    return shop


def prepare(shop: Shop) -> None:
    """Make what is not there yet: tables, topics or queues."""
    engine = make_engine(shop.database_url)
    create_tables(engine)
    engine.dispose()
    migrate(shop.database_url)
    if shop.rabbitmq:
        make_queues(shop, shop.rabbitmq)
    else:
        make_topics(shop, shop.kafka or "")


def make_topics(shop: Shop, servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for topic in {shop.source(consumer) for consumer in SOURCES}:
        # The throwaway broker makes a topic when it is first asked for it.
        if admin.list_topics(topic, timeout=SECONDS).topics[topic].error is not None:
            wanted = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=-1)
            admin.create_topics([wanted], request_timeout=SECONDS)[topic].result(SECONDS * 2)


def make_queues(shop: Shop, url: str) -> None:
    """Per consumer a queue. Only one process at a time is served from it, which keeps each key in order."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    for consumer in SOURCES:
        exchange, queue = shop.source(consumer), shop.queue(consumer)
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(queue, durable=True, arguments=arguments)
        channel.queue_bind(queue, exchange, "#")
    connection.close()


if __name__ == "__main__":
    prepare(Shop.from_environment())
