"""The librdkafka configuration of a producer that loses and reorders nothing.

What order and delivery depend on is set here and cannot be overridden, under none of its names. What remains
is checked by librdkafka itself when the publisher is made: a mistake is an error at start, not at the first
event.
"""

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

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
_ACKS = "an event is delivered when all in-sync replicas have it"
_EXPIRY = "a record that expires by itself lets the ones behind it through"
_RETRIES = "the relay decides when to give up, by publish_seconds and max_attempts"
_IN_FLIGHT = "idempotence depends on it"
_TRANSACTIONS = "the relay does not use transactions"
_ADDRESS = "set [kafka] bootstrap_servers"
_CALLBACKS = "what the client reports belongs to the relay"
WHY_NOT = {
    "acks": _ACKS,
    "request.required.acks": _ACKS,
    "enable.idempotence": "without it a broker's retry reorders events",
    "enable.gapless.guarantee": "the relay keeps order itself, and this would end the producer",
    "message.timeout.ms": _EXPIRY,
    "delivery.timeout.ms": _EXPIRY,
    "request.timeout.ms": "the deadline of a batch is publish_seconds",
    "retries": _RETRIES,
    "message.send.max.retries": _RETRIES,
    "max.in.flight": _IN_FLIGHT,
    "max.in.flight.requests.per.connection": _IN_FLIGHT,
    "queuing.strategy": "events are sent in the order in which they were written",
    "partitioner": "the partition is computed from the partition key, as the Java client does",
    "transactional.id": _TRANSACTIONS,
    "transaction.timeout.ms": _TRANSACTIONS,
    "allow.auto.create.topics": "a mistyped topic would swallow events",
    "message.max.bytes": "the topic's own limit is used",
    "test.mock.num.brokers": "a broker that is only pretended would swallow events",
    "default.topic.config": "it could override all of these",
    "bootstrap.servers": _ADDRESS,
    "metadata.broker.list": _ADDRESS,
    "delivery.report.only.error": "the relay must hear of every delivery",
    "enabled_events": _CALLBACKS,
    "error_cb": _CALLBACKS,
    "stats_cb": _CALLBACKS,
    "throttle_cb": _CALLBACKS,
    "log_cb": _CALLBACKS,
    "on_delivery": _CALLBACKS,
    "oauth_cb": _CALLBACKS,
    "dr_cb": _CALLBACKS,
    "dr_msg_cb": _CALLBACKS,
    "logger": _CALLBACKS,
}

_COMPRESSION = ("compression.type", "compression.codec")
_DEFAULTS: dict[str, Any] = {
    "client.id": "outbox-relay",
    "linger.ms": 5,  # ended early by the flush of each batch
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
}


def check(config: Mapping[str, Any]) -> None:
    """SettingsError for what may not be changed, and for what librdkafka does not take."""
    for name in config:
        plain = name.strip().lower().removeprefix("topic.")
        if plain in WHY_NOT:
            raise SettingsError(f"[kafka.config] {name} cannot be set: {WHY_NOT[plain]}")
    try:
        # Without an address it connects to nothing.
        Producer({**_DEFAULTS, **config, **_SAFETY, "log_level": 0})
    except (KafkaException, ValueError, TypeError) as error:
        inner = error.args[0]
        said = inner.str() if isinstance(error, KafkaException) else inner
        raise SettingsError(f"[kafka.config] is not accepted by librdkafka: {said}") from None


def compresses(config: Mapping[str, Any]) -> bool:
    """Whether records are compressed, under any name of that setting."""
    return any(
        name.removeprefix("topic.") in _COMPRESSION and str(value).lower() not in ("none", "inherit")
        for name, value in config.items()
    )


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
