"""The comparison's own arithmetic: who used what, which runs count, and how they are told."""

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from benchmarks import accounting as accounting_module
from benchmarks import installs
from benchmarks import run as runs
from benchmarks.accounting import OWN, Accounting
from benchmarks.measuring import Run
from benchmarks.report import lines
from benchmarks.run import REPEATS, Measurement, quietest
from benchmarks.topic import Arrivals, Topic, header_number
from relay.bench.checker import Found
from relay.demo.processes import ServerError


def a_run(noise: float = 0.0, rate: int = 1000, *, clean: bool = True) -> Run:
    figures = {
        "events": 10,
        "events_per_second": rate,
        "second_half_events_per_second": rate,
        "cpu_us_per_event": {"contender": 1.0, "database": 2.0, "broker": 3.0},
        "cpu_us_per_event_together": 6.0,
        "second_half_cpu_us_per_event_together": 5.0,
        "peak_rss_mib": 80.0,
        "latency_ms": {"p50": 1.0, "p99": 2.0, "p99_9": 3.0},
        "check": {"lost": 0 if clean else 1},
    }
    return Run("a contender", figures, noise, clean)


def measured(noises: Iterator[float]) -> Measurement:
    return Measurement("drain: a contender", lambda: a_run(next(noises)))


def test_a_noisy_run_is_thrown_away_and_repeated() -> None:
    thrown: list[Run] = []
    run = quietest(measured(iter([0.4, 0.06, 0.01])), 0.05, thrown)
    assert run.noise == 0.01
    assert [each.noise for each in thrown] == [0.4, 0.06]


@pytest.mark.parametrize("lossy,code", [(None, 0), ("warm-up", 1), ("noisy", 1), ("quiet", 1)])
def test_a_run_that_lost_events_fails_the_comparison_also_if_it_does_not_count(
    lossy: str | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = iter([a_run(0.4, clean=lossy != "noisy"), a_run(clean=lossy != "quiet")])
    monkeypatch.setattr(runs, "Broker", nullcontext)
    monkeypatch.setattr(runs, "warm_up", lambda *_: a_run(clean=lossy != "warm-up"))
    monkeypatch.setattr(runs, "_measurements", lambda *_: [Measurement("drain: it", lambda: next(tries))])
    monkeypatch.setattr(sys, "argv", ["run.py", "--rounds", "1"])
    assert runs.main() == code
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("NOT CLEAN")]
    assert told == (["NOT CLEAN: a contender: {'lost': 1}"] if lossy else [])


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


def test_the_memory_of_a_contender_is_that_of_all_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {1: 100, 2: 50}
    monkeypatch.setattr(accounting_module, "peak_rss", memory.get)
    with Accounting({"contender": [1, 2], "database": [2]}) as accounting:
        pass
    assert accounting.peak == {"contender": 150, "database": 50}
    memory.clear()  # they have ended
    accounting._look()
    assert accounting.peak == {"contender": 150, "database": 50}


class ThreeMessages(Topic):
    """The first, the first again, and the second, each when somebody looks whether the sender is alive."""

    def __init__(self) -> None:
        self.name = "three"
        self.sent: list[Found] = []

    def send(self) -> None:
        if len(self.sent) < 3:
            self.sent.append(Found("order:1", (1, 1, 2)[len(self.sent)]))

    def size(self) -> int:
        return len(self.sent)

    def read(self) -> Arrivals:
        return Arrivals(list(self.sent))


def test_a_message_that_comes_twice_does_not_stand_for_one_that_is_missing() -> None:
    topic = ThreeMessages()
    topic.wait_for(2, 60, topic.send)
    assert len(topic.sent) == 3
    with pytest.raises(ServerError, match="2 of 3 messages had arrived"):
        topic.wait_for(3, 0, topic.send)


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
