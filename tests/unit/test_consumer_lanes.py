"""What a consumer holds: lanes by key, progress by partition, tallies by event."""

import tracemalloc
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from relay.consumers.lanes import Delivery, Lanes
from relay.consumers.message import Raw, decode
from relay.consumers.progress import Progress
from relay.consumers.tallies import REMEMBERED, Tallies, Tally


def delivery(key: str | None, token: int = 0, place: str = "p") -> Delivery:
    return Delivery(place, key, Raw(b"{}", {}, ""), token)


def fill(*deliveries: Delivery) -> Lanes:
    lanes = Lanes()
    for each in deliveries:
        lanes.add(each)
    return lanes


def take(lanes: Lanes, now: float = 0.0) -> Delivery:
    found = lanes.next(now)
    assert found is not None
    return found


def test_messages_of_one_key_come_one_after_the_other() -> None:
    first, second = delivery("a", 1), delivery("a", 2)
    lanes = fill(first, second)
    assert take(lanes) is first
    assert lanes.next(0) is None  # the lane is out until its message is told done or again
    lanes = fill(first, second)
    lanes.done(take(lanes))
    assert take(lanes) is second


def test_a_message_that_waits_holds_its_lane_and_no_other() -> None:
    first, second, other = delivery("a", 1), delivery("a", 2), delivery("b", 3)
    lanes = fill(first, second, other)
    lanes.again(take(lanes), 10.0)
    assert lanes.wait(0.0) == 0.0
    lanes.done(take(lanes))
    assert lanes.next(9.9) is None
    assert lanes.wait(4.0) == 6.0
    assert take(lanes, 10.0) is first
    lanes.done(first)
    assert take(lanes, 10.0) is second
    lanes.done(second)
    assert (len(lanes), lanes.wait(10.0)) == (0, None)


def test_messages_without_a_key_stand_alone() -> None:
    first, second = delivery(None, 1), delivery(None, 2)
    lanes = fill(first, second)
    lanes.again(take(lanes), 10.0)
    assert take(lanes) is second
    lanes.done(second)
    assert take(lanes, 10.0) is first


def test_a_key_of_two_partitions_has_two_lanes_and_each_is_dropped_with_its_own() -> None:
    one, two = delivery("a", 1, "p1"), delivery("a", 2, "p2")
    lanes = fill(one, two)
    lanes.again(take(lanes), 10.0)
    lanes.drop("p1")
    assert (lanes.held("p1"), lanes.held("p2")) == (0, 1)
    assert take(lanes, 20.0) is two
    lanes.done(two)
    assert lanes.next(20.0) is None


def test_what_was_dropped_while_it_was_out_does_not_come_back() -> None:
    lanes = fill(delivery("a", 1), delivery("a", 2))
    out = take(lanes)
    lanes.drop("p")
    lanes.again(out, 0.0)
    assert lanes.next(1.0) is None
    fresh = delivery("a", 1)
    lanes.add(fresh)
    assert take(lanes, 1.0) is fresh
    assert len(lanes) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40), st.randoms())
def test_each_key_is_handled_in_order_whatever_fails(arrivals: list[tuple[int, int]], dice: Random) -> None:
    """Arrivals are (key, how often it fails); they come in at any moment."""
    lanes, now = Lanes(), 0.0
    handled: list[tuple[str | None, int]] = []
    left = {n: failures for n, (_, failures) in enumerate(arrivals)}
    coming = list(enumerate(arrivals))
    while coming or len(lanes):
        if coming and dice.random() < 0.5:
            n, (key, _) = coming.pop(0)
            lanes.add(delivery(str(key), n))
        now += dice.random()
        found = lanes.next(now)
        if found is None:
            continue
        if left[found.token]:
            left[found.token] -= 1
            lanes.again(found, now + dice.random() * 3)
        else:
            handled.append((found.key, found.token))
            lanes.done(found)
    for key in range(4):
        expected = [n for n, (each, _) in enumerate(arrivals) if each == key]
        assert [n for each, n in handled if each == str(key)] == expected


@given(st.permutations(list(range(8))))
def test_the_offset_to_commit_is_that_of_the_first_message_that_is_not_done(order: list[int]) -> None:
    progress = Progress()
    for offset in range(100, 108):
        progress.take(offset)
    done: set[int] = set()
    assert progress.to_commit() is None
    for n in order:
        progress.done(100 + n)
        done.add(n)
        first_open = next((n for n in range(8) if n not in done), 8)
        assert progress.to_commit() == (100 + first_open if first_open else None)


def test_an_offset_is_committed_once_unless_that_failed() -> None:
    progress = Progress()
    progress.take(7)
    progress.done(7)
    assert progress.to_commit() == 8
    progress.commit(8)
    assert progress.to_commit() is None
    progress.commit(None)
    assert progress.to_commit() == 8


def test_offsets_that_a_compacted_topic_leaves_out_do_not_stop_the_commit() -> None:
    progress = Progress()
    for offset in (3, 9):
        progress.take(offset)
        progress.done(offset)
    assert progress.to_commit() == 10


def test_what_is_done_behind_a_message_that_waits_costs_no_memory() -> None:
    progress = Progress()
    progress.take(0)
    tracemalloc.start()
    try:
        for offset in range(1, 20_000):
            progress.take(offset)
            progress.done(offset)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 10_000
    assert progress.to_commit() is None
    progress.done(0)
    assert progress.to_commit() == 20_000


def test_a_tally_is_of_one_event_and_replay_and_only_so_many_are_remembered() -> None:
    tallies = Tallies()
    for n in range(REMEMBERED + 1):
        tallies.keep(decode(Raw(b"1", {"event_id": f"evt-{n}"}, "")), Tally(failures=n))
    assert tallies.of(decode(Raw(b"1", {"event_id": "evt-0"}, ""))).failures == 0
    assert tallies.of(decode(Raw(b"1", {"event_id": "evt-9"}, ""))).failures == 9
    assert tallies.of(decode(Raw(b"1", {"event_id": "evt-9", "replay_id": "r"}, ""))).failures == 0
    tallies.forget(decode(Raw(b"1", {"event_id": "evt-9"}, "")))
    assert tallies.of(decode(Raw(b"1", {"event_id": "evt-9"}, ""))).failures == 0
