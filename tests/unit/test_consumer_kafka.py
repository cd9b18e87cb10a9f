"""What a Kafka consumer tells the group when partitions come and go, message by message."""

from collections import deque
from typing import Any

from confluent_kafka import TopicPartition

from relay.consumers import KafkaConsumer
from relay.consumers.lanes import Delivery


class Record:
    def __init__(self, partition: int, offset: int, key: str = "k") -> None:
        self._place = (partition, offset)
        self._headers = [("event_id", f"evt-{partition}-{offset}".encode()), ("partition_key", key.encode())]

    def error(self) -> None: ...

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def value(self) -> bytes:
        return b"{}"

    def headers(self) -> list[tuple[str, bytes]]:
        return self._headers


class Client:
    """A librdkafka consumer that hands out what the test gives it and notes what it is told."""

    def __init__(self) -> None:
        self.records: deque[Record] = deque()
        self.told: list[tuple[str, dict[int, int]]] = []

    def poll(self, seconds: float) -> Record | None:
        return self.records.popleft() if self.records else None

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        how = "later" if asynchronous else "now"
        self.told.append((f"commit {how}", {p.partition: p.offset for p in offsets}))

    def pause(self, partitions: list[Any]) -> None:
        self.told.append(("pause", {p.partition: 0 for p in partitions}))

    def resume(self, partitions: list[Any]) -> None:
        self.told.append(("resume", {p.partition: 0 for p in partitions}))


def consumer_of(*partitions: int, **options: Any) -> tuple[KafkaConsumer, Client]:
    consumer = KafkaConsumer(
        "billing",
        lambda *_: None,
        database_url="",
        bootstrap_servers="127.0.0.1:1",
        topics=["orders"],
        **options,
    )
    consumer._client = client = Client()
    consumer._next_commit = float("inf")
    consumer._on_assign(client, [TopicPartition("orders", n) for n in partitions])
    return consumer, client


def take(consumer: KafkaConsumer, client: Client, *records: Record) -> list[Delivery]:
    client.records.extend(records)
    taken = []
    for _ in records:
        delivery = consumer._take(0)
        if delivery is not None:
            consumer._lanes.add(delivery)
            taken.append(delivery)
    return taken


def finish(consumer: KafkaConsumer, *deliveries: Delivery, now: float = 0.0) -> None:
    """Handle what is held, in the order of the lanes, and tell these that they are done, others to wait."""
    while (delivery := consumer._lanes.next(now)) is not None:
        if delivery in deliveries:
            consumer._lanes.done(delivery)
            consumer._done(delivery)
        else:
            consumer._lanes.again(delivery, now + 1)


def test_a_revoked_partition_leaves_nothing_behind_but_the_offset_of_what_is_not_done() -> None:
    consumer, client = consumer_of(0, 1)
    held = take(consumer, client, *(Record(0, n, f"k{n}") for n in range(4)), Record(1, 7))
    finish(consumer, held[0], held[2])
    consumer._on_revoke(client, [TopicPartition("orders", 0)])
    assert client.told == [("commit now", {0: 1})]
    assert (consumer._lanes.held(("orders", 0)), consumer._lanes.held(("orders", 1))) == (0, 1)
    assert take(consumer, client, Record(0, 9)) == []  # fetched before it went


def test_a_lost_partition_is_committed_nothing_for() -> None:
    consumer, client = consumer_of(0)
    finish(consumer, *take(consumer, client, Record(0, 3)))
    consumer._on_lost(client, [TopicPartition("orders", 0)])
    assert client.told == []
    assert len(consumer._lanes) == 0


def test_a_partition_that_comes_back_begins_anew() -> None:
    consumer, client = consumer_of(0)
    take(consumer, client, Record(0, 3), Record(0, 4))
    consumer._on_revoke(client, [TopicPartition("orders", 0)])
    consumer._on_assign(client, [TopicPartition("orders", 0)])
    finish(consumer, *take(consumer, client, Record(0, 3)))
    consumer._on_revoke(client, [TopicPartition("orders", 0)])
    assert client.told == [("commit now", {0: 4})]


def test_a_full_partition_is_paused_and_resumed_when_half_is_done() -> None:
    consumer, client = consumer_of(0, max_held=4)
    held = take(consumer, client, *(Record(0, n, f"k{n}") for n in range(4)))
    assert client.told == [("pause", {0: 0})]
    finish(consumer, held[0])
    assert len(client.told) == 1
    finish(consumer, *held, now=2.0)
    assert client.told[1] == ("resume", {0: 0})


def test_a_paused_partition_that_goes_is_not_paused_when_it_comes_back() -> None:
    consumer, client = consumer_of(0, max_held=1)
    take(consumer, client, Record(0, 0))
    consumer._on_revoke(client, [TopicPartition("orders", 0)])
    assert [what for what, _ in client.told] == ["pause", "resume"]


def test_an_offset_whose_commit_failed_is_committed_again() -> None:
    consumer, client = consumer_of(0)
    finish(consumer, *take(consumer, client, Record(0, 3)))
    consumer._next_commit = 0.0
    take(consumer, client, Record(0, 4))
    assert client.told == [("commit later", {0: 4})]
    failed = TopicPartition("orders", 0, 4)

    class Failure:
        def str(self) -> str:
            return "not now"

    consumer._on_commit(Failure(), [failed])  # type: ignore[arg-type]
    consumer._next_commit = 0.0
    consumer._take(0)
    assert client.told[1:] == [("commit later", {0: 4})]
