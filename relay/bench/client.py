"""The publisher alone against the bare client it is built on: same messages, same broker, turn by turn.

The bare client sends in batches of the same size and waits for each, as a publisher has to before its events
can be settled; and once more without ever waiting, which shows what the waits cost.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic, perf_counter
from typing import Any, Protocol

from relay.bench.brokers import Broker
from relay.bench.figures import latency, ratio
from relay.bench.plan import EVENT_TYPE, KEY_TYPE, Plan
from relay.errors import RelayError
from relay.event import Event
from relay.outcome import Delivered, Publisher
from relay.plugins import make_publisher
from relay.settings import Settings

ROUNDS = 3
EVENTS = 20_000
BYTES = 64 * 2**20
SINGLES = 300


class RawClient(Protocol):
    def in_batches(self, batches: Sequence[Sequence[Event]]) -> list[float]:
        """Seconds of each batch, sent when the one before it is confirmed."""

    def free_running(self, batches: Sequence[Sequence[Event]]) -> float:
        """Seconds for all, with no wait but the last."""


def client_figure(settings: Settings, plan: Plan, broker: Broker) -> dict[str, Any] | None:
    """Events per second of both, the best of a few rounds, and ratios; None: there is no bare client."""
    if settings.publisher not in ("kafka", "rabbitmq"):
        return None
    with broker.place() as place:
        mine = settings.model_copy(update={"destination": place.name})
        events = min(plan.events, EVENTS, max(1, BYTES // plan.payload_bytes))
        size = min(mine.batch_size, max(1, mine.claim_bytes // plan.payload_bytes))
        batches = _batches(place.name, events, size, plan.payload_bytes)
        raw = _raw_client(mine)
        publisher = make_publisher(mine)
        try:
            return _compare(raw, publisher, batches, mine.publish_seconds)
        finally:
            publisher.close()


def _compare(
    raw: RawClient, publisher: Publisher, batches: list[list[Event]], publish_seconds: float
) -> dict[str, Any]:
    def publish() -> float:
        started = perf_counter()
        for batch in batches:
            for outcome in publisher.publish(batch, monotonic() + publish_seconds):
                if type(outcome) is not Delivered:
                    raise RelayError(f"the broker did not take the bench's events: {outcome}")
        return perf_counter() - started

    publisher.publish(batches[0], monotonic() + publish_seconds)
    raw.in_batches(batches[:1])
    in_batches, free, ours = [], [], []
    for _ in range(ROUNDS):
        in_batches.append(sum(raw.in_batches(batches)))
        ours.append(publish())
        free.append(raw.free_running(batches))
    singles = raw.in_batches([[event] for batch in batches for event in batch][:SINGLES])
    events = sum(map(len, batches))
    rate, client, running = events / min(ours), events / min(in_batches), events / min(free)
    return {
        "client_events_per_second": round(client),
        "client_free_running_events_per_second": round(running),
        "publisher_events_per_second": round(rate),
        "ratio": ratio(rate, client),
        "ratio_of_free_running": ratio(rate, running),
        "client_one_message_ms": latency(singles),
    }


def _batches(destination: str, events: int, size: int, payload_bytes: int) -> list[list[Event]]:
    now = datetime.now(UTC)
    payload = b'{"note": "%s"}' % (b"x" * max(0, payload_bytes - 12))
    made = [
        Event(n, f"{KEY_TYPE}:{n}", f"bench-{n}", EVENT_TYPE, destination, payload, None, now, 1, 1, 5)
        for n in range(1, events + 1)
    ]
    return [made[start : start + size] for start in range(0, events, size)]


def _raw_client(settings: Settings) -> RawClient:
    return _RawKafka(settings) if settings.publisher == "kafka" else _RawRabbit(settings)


class _RawKafka:
    def __init__(self, settings: Settings) -> None:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - an extra

        from relay.bench.kafka_ceiling import RawKafkaLoop  # noqa: PLC0415

        options = settings.publisher_section()
        servers, topic = options["bootstrap_servers"], settings.destination
        admin = AdminClient({**options["config"], "bootstrap.servers": servers})
        self._partitions = len(admin.list_topics(topic, timeout=10).topics[topic].partitions)
        self._loop = RawKafkaLoop(servers, options["config"])

    def in_batches(self, batches: Sequence[Sequence[Event]]) -> list[float]:
        return self._loop.in_batches(batches, self._partitions)

    def free_running(self, batches: Sequence[Sequence[Event]]) -> float:
        return self._loop.free_running(batches, self._partitions)


class _RawRabbit:
    def __init__(self, settings: Settings) -> None:
        self._url: str = settings.publisher_section()["url"]

    def in_batches(self, batches: Sequence[Sequence[Event]]) -> list[float]:
        from relay.bench.rabbitmq_ceiling import in_batches  # noqa: PLC0415 - an extra

        return in_batches(self._url, batches)

    def free_running(self, batches: Sequence[Sequence[Event]]) -> float:
        from relay.bench.rabbitmq_ceiling import free_running  # noqa: PLC0415 - an extra

        return free_running(self._url, batches)
