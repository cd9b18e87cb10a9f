"""The librdkafka configuration of a producer that loses and reorders nothing.

What order and delivery depend on is set here and cannot be overridden, under none of its names.
"""

from collections.abc import Callable, Mapping
from typing import Any

from relay.errors import SettingsError

_SAFETY: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    # Off: a record that expires by itself lets the ones behind it through.
    "message.timeout.ms": 0,
    "allow.auto.create.topics": False,
    # The topic's limit decides, and is checked for each record before it is sent.
    "message.max.bytes": 1_000_000_000,
}
_WHY = {
    "acks": "an event is delivered when all in-sync replicas have it",
    "request.required.acks": "an event is delivered when all in-sync replicas have it",
    "enable.idempotence": "without it a broker's retry reorders events",
    "enable.gapless.guarantee": "the relay keeps order itself, and this would end the producer",
    "message.timeout.ms": "a record that expires by itself lets the ones behind it through",
    "delivery.timeout.ms": "a record that expires by itself lets the ones behind it through",
    "request.timeout.ms": "the deadline of a batch is publish_seconds",
    "retries": "the relay decides when to give up, by publish_seconds and max_attempts",
    "message.send.max.retries": "the relay decides when to give up, by publish_seconds and max_attempts",
    "max.in.flight": "idempotence depends on it",
    "max.in.flight.requests.per.connection": "idempotence depends on it",
    "partitioner": "the partition is computed from the partition key, as the Java client does",
    "transactional.id": "the relay does not use transactions",
    "transaction.timeout.ms": "the relay does not use transactions",
    "allow.auto.create.topics": "a mistyped topic would swallow events",
    "message.max.bytes": "the topic's own limit is used",
    "delivery.report.only.error": "the relay must hear of every delivery",
    "default.topic.config": "it could override all of these",
    "bootstrap.servers": "set [kafka] bootstrap_servers",
    "metadata.broker.list": "set [kafka] bootstrap_servers",
}
_CALLBACKS = frozenset(
    {"error_cb", "stats_cb", "throttle_cb", "log_cb", "on_delivery", "oauth_cb", "dr_cb", "dr_msg_cb"}
)

_DEFAULTS: dict[str, Any] = {
    "client.id": "outbox-relay",
    "linger.ms": 5,  # ended early by the flush of each batch
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
}


def check(config: Mapping[str, Any]) -> None:
    """SettingsError for what may not be changed."""
    for name in config:
        plain = name.removeprefix("topic.").strip().lower()
        if plain in _WHY:
            raise SettingsError(f"[kafka.config] {name} cannot be set: {_WHY[plain]}")
        if plain in _CALLBACKS:
            raise SettingsError(f"[kafka.config] {name} cannot be set: callbacks belong to the relay")


def client_config(servers: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """For any client: where the brokers are and how to log in."""
    return {**config, "bootstrap.servers": servers}


def producer_config(
    servers: str, config: Mapping[str, Any], batch_bytes: int, on_error: Callable[[Any], None]
) -> dict[str, Any]:
    asked = int(config.get("batch.size", 1_000_000))
    return {
        **_DEFAULTS,
        **client_config(servers, config),
        **_SAFETY,
        # A topic's limit applies to the batch: its mates would fail by their sum.
        "batch.size": min(asked, batch_bytes),
        "error_cb": on_error,
    }
