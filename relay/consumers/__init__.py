"""Ready consumers that apply each event once: `KafkaConsumer` and `RabbitConsumer`.

    def credit(conn, message):          # conn: psycopg, inside a transaction that the consumer commits
        conn.execute("INSERT INTO ledger …", [message.payload["order_id"]])

    KafkaConsumer("billing", credit, database_url=…, bootstrap_servers=…, topics=["orders"]).run()

Loaded when first used: each needs its own extra.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.consumers.consumer import Consumer
    from relay.consumers.kafka import KafkaConsumer
    from relay.consumers.message import Message
    from relay.consumers.rabbitmq import RabbitConsumer

__all__ = ["Consumer", "KafkaConsumer", "Message", "RabbitConsumer"]

_HOMES = {
    "Consumer": "relay.consumers.consumer",
    "KafkaConsumer": "relay.consumers.kafka",
    "Message": "relay.consumers.message",
    "RabbitConsumer": "relay.consumers.rabbitmq",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'relay.consumers' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
