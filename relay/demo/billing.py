"""The billing service: reads the topic and writes a ledger, each event once however often it arrives.

The inbox's mark and the ledger's entry are one transaction. What arrived, in which order and when, is
remembered for the verdict.
"""

import json
import threading
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from psycopg import Connection

from relay import Inbox
from relay.demo.database import Database
from relay.demo.verdict import Received
from relay.errors import RelayError

BATCH = 500
POLL_SECONDS = 0.1
SECONDS = 10.0

ENTER = "INSERT INTO {ledger} (event_id, order_id, cents) VALUES (%s, %s, %s)"
APPLIED = "SELECT event_id, count(*) FROM {ledger} GROUP BY 1"


class Billing:
    def __init__(self, database: Database, servers: str, topic: str) -> None:
        self.received: list[Received] = []
        self.seen: set[str] = set()
        self.failure: BaseException | None = None
        self._database = database
        self._inbox = Inbox("billing", table=str(database.inbox))
        self._enter = database.fill(ENTER)
        self._applied_until: dict[int, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "outbox-relay-demo-billing",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 5,  # the built-in broker answers an early fetch only when this is over
                "log_level": 0,
                "error_cb": lambda _: None,
            }
        )
        self._partitions = [
            TopicPartition(topic, number, OFFSET_BEGINNING) for number in _partitions(self._consumer, topic)
        ]
        # Assigned, not subscribed: a group takes seconds to form, and stays behind on a server of the user's.
        self._consumer.assign(self._partitions)
        self._asked = threading.Event()
        self._at_the_end = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="billing", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self._consumer.close()

    def read_to_the_end(self) -> bool:
        """Whether all that is in the topic has been applied, at some moment after the first call."""
        self._asked.set()
        return self._at_the_end.is_set()

    def applied(self, conn: Connection[Any]) -> dict[str, int]:
        """How often each event is in the ledger."""
        return dict(conn.execute(self._database.fill(APPLIED)).fetchall())

    def _run(self) -> None:
        try:
            with self._database.connect() as conn:
                while not self._closing.is_set():
                    if messages := self._take():
                        self._apply(conn, messages)
                    elif self._asked.is_set() and self._nothing_left():
                        self._at_the_end.set()
        except BaseException as failure:  # noqa: BLE001 - told by whoever watches
            self.failure = failure

    def _nothing_left(self) -> bool:
        # Only ever called by the thread that polls: beside a poll, this call may never return.
        for partition in self._partitions:
            low, high = self._consumer.get_watermark_offsets(partition, timeout=SECONDS)
            if self._applied_until.get(partition.partition, low) < high:
                return False
        return True

    def _take(self) -> list[Any]:
        """What has arrived, waiting a moment for the first message only."""
        first = self._consumer.poll(POLL_SECONDS)
        if first is None:
            return []
        messages: list[Any] = [first, *self._consumer.consume(BATCH, 0)]
        now = time.monotonic()
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
            event_id = message.key().decode()
            self.received.append(Received(event_id, now))
            self.seen.add(event_id)
        return messages

    def _apply(self, conn: Connection[Any], messages: list[Any]) -> None:
        with conn.transaction():
            for message in messages:
                event_id = message.key().decode()
                if self._inbox.accept(conn, event_id):
                    self._book(conn, event_id, message)
        for message in messages:
            self._applied_until[message.partition()] = message.offset() + 1

    def _book(self, conn: Connection[Any], event_id: str, message: Any) -> None:
        paid = json.loads(message.value())
        try:
            entry = [event_id, paid["order_id"], paid["cents"]]
        except (KeyError, TypeError):
            return  # an event that somebody else wrote, while the demo is kept running
        conn.execute(self._enter, entry)


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    """The partitions of the topic; one that was just created is not known everywhere at once."""
    deadline = time.monotonic() + SECONDS
    while True:
        found = consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions
        if found:
            return sorted(found)
        if time.monotonic() > deadline:
            raise RelayError(f"the topic {topic} did not appear within {SECONDS:.0f} s: check the brokers")
        time.sleep(0.1)
