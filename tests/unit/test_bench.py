"""What a bench computes without a server."""

import os
import socket
from array import array
from pathlib import Path

import pytest

from publishers.memory import MemoryPublisher
from relay.bench.checker import Found, Verdict, check
from relay.bench.figures import histogram, latency, pace, percentile
from relay.bench.journal import Entry, Journal, merged, read_journal
from relay.bench.local_processes import family_cpu, listening_process, peak_rss
from relay.bench.plan import POISON_KEY, POISON_TYPE, Keys, Plan
from relay.bench.plots import bar, sparkline
from relay.bench.steady import since_position
from relay.bench.watched import Watched
from relay.event import Event
from relay.outcome import Delivered, Refused, Unconfirmed
from relay.testing import make_event

TWO_KEYS = [Found("a", 1), Found("b", 2), Found("a", 3), Found("b", 4)]


def checked(messages: list[Found], left: tuple[int, ...] = ()) -> Verdict:
    return check("a stage", "a list", range(1, 5), left, messages)


def test_everything_in_order_is_clean() -> None:
    verdict = checked(TWO_KEYS)
    assert verdict.clean
    assert (verdict.committed, verdict.found, verdict.duplicates) == (4, 4, 0)


def test_keys_may_overtake_each_other() -> None:
    assert checked([TWO_KEYS[1], TWO_KEYS[3], TWO_KEYS[0], TWO_KEYS[2]]).clean


def test_a_forged_loss_is_found() -> None:
    verdict = checked(TWO_KEYS[:3])
    assert (verdict.lost, verdict.clean) == (1, False)


def test_a_forged_inversion_is_found() -> None:
    verdict = checked([TWO_KEYS[2], TWO_KEYS[0], TWO_KEYS[1], TWO_KEYS[3]])
    assert (verdict.lost, verdict.inverted, verdict.clean) == (0, 1, False)


def test_a_duplicate_is_counted_and_is_no_inversion() -> None:
    verdict = checked([*TWO_KEYS, TWO_KEYS[0]])
    assert (verdict.duplicates, verdict.inverted, verdict.clean) == (1, 0, True)


def test_what_nobody_committed_does_not_make_up_for_a_loss() -> None:
    verdict = checked([*TWO_KEYS[:3], Found("c", 99)])
    assert (verdict.lost, verdict.unknown, verdict.clean) == (1, 1, False)


def test_what_is_left_in_the_table_is_not_lost_whether_it_was_published_or_not() -> None:
    assert checked(TWO_KEYS[:3], left=(4,)).clean
    assert checked(TWO_KEYS, left=(4,)).clean


def test_a_journal_tells_what_was_written_and_several_are_merged_by_time(tmp_path: Path) -> None:
    for number, times in enumerate([(1.0, 4.0), (2.0, 3.0)]):
        journal = Journal(tmp_path / str(number))
        for at in times:
            journal.write(at, [int(at) * 10, int(at) * 10 + 1], [7, 8])
        journal.close()
        assert journal.events == 4
    entries = merged([tmp_path / "0", tmp_path / "1"])
    assert [entry.at for entry in entries] == [1.0, 2.0, 3.0, 4.0]
    assert list(entries[1].positions) == [20, 21]
    assert list(next(read_journal(tmp_path / "0")).keys) == [7, 8]


def entries(*pairs: tuple[float, int]) -> list[Entry]:
    return [Entry(at, array("q", range(number)), array("q")) for at, number in pairs]


def test_a_rate_is_counted_between_the_first_confirmation_and_the_last() -> None:
    course = pace(entries((10.0, 100), (11.0, 100), (12.0, 300)), started=5.0)
    assert course.events == 500
    assert course.rate == pytest.approx(200.0)
    assert course.seconds == 7.0
    assert sum(course.course) > 0


def test_one_batch_alone_is_counted_from_the_start() -> None:
    assert pace(entries((10.0, 100)), started=5.0).rate == pytest.approx(20.0)
    assert pace([], started=5.0).rate == 0


def test_a_batch_that_delivered_nothing_is_no_part_of_a_backlog() -> None:
    batches = [
        Entry(1.0, array("q", [7]), array("q")),
        Entry(2.0, array("q"), array("q")),
        Entry(3.0, array("q", [11, 10]), array("q")),
    ]
    assert since_position(batches, 10) == batches[2:]


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(n) for n in range(1, 1001)]
    assert [percentile(values, share) for share in (0.5, 0.99, 0.999, 1.0)] == [500, 990, 999, 1000]
    assert latency([0.002, 0.001]) == {"p50": 1.0, "p99": 2.0, "p99_9": 2.0, "max": 2.0}
    assert latency([]) is None


def test_a_histogram_counts_every_value() -> None:
    found = histogram([0.0001, 0.001, 0.0011, 0.01, 100.0, -0.001])
    assert sum(count for _, count in found) == 6
    assert [bound for bound, _ in found] == sorted(bound for bound, _ in found)


def test_keys_follow_their_distribution() -> None:
    draws = Keys(Plan(distribution="hot", keys=1000), seed=1)
    share = sum(draws.draw() == "order:0" for _ in range(2000)) / 2000
    assert 0.4 < share < 0.6
    drawn = Keys(Plan(distribution="zipf", keys=1000, zipf=1.1), seed=1)
    numbers = [drawn.draw() for _ in range(2000)]
    assert numbers.count("order:0") > numbers.count("order:5") > 0
    even = Keys(Plan(keys=4), seed=1)
    assert {even.draw() for _ in range(200)} == {f"order:{n}" for n in range(4)}


def test_a_plan_names_its_trials_and_its_plain_form_has_none() -> None:
    plan = Plan(events=10, backlog=20, distribution="zipf", poison_backlog=5, held_transaction=True)
    assert plan.trials == ("Zipf 1.1, 5 events behind a poisoned one, a transaction held open, backlog of 20")
    assert plan.plain.trials == ""
    assert (plan.depth, plan.plain.depth) == (20, 10)


def test_plots_show_heights_and_lengths() -> None:
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert sparkline([0, 4], ascii_only=True).isascii()
    assert sparkline([]) == ""
    assert bar(5, 10, 4) == "██"
    assert bar(10, 10, 4, ascii_only=True) == "####"


def poisoned(events: list[Event], journal: Journal) -> list[object]:
    return list(Watched(MemoryPublisher(), journal).publish(events, 1e9))


def test_the_poisoned_event_is_refused_and_holds_up_its_key_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    events = [
        make_event("order:1"),
        make_event(POISON_KEY)._replace(event_type=POISON_TYPE),
        make_event(POISON_KEY),
        make_event("order:2"),
    ]
    outcomes = poisoned(events, journal)
    assert [type(outcome) for outcome in outcomes] == [Delivered, Refused, Unconfirmed, Delivered]
    journal.close()
    assert journal.events == 2


def test_local_servers_are_found_by_their_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listening_process("127.0.0.1", server.getsockname()[1]) == os.getpid()
        assert listening_process("192.0.2.1", server.getsockname()[1]) is None
        cpu = family_cpu(os.getpid())
        assert cpu is not None
        assert cpu > 0
    assert peak_rss() is not None
