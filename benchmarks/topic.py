"""What arrived in the topic, and when: the broker's own clock stamps every message on arrival.

The topic has message.timestamp.type = LogAppendTime, so that all contenders are timed by the same clock, at
no cost to any of them. Its resolution is a millisecond.
"""

import json
import time
from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.bench.checker import Found, Verdict, check
from relay.demo.processes import ServerError
from tests.servers.kafka import create_topic

PARTITIONS = 12


@dataclass
class Arrivals:
    """Of each message, in each partition's order."""

    found: list[Found] = field(default_factory=list)
    at: "array[float]" = field(default_factory=lambda: array("d"))  # time.time()

    @property
    def different(self) -> int:
        """Of each event the first: one that was sent again stands for no other."""
        return len({found.position for found in self.found})

    def verdict(self, name: str, committed: Collection[int]) -> Verdict:
        return check(name, "the topic", committed, (), self.found)


class Topic:
    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": name, "log_level": 0})
        self._partitions = [TopicPartition(name, number, 0) for number in range(PARTITIONS)]
        self._arrivals = Arrivals()
        create_topic(address, name, PARTITIONS, config={"message.timestamp.type": "LogAppendTime"})

    def size(self) -> int:
        deadline = time.monotonic() + 10
        while True:
            try:
                ends = [self._consumer.get_watermark_offsets(p, timeout=10)[1] for p in self._partitions]
                return sum(ends)
            except KafkaException:  # a leader that does not know yet that it is one
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def wait_for(self, messages: int, seconds: float, alive: Any) -> None:
        """Until so many different ones have arrived; `alive()` raises where nobody is left to send them."""
        deadline = time.monotonic() + seconds
        again = 0
        while True:
            arrived = self.size() - again
            if arrived >= messages:
                # Not sooner: reading takes CPU and the broker from those who are measured.
                arrivals = self.read()
                arrived = arrivals.different
                again = len(arrivals.found) - arrived
            if arrived >= messages:
                return
            alive()
            if time.monotonic() > deadline:
                raise ServerError(f"{arrived} of {messages} messages had arrived after {seconds:.0f} s.")
            time.sleep(0.1)

    def read(self) -> Arrivals:
        """Everything; `position` is a header of every contender's messages, the key a header or their key.

        Goes on where the last reading ended, and fetches nothing between two of them.
        """
        arrivals = self._arrivals
        left = self.size() - len(arrivals.found)
        self._consumer.assign(self._partitions)
        while left > 0:
            messages: list[Any] = self._consumer.consume(min(10_000, left), 10.0)
            if not messages:
                raise ServerError(f"{left} messages of {self.name} could not be read.")
            for message in messages:
                headers: dict[str, Any] = dict(message.headers() or [])
                key: Any = headers.get("partition_key") or message.key()
                arrivals.found.append(Found(key.decode(), header_number(headers["position"])))
                arrivals.at.append(message.timestamp()[1] / 1000)
                self._partitions[message.partition()].offset = message.offset() + 1
            left -= len(messages)
        self._consumer.unassign()
        return arrivals

    def delete(self) -> None:
        self._consumer.close()
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.delete_topics([self.name])[self.name].result(30)


def header_number(header: bytes) -> int:
    """Debezium writes headers as JSON, with their schema unless told otherwise."""
    value = json.loads(header)
    return int(value["payload"] if isinstance(value, dict) else value)
