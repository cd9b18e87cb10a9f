"""Gauges of the outbox as a whole, exposed by one worker at a time: the housekeeper.

A worker shows them while it holds the post by its own monotonic clock, and while the reading is young. Who
has lost the post, was frozen or is cut off from the database shows none of them, so a sum over all workers is
right and old values do not linger.
"""

from collections.abc import Callable, Iterable
from time import monotonic
from typing import NamedTuple, TypeAlias

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from relay.reading import Reading
from relay.series import Series

# A database that answers everything but this is better described by the last reading, for a while.
READING_SECONDS = 30.0

Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]


class _Gauge(NamedTuple):
    series: Series
    samples: Callable[[Reading], Samples]


def _gauge(name: str, text: str, samples: Callable[[Reading], Samples], *labels: str) -> _Gauge:
    return _Gauge(Series(f"relay_{name}", "gauge", text, labels, "housekeeper"), samples)


def _one(name: str, text: str, value: Callable[[Reading], float]) -> _Gauge:
    return _gauge(name, text, lambda reading: [((), value(reading))])


def _exactness(reading: Reading) -> Samples:
    counts = {
        "pending_events": reading.pending,
        "retrying_events": reading.retrying,
        "failed_events": reading.failed,
        "dead_letter_events": reading.dead_letter,
        "blocked_keys": reading.blocked_keys,
    }
    exact = {name: count.exact for name, count in counts.items()}
    exact["oldest_pending_age_seconds"] = reading.pending.exact
    exact["oldest_transaction_age_seconds"] = reading.sees_all_sessions
    return [((f"relay_{name}",), float(known)) for name, known in exact.items()]


def _breakers(reading: Reading) -> Samples:
    """1: open, 0.5: about to be tried. Subjects that look alike share the worse of their states."""
    states: dict[tuple[str, ...], float] = {}
    for breaker in reading.breakers:
        labels = (breaker.scope, breaker.subject)
        states[labels] = max(states.get(labels, 0.0), 0.5 if breaker.probing else 1.0)
    return states.items()


def _by_name(values: dict[str, int]) -> Samples:
    return [((name,), value) for name, value in values.items()]


GAUGES = (
    _one("pending_events", "Events that wait to be published", lambda r: r.pending.value),
    _one(
        "retrying_events",
        "Pending events that were tried before, part of the pending ones",
        lambda r: r.retrying.value,
    ),
    _one("processing_events", "Events under a lease", lambda r: r.processing.value),
    _one("failed_events", "Events that hold their key (on_exhausted = block)", lambda r: r.failed.value),
    _one("dead_letter_events", "Events given up", lambda r: r.dead_letter.value),
    _one("blocked_keys", "Keys held by a failed event", lambda r: r.blocked_keys.value),
    _one(
        "oldest_pending_age_seconds",
        "Age of the oldest event that could be published; 0: there is none",
        lambda r: r.oldest_pending_seconds,
    ),
    _gauge(
        "reading_exact",
        "1: this gauge is exact; 0: it is an estimate, because there is more than is worth counting",
        _exactness,
        "gauge",
    ),
    _one("workers", "Workers that are not dead", lambda r: r.workers),
    _gauge(
        "open_breakers",
        "Breakers that are open, by what they hold",
        lambda r: _by_name(r.open_breakers),
        "scope",
    ),
    _gauge(
        "breaker_state",
        "1: this breaker is open; 0.5: it is time to try again; no series: closed",
        _breakers,
        "scope",
        "subject",
    ),
    _gauge(
        "operator_pauses",
        "Pauses that operators have set, by what they hold",
        lambda r: _by_name(r.operator_pauses),
        "scope",
    ),
    _one(
        "oldest_transaction_age_seconds",
        "Age of the oldest open transaction that keeps the database from cleaning up the outbox",
        lambda r: r.oldest_transaction_seconds,
    ),
    _one(
        "held_back_transactions",
        "Transactions since the oldest one that a session, slot or prepared transaction holds on to",
        lambda r: r.held_back_transactions,
    ),
    _gauge(
        "dead_tuples",
        "Dead rows that wait for VACUUM, as the server estimates them",
        lambda r: [((table,), upkeep.dead_tuples) for table, upkeep in r.upkeep.items()],
        "table",
    ),
    _gauge(
        "last_autovacuum_age_seconds",
        "Time since the last autovacuum; no series: there was none",
        lambda r: [
            ((table,), upkeep.autovacuum_seconds)
            for table, upkeep in r.upkeep.items()
            if upkeep.autovacuum_seconds is not None
        ],
        "table",
    ),
)
POST = Series("relay_housekeeper", "gauge", "1: this worker reads the gauges of the whole outbox")


class TableGauges(Collector):
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._reading: Reading | None = None
        self._read_at = 0.0

    def hold(self, until: float) -> None:
        """This worker has the post until then (monotonic)."""
        self._until = until

    def resign(self) -> None:
        self._until = 0.0
        self._reading = None

    def show(self, reading: Reading) -> None:
        self._reading, self._read_at = reading, self._clock()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        now, reading = self._clock(), self._reading
        keeps_house = now < self._until
        yield GaugeMetricFamily(POST.name, POST.help, value=float(keeps_house))
        if not keeps_house or reading is None or now > self._read_at + READING_SECONDS:
            return
        for gauge in GAUGES:
            family = _family(gauge.series)
            for labels, value in gauge.samples(reading):
                family.add_metric(labels, value)
            yield family

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return [_family(series) for series in self.series()]

    @staticmethod
    def series() -> list[Series]:
        return [POST, *(gauge.series for gauge in GAUGES)]


def _family(series: Series) -> GaugeMetricFamily:
    return GaugeMetricFamily(series.name, series.help, labels=series.labels)
