"""Where the shop's servers are, and how its services consume from them.

The settings come from the variables that `relay` itself reads, so one set of exports serves all processes.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from relay.consumers import Consumer, KafkaConsumer, Message, RabbitConsumer

Handler = Callable[[Connection[Any], Message], None]

# Who consumes what: `destination` below sends events with keys `order:…` and `saga:…` there.
SOURCES = {"billing": "order", "saga": "saga"}


@dataclass(frozen=True)
class Shop:
    database_url: str
    kafka: str | None = None
    rabbitmq: str | None = None
    name: str = "shop"  # comes first in the names of topics, exchanges, queues and consumers

    @classmethod
    def from_environment(cls) -> "Shop":
        return cls(
            database_url=os.environ.get("RELAY_DATABASE_URL", ""),
            kafka=os.environ.get("RELAY_KAFKA__BOOTSTRAP_SERVERS"),
            rabbitmq=os.environ.get("RELAY_RABBITMQ__URL"),
            name=os.environ.get("SHOP_NAME", "shop"),
        )

    def environment(self) -> dict[str, str]:
        """What `relay`, and each service of the shop, has to be told."""
        found = {
            "SHOP_NAME": self.name,
            "RELAY_DATABASE_URL": self.database_url,
            "RELAY_PUBLISHER": "rabbitmq" if self.rabbitmq else "kafka",
            "RELAY_DESTINATION": f"{self.name}.{{key_type}}",
        }
        if self.rabbitmq:
            return found | {"RELAY_RABBITMQ__URL": self.rabbitmq}
        return found | {"RELAY_KAFKA__BOOTSTRAP_SERVERS": self.kafka or ""}

    def source(self, consumer: str) -> str:
        """The topic or exchange that this consumer reads."""
        return f"{self.name}.{SOURCES[consumer]}"

    def queue(self, consumer: str) -> str:
        return f"{self.name}.{consumer}"

    def consumer(self, name: str, handler: Handler) -> Consumer:
        """Run any number of each: of one name, they share the work."""
        full_name = f"{self.name}.{name}"
        if self.rabbitmq:
            return RabbitConsumer(
                full_name, handler, database_url=self.database_url, url=self.rabbitmq, queue=self.queue(name)
            )
        return KafkaConsumer(
            full_name,
            handler,
            database_url=self.database_url,
            bootstrap_servers=self.kafka or "",
            topics=[self.source(name)],
            config={"session.timeout.ms": 6000},  # how soon one that was killed is missed; 45 s by default
        )
