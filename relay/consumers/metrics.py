"""What consumers tell Prometheus, by default in the process's own registry. Part of the public surface."""

from functools import cache

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ConsumerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        by, r = ["consumer"], registry
        self.applied = Counter("relay_consumer_applied", "Events applied", by, registry=r)
        self.duplicates = Counter("relay_consumer_duplicates", "Events seen before", by, registry=r)
        self.regressions = Counter(
            "relay_consumer_regressions",
            "Events of a lower generation than their key has seen",
            by,
            registry=r,
        )
        self.retries = Counter(
            "relay_consumer_retries", "Handler calls that will be repeated", by, registry=r
        )
        self.parked = Counter("relay_consumer_parked", "Messages parked", [*by, "reason"], registry=r)
        self.held = Gauge("relay_consumer_held", "Messages in memory, waiting for their turn", by, registry=r)
        self.handler_seconds = Histogram(
            "relay_consumer_handler_seconds", "Time of a handler call", by, buckets=_SECONDS, registry=r
        )


def metrics_of(registry: CollectorRegistry | None) -> ConsumerMetrics:
    """The metrics in this registry; all consumers of a process share them."""
    return _made(REGISTRY if registry is None else registry)


_made = cache(ConsumerMetrics)
