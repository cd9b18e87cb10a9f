"""The comparison's own arithmetic: who used what, which runs count, and how they are told."""

import os
from collections.abc import Iterator

import pytest

from benchmarks import installs
from benchmarks.accounting import OWN, Accounting
from benchmarks.measuring import Run
from benchmarks.report import lines
from benchmarks.run import REPEATS, Measurement, quietest
from benchmarks.topic import header_number


def a_run(noise: float = 0.0, rate: int = 1000, *, clean: bool = True) -> Run:
    figures = {
        "events": 10,
        "events_per_second": rate,
        "second_half_events_per_second": rate,
        "cpu_us_per_event": {"contender": 1.0, "database": 2.0, "broker": 3.0},
        "cpu_us_per_event_together": 6.0,
        "peak_rss_mib": 80.0,
        "latency_ms": {"p50": 1.0, "p99": 2.0, "p99_9": 3.0},
        "check": {"lost": 0 if clean else 1},
    }
    return Run("a contender", figures, noise, clean)


def measured(noises: Iterator[float]) -> Measurement:
    return Measurement("drain: a contender", lambda: a_run(next(noises)))


def test_a_noisy_run_is_thrown_away_and_repeated() -> None:
    thrown: list[dict[str, object]] = []
    run = quietest(measured(iter([0.4, 0.06, 0.01])), 0.05, thrown)
    assert run.noise == 0.01
    assert [each["noise"] for each in thrown] == [0.4, 0.06]


def test_after_five_repeats_the_quietest_run_is_kept_and_says_how_noisy_it_was() -> None:
    noises = [0.4, 0.3, 0.2, 0.1, 0.3, 0.5]
    assert len(noises) == REPEATS + 1
    run = quietest(measured(iter(noises)), 0.05, [])
    assert run.noise == 0.1


def test_cpu_is_interpolated_between_two_looks_and_the_rest_is_others() -> None:
    accounting = Accounting({"contender": []})
    accounting._moments = [100.0, 110.0]
    accounting._readings = [
        {"machine": 50.0, OWN: 1.0, "contender": 10.0},
        {"machine": 60.0, OWN: 2.0, "contender": 14.0},
    ]
    usage = accounting.between(102.5, 107.5)
    assert usage.cpu == {OWN: pytest.approx(0.5), "contender": pytest.approx(2.0)}
    assert usage.others == pytest.approx(2.5)
    assert usage.noise == pytest.approx(2.5 / (5.0 * (os.cpu_count() or 1)))


def test_a_busy_family_is_seen_while_it_works() -> None:
    with Accounting({"contender": [os.getpid()]}) as accounting:
        start = accounting._moments[0]
        while accounting._moments[-1] - start < 0.4:
            sum(range(10_000))
    usage = accounting.between(start, accounting._moments[-1])
    assert usage.cpu["contender"] > 0
    assert accounting.peak["contender"] > 2**20


def test_the_report_compares_with_the_tuned_contender_and_names_a_failed_check() -> None:
    drains = {
        "Debezium Server, tuned": [a_run(rate=1000)],
        "Outbox Relay": [a_run(rate=1500), a_run(rate=1700)],
    }
    told = list(lines(drains, {}))
    assert "1.60" in told[2]
    assert told[2].endswith("ok")
    assert "FAILED" in list(lines({"x": [a_run(clean=False)]}, {}))[1]
    assert list(lines({}, {"x": [a_run()]}))[2].split()[1:4] == ["1.0", "2.0", "3.0"]


def test_headers_of_debezium_are_read_with_and_without_their_schema() -> None:
    assert header_number(b"17") == 17
    assert header_number(b'{"schema":{"type":"int64"},"payload":17}') == 17


def test_the_newest_final_release_is_chosen_by_number() -> None:
    listed = "<version>3.9.0.Final</version><version>3.10.1.Final</version><version>3.11.0.Beta1</version>"
    assert installs.newest_debezium(listed) == "3.10.1.Final"
