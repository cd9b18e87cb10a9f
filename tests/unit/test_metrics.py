"""Metrics: names that dashboards hold on to, bounded labels, counting in bulk."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from relay.event import Event
from relay.metrics import BulkHistogram, Metrics
from relay.outcome import Delivered, Outcome, Refused, Unconfirmed
from relay.reading import Reading

NAMES = {
    "relay_claimed_events": "counter",
    "relay_published_events": "counter",
    "relay_settled_events": "counter",
    "relay_fenced_settlements": "counter",
    "relay_lost_leases": "counter",
    "relay_reaped_events": "counter",
    "relay_out_of_order_events": "counter",
    "relay_short_settlements": "counter",
    "relay_publisher_incidents": "counter",
    "relay_claim_seconds": "histogram",
    "relay_publish_seconds": "histogram",
    "relay_commit_to_confirm_seconds": "histogram",
    "relay_pending_events": "gauge",
    "relay_processing_events": "gauge",
    "relay_dead_letter_events": "gauge",
    "relay_failed_events": "gauge",
    "relay_oldest_pending_age_seconds": "gauge",
    "relay_workers": "gauge",
    "relay_build_info": "gauge",
}


def events(number: int, destination: str = "orders", age: float = 0.0) -> list[Event]:
    created = datetime.now(UTC) - timedelta(seconds=age)
    return [
        Event(i, "k", f"evt-{i}", "E", destination, b"{}", None, created, 1, 1, 5)
        for i in range(1, number + 1)
    ]


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_every_documented_name_is_exposed_with_its_type() -> None:
    text = generate_latest(Metrics().registry).decode()
    found = {family.name: family.type for family in text_string_to_metric_families(text)}
    relays = {name: kind for name, kind in found.items() if name.startswith("relay_")}
    # The text format exposes each counter's creation time as a gauge of its own.
    assert {name: kind for name, kind in relays.items() if not name.endswith("_created")} == NAMES
    assert "relay_claimed_events_total 0.0" in text


def test_a_batch_is_counted_by_destination_and_outcome() -> None:
    metrics = Metrics()
    outcomes: Sequence[Outcome] = [Delivered(), Delivered(), Unconfirmed("late"), Refused("too large")]
    metrics.published(events(4), outcomes)
    metrics.published(events(1, "invoices"), [Delivered()])
    name = "relay_published_events_total"
    assert value(metrics, name, destination="orders", outcome="delivered") == 2
    assert value(metrics, name, destination="orders", outcome="unconfirmed") == 1
    assert value(metrics, name, destination="orders", outcome="refused") == 1
    assert value(metrics, name, destination="invoices", outcome="delivered") == 1


def test_only_confirmed_events_are_timed() -> None:
    metrics = Metrics()
    metrics.published(events(2, age=7.0), [Delivered(), Unconfirmed("late")])
    name = "relay_commit_to_confirm_seconds"
    assert value(metrics, f"{name}_count") == 1
    assert value(metrics, f"{name}_bucket", le="5.0") == 0
    assert value(metrics, f"{name}_bucket", le="10.0") == 1
    assert 7.0 <= (value(metrics, f"{name}_sum") or 0) < 8.0


def test_a_database_clock_that_is_ahead_counts_as_no_time() -> None:
    metrics = Metrics()
    metrics.published([*events(1, age=-60.0), *events(2, age=-30.0)], [Delivered()] * 3)
    assert value(metrics, "relay_commit_to_confirm_seconds_sum") == 0
    assert value(metrics, "relay_commit_to_confirm_seconds_bucket", le="0.001") == 3


def test_a_hundred_destinations_have_labels_and_the_rest_share_one() -> None:
    metrics = Metrics()
    for number in range(150):
        metrics.published(events(1, f"topic-{number}"), [Delivered()])
    metrics.published(events(1, "topic-0"), [Delivered()])
    name = "relay_published_events_total"
    assert value(metrics, name, destination="topic-0", outcome="delivered") == 2
    assert value(metrics, name, destination="topic-99", outcome="delivered") == 1
    assert value(metrics, name, destination="topic-100", outcome="delivered") is None
    assert value(metrics, name, destination="other", outcome="delivered") == 50


def test_a_password_in_a_destination_does_not_become_a_label() -> None:
    metrics = Metrics()
    metrics.published(events(1, "https://u:hunter2@x.example/in"), [Delivered()])
    assert b"hunter2" not in generate_latest(metrics.registry)


def test_settlements_and_losses_are_counted() -> None:
    metrics = Metrics()
    metrics.settled("complete", 10)
    metrics.settled("retry", 1)
    metrics.reaped(2, 30)
    assert value(metrics, "relay_settled_events_total", act="complete") == 10
    assert value(metrics, "relay_settled_events_total", act="retry") == 1
    assert value(metrics, "relay_lost_leases_total") == 2
    assert value(metrics, "relay_reaped_events_total") == 30


def test_a_gauge_keeps_its_value_when_the_database_did_not_answer_in_time() -> None:
    metrics = Metrics()
    metrics.gauges(Reading(5, 4, 3, 2, 1.5, 1))
    metrics.gauges(Reading(workers=2))
    shown = {name: value(metrics, name) for name in NAMES if NAMES[name] == "gauge" and "build" not in name}
    assert shown == {
        "relay_pending_events": 5,
        "relay_processing_events": 4,
        "relay_dead_letter_events": 3,
        "relay_failed_events": 2,
        "relay_oldest_pending_age_seconds": 1.5,
        "relay_workers": 2,
    }


def test_two_relays_in_one_process_do_not_share_metrics() -> None:
    first, second = Metrics(), Metrics()
    first.claimed.inc(3)
    assert value(second, "relay_claimed_events_total") == 0


@pytest.mark.parametrize("observed, bucket", [(1.0, "1.0"), (1.5, "2.0"), (9.0, "+Inf")])
def test_a_value_on_a_bound_belongs_to_it(observed: float, bucket: str) -> None:
    histogram = BulkHistogram("h", "h", [1.0, 2.0])
    histogram.observe({observed: 3})
    (family,) = histogram.collect()
    samples = {s.labels["le"]: s.value for s in family.samples if s.name == "h_bucket"}
    assert samples[bucket] == 3
    assert [samples["1.0"], samples["2.0"], samples["+Inf"]] == sorted(samples.values())
