"""The publisher alone against the bare client it is built on: same messages, same broker, turn by turn."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from time import monotonic, perf_counter
from typing import Any

from relay.errors import RelayError
from relay.event import Event
from relay.outcome import Delivered
from relay.plugins import make_publisher
from relay.settings import Settings

ROUNDS = 3
BATCH = 1000

# Seconds that the bare client takes for these batches, after one that is not counted.
RawLoop = Callable[[Settings, Sequence[Sequence[Event]]], float]


def client_figure(settings: Settings, events: int, payload_bytes: int) -> dict[str, Any] | None:
    """Events per second of both, the best of a few rounds, and their ratio; None: there is no bare client."""
    raw_loop = _raw_loops().get(settings.publisher)
    if raw_loop is None:
        return None
    batches = _batches(settings.destination, min(events, 20_000), payload_bytes)
    publisher = make_publisher(settings)
    try:
        publisher.publish(batches[0], monotonic() + settings.publish_seconds)
        raw, ours = [], []
        for _ in range(ROUNDS):
            raw.append(raw_loop(settings, batches))
            started = perf_counter()
            for batch in batches:
                outcomes = publisher.publish(batch, monotonic() + settings.publish_seconds)
                failed = [outcome for outcome in outcomes if not isinstance(outcome, Delivered)]
                if failed:
                    raise RelayError(f"the broker did not take the bench's events: {failed[0].reason}")
            ours.append(perf_counter() - started)
    finally:
        publisher.close()
    total = sum(map(len, batches))
    return {
        "client_events_per_second": round(total / min(raw)),
        "publisher_events_per_second": round(total / min(ours)),
        "ratio": round(min(raw) / min(ours), 2),
    }


def _batches(destination: str, events: int, payload_bytes: int) -> list[list[Event]]:
    now = datetime.now(UTC)
    payload = b'{"note": "%s"}' % (b"x" * max(0, payload_bytes - 12))
    made = [
        Event(n, f"order:{n}", f"bench-{n}", "OrderPaid", destination, payload, None, now, 1, 1, 5)
        for n in range(1, events + 1)
    ]
    return [made[start : start + BATCH] for start in range(0, events, BATCH)]


def _raw_loops() -> dict[str, RawLoop]:
    return {"kafka": _raw_kafka, "rabbitmq": _raw_rabbitmq}


def _raw_rabbitmq(settings: Settings, batches: Sequence[Sequence[Event]]) -> float:
    from relay.bench.rabbitmq_ceiling import RawPikaLoop  # noqa: PLC0415 - an extra

    return RawPikaLoop(
        settings.publisher_section()["url"], [event for batch in batches for event in batch]
    ).run()


def _raw_kafka(settings: Settings, batches: Sequence[Sequence[Event]]) -> float:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - an extra

    from relay.bench.kafka_ceiling import raw_kafka_loop  # noqa: PLC0415

    options = settings.publisher_section()
    admin = AdminClient({**options["config"], "bootstrap.servers": options["bootstrap_servers"]})
    partitions = len(
        admin.list_topics(settings.destination, timeout=10).topics[settings.destination].partitions
    )
    return raw_kafka_loop(options["bootstrap_servers"], batches, partitions, config=options["config"])
