"""The scan comes to every bucket and every key, whatever the claims saw on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.scan import (
    BEHIND,
    BUCKETS,
    BUCKETS_PER_CLAIM,
    DEAR_LAPS,
    DEEP,
    EARLIEST,
    FIRST_TAIL_BLOCKS,
    FLOOR_SAVES,
    FOREVER,
    LEAST_OF_DEEP,
    PART_OF_DEEP,
    PARTS,
    SECONDS_PER_EVENT,
    TAIL_BLOCKS,
    THOROUGH,
    Laps,
    Scan,
    Tail,
    next_owned,
    part_of,
    reach,
)


def test_a_claim_that_saw_everything_goes_on_behind_the_last_bucket() -> None:
    scan = Scan(keys={3: "x", 9: "y"})
    scan.advance([3, 9], [(3, "k"), (9, "l")], full=False)
    assert scan.start == 10
    assert scan.keys == {}


def test_behind_the_last_bucket_of_all_comes_the_first() -> None:
    scan = Scan(start=1000)
    scan.advance([BUCKETS - 1], [(BUCKETS - 1, "k")], full=False)
    assert scan.start == 0
    assert scan.laps == 1


def test_a_claim_that_was_cut_goes_on_in_the_same_bucket_behind_the_last_key() -> None:
    scan = Scan(keys={3: "x", 12: "z"})
    scan.advance([3, 9, 12], [(3, "k"), (9, "l")], full=True)
    assert scan.start == 9
    assert scan.after(9) == "l"
    assert scan.after(3) == ""
    assert scan.after(12) == "z", "it was not looked at"


def test_a_filled_claim_out_of_a_deep_backlog_sets_a_horizon_until_the_scan_comes_around() -> None:
    scan = Scan(start=1000)
    scan.took([7, 7 + DEEP])
    assert scan.horizon == FOREVER, "not deep"
    scan.took([80 * DEEP, 100, 5 * DEEP])
    assert scan.horizon == 100 + (80 * DEEP - 100) // PART_OF_DEEP
    before = scan.horizon
    scan.took([500 * DEEP, 100])
    assert scan.horizon == before, "it stays for the rest of the lap"
    scan.advance([1010], [(1010, "k")], full=True)
    assert scan.horizon == before
    scan.advance([1010, BUCKETS - 1], [], full=False)
    assert (scan.start, scan.horizon) == (0, FOREVER)


def test_a_horizon_leaves_enough_to_fill_claims_from_the_buckets_that_one_may_lock() -> None:
    scan = Scan()
    scan.took([1, 2 + DEEP])
    assert scan.horizon == 1 + LEAST_OF_DEEP
    assert LEAST_OF_DEEP / BUCKETS * BUCKETS_PER_CLAIM > 2 * 4000


def test_a_lap_under_a_horizon_is_none() -> None:
    scan = Scan(start=5)
    scan.took([1, 9 * DEEP])
    scan.advance([5, 1000], [], full=False)
    scan.advance([3], [(3, "k")], full=True)
    assert (scan.laps, scan.horizon) == (0, FOREVER)
    scan.advance([3, 1000], [], full=False)
    scan.advance([2], [(2, "k")], full=True)
    assert scan.laps == 1


def test_a_claim_filled_by_those_that_waited_leaves_the_next_to_fresh_ones() -> None:
    scan = Scan(start=5, keys={5: "x"})
    scan.advance([5, 6], [], full=True)
    assert scan.later_rests
    assert (scan.start, scan.keys) == (5, {5: "x"})
    scan.advance([5, 6], [(5, "y")], full=True)
    assert not scan.later_rests


def test_where_no_bucket_is_fresh_those_that_waited_need_not_rest() -> None:
    scan = Scan()
    scan.advance([], [], full=True)
    assert not scan.later_rests


def test_buckets_that_others_hold_are_passed_over_and_keep_their_cursors() -> None:
    scan = Scan(keys={3: "x"})
    scan.pass_over([3, 7])
    assert scan.start == 8
    assert scan.after(3) == "x"


def test_an_empty_outbox_is_a_lap() -> None:
    scan = Scan(start=17)
    scan.pass_over([])
    scan.advance([], [], full=False)
    assert scan.laps == 2
    assert scan.start == 17


def test_reach_ends_before_the_first_bucket_too_many() -> None:
    assert reach([4, 4, 5, 4, 6, 5], 2) == 4
    assert reach([4, 4, 5], 2) == 3
    assert reach([], 2) == 0


def test_reach_passes_over_buckets_of_others() -> None:
    owned = next_owned([4, 6])
    assert reach([4, 5, 5, 7, 4, 6, 8], 2, owned) == 7
    assert reach([4, 5, 5, 7, 4, 6, 8], 1, owned) == 5


def test_every_bucket_leads_to_the_next_owned_one() -> None:
    following = next_owned([3, 700])
    assert [following[b] for b in (0, 3, 4, 700, 701, BUCKETS - 1, BUCKETS)] == [
        3,
        3,
        700,
        700,
        *[BUCKETS] * 3,
    ]
    assert set(next_owned([])) == {BUCKETS}


class Outbox:
    """Keys in buckets, and claims that look at so many of them."""

    def __init__(self, buckets: dict[int, list[str]], heads: int, window: int) -> None:
        self._buckets = {bucket: sorted(keys) for bucket, keys in buckets.items()}
        self._heads = heads
        self._window = window

    def look(self, scan: Scan) -> list[tuple[int, str]]:
        order = sorted(self._buckets, key=lambda bucket: (bucket < scan.start, bucket))
        looked = order[: self._window]
        seen = [(b, key) for b in looked for key in self._buckets[b] if key > scan.after(b)][: self._heads]
        reached = dict(seen)
        scan.advance(looked, list(reached.items()), full=len(seen) == self._heads)
        return seen


@given(
    st.dictionaries(
        st.integers(0, BUCKETS - 1), st.sets(st.text("abc", min_size=1, max_size=4), min_size=1), max_size=12
    ),
    st.integers(1, 10),
    st.integers(1, 5),
    st.integers(0, BUCKETS - 1),
)
def test_every_key_is_seen_evenly_within_laps(
    buckets: dict[int, set[str]], heads: int, window: int, start: int
) -> None:
    everything = {(bucket, key) for bucket, keys in buckets.items() for key in keys}
    outbox = Outbox({bucket: list(keys) for bucket, keys in buckets.items()}, heads, window)
    scan = Scan(start=start)
    seen: list[tuple[int, str]] = []
    looks = 0
    while scan.laps < 4:
        seen += outbox.look(scan)
        looks += 1
        assert looks <= 4 * (len(everything) + len(buckets) + 1) * 2, "a lap must end"
    counts = {key: seen.count(key) for key in everything}
    assert set(seen) == everything
    assert not counts or max(counts.values()) - min(counts.values()) <= 2


def test_the_end_of_a_table_is_followed_some_pages_back_and_from_the_first_event_there() -> None:
    tail = Tail()
    tail.advance(10_000, 9_990)
    assert tail.block == 10_000 - TAIL_BLOCKS
    tail.advance(9_000, None)
    assert tail.block == 10_000 - TAIL_BLOCKS, "it never goes back"
    tail.advance(20_000, 17_000)
    assert tail.block == 17_000
    tail.advance(30_000, 17_000)
    assert tail.block == 30_000 - FIRST_TAIL_BLOCKS, "what stays there is not followed for ever"
    tail.advance(30_000, None)
    assert tail.block == 30_000 - TAIL_BLOCKS


def test_keys_that_cannot_be_taken_are_passed_over_at_the_end_of_the_table_for_a_while() -> None:
    tail = Tail()
    tail.looked_at([3, 5, 8], taken=3)
    assert tail.after == EARLIEST, "all were taken"
    tail.looked_at([13, 21], taken=1)
    assert tail.after == 21
    tail.looked_at([34], taken=1)
    assert tail.after == 34
    tail.looked_at([], taken=0)
    assert tail.after == EARLIEST, "there are no others"
    tail.looked_at([13], taken=0)
    looks = 0
    while tail.after != EARLIEST:
        looks += 1
        tail.looked_at([100 + looks], taken=1)
    assert looks == BEHIND, "however many others come"


def test_a_short_table_is_looked_at_from_its_beginning() -> None:
    tail = Tail()
    tail.advance(3, None)
    assert tail.block == 0


def test_parts_hold_every_bucket_once() -> None:
    everything = list(range(BUCKETS))
    assert [bucket for part in range(PARTS) for bucket in part_of(everything, part)] == everything
    assert part_of([0, 63, 64, 1023], 0) == [0, 63]


def laps_of(*looks: tuple[float, int], full: bool = False) -> Laps:
    """After as many laps as make a habit of it, each of these looks: seconds, events."""
    laps = Laps()
    for _ in range(DEAR_LAPS):
        assert not laps.dear
        for seconds, events in looks:
            laps.looked(seconds, events, full=full)
        laps.lap_ended()
    return laps


def test_a_backlog_is_claimed_in_laps_however_slow_the_machine_is() -> None:
    assert not laps_of((9.0, 2_000), full=True).dear
    assert laps_of((9.0, 0), full=True).dear, "it was filled with what it could not take"


def test_laps_are_dear_where_they_take_much_longer_than_their_looks_and_events() -> None:
    assert not laps_of((0.03, 0)).dear
    assert not laps_of((2.0, 60_000)).dear, "many events take their time"
    assert not laps_of(*[(0.004, 1)] * PARTS).dear, "many looks take theirs"
    assert laps_of((0.05, 10), (0.05, 10)).dear


def test_a_server_that_is_far_away_does_not_make_laps_dear() -> None:
    laps = Laps()
    laps.trip = 0.01
    for _ in range(DEAR_LAPS):
        for _ in range(PARTS):
            laps.looked(4 * laps.trip, 1)
        laps.lap_ended()
    assert not laps.dear


def test_what_has_come_elsewhere_is_found_by_a_lap_whose_parts_are_made_as_soon_as_they_are_due() -> None:
    laps = laps_of((1.0, 0))
    assert laps.longest_sleep(0.0, 0.25) == 0.0, "a first lap says whether they are dear"
    for _ in range(PARTS):
        laps.part_ended(100.0, 0.001)
    assert laps.longest_sleep(100.0, 0.25) == 0.25, "nothing has come"
    laps.woken()
    for part in range(PARTS):
        assert 0.0 < laps.longest_sleep(100.0 + part, 0.25) < 0.01
        laps.part_ended(101.0 + part, 0.001)
    assert laps.longest_sleep(100.0 + PARTS, 0.25) == 0.25
    laps.woken()
    laps.dear = False
    assert laps.longest_sleep(0.0, 0.25) == 0.25, "a whole lap has been made"


def test_laps_that_become_dear_again_begin_with_one_that_tells_whether_they_are() -> None:
    laps = laps_of((1.0, 0))
    for _ in range(PARTS + 3):
        laps.part_ended(0.0, 1.0)
    assert not laps.thorough
    laps.dear = False
    for _ in range(DEAR_LAPS):
        laps.looked(1.0, 0)
        laps.lap_ended()
    assert (laps.dear, laps.thorough, laps.part) == (True, True, 0)


def test_one_slow_lap_is_chance() -> None:
    laps = Laps()
    for seconds in [9.0] * (DEAR_LAPS - 1) + [0.001] + [9.0] * (DEAR_LAPS - 1):
        laps.looked(seconds, 0)
        laps.lap_ended()
    assert not laps.dear


def test_a_dear_lap_is_made_in_parts_with_rests_until_it_is_cheap_again() -> None:
    laps = laps_of((1.0, 0))
    seen = []
    now = 100.0
    while laps.dear:
        assert laps.due(now)
        seen.append(laps.part)
        laps.looked(0.004, 1)
        laps.part_ended(now, 0.001)
        assert not laps.due(now + 0.003)
        now += 0.005
    assert seen == list(range(PARTS))


@pytest.mark.parametrize("saves, price", [(True, 2.0 / FLOOR_SAVES), (False, 2.0)])
def test_a_backlog_that_is_worth_more_than_a_lap_above_the_floor_is_taken_in_laps(
    saves: bool, price: float
) -> None:
    laps = laps_of((1.0, 0))
    laps.looked_at_the_end(0, cut=True, waiting=1_000_000, saves=saves)
    assert not laps.behind, "what a lap costs is not known before a part of one was made"
    laps.part_ended(0.0, 2.0 / PARTS)
    worth_it = int(price / SECONDS_PER_EVENT) + 1
    laps.looked_at_the_end(0, cut=True, waiting=worth_it - 1, saves=saves)
    laps.looked_at_the_end(0, cut=False, waiting=worth_it, saves=saves)
    assert not laps.behind
    laps.looked_at_the_end(0, cut=True, waiting=worth_it, saves=saves)
    assert laps.behind


def test_who_stays_behind_at_the_end_of_the_table_makes_a_whole_lap() -> None:
    """What is held may be all that is seen there."""
    laps = laps_of((1.0, 0))
    for _ in range(BEHIND - 1):
        laps.looked_at_the_end(0, cut=True, waiting=0, saves=True)
    laps.looked_at_the_end(0, cut=False, waiting=0, saves=True)
    assert not laps.behind
    for _ in range(BEHIND):
        laps.looked_at_the_end(0, cut=True, waiting=0, saves=True)
    assert laps.behind


def test_a_lap_above_the_floor_between_parts_does_not_make_laps_cheap() -> None:
    laps = laps_of((1.0, 0))
    for _ in range(PARTS // 2):
        laps.looked(1.0, 0)
        laps.part_ended(0.0, 1.0)
    laps.looked(0.1, 4_000, full=True)
    laps.lap_ended()
    laps.looked(0.1, 0)
    laps.lap_ended()
    for _ in range(PARTS // 2):
        laps.looked(0.001, 0)
        laps.part_ended(0.0, 1.0)
    assert laps.dear


def in_parts(laps: Laps, *, events: int, at_the_end: int) -> bool:
    """After a lap in parts that is as slow as ever, in which so many events were found here and there."""
    laps.looked_at_the_end(at_the_end, cut=False, waiting=0, saves=True)
    for part in range(PARTS):
        laps.looked(1.0, 0)
        laps.part_ended(0.0, 1.0, events=0 if part else events)
    return laps.dear


def test_where_new_events_are_not_at_the_end_of_the_table_laps_are_whole_again() -> None:
    laps = laps_of((1.0, 0))
    assert in_parts(laps, events=0, at_the_end=0), "nothing came"
    assert in_parts(laps, events=5, at_the_end=50)
    assert not in_parts(laps, events=50, at_the_end=5)


def test_a_backlog_that_parts_find_is_no_sign_that_laps_are_cheap() -> None:
    laps = laps_of((1.0, 0))
    laps.looked(1.0, 4_000, full=True)
    assert in_parts(laps, events=4_000, at_the_end=5)


def test_who_took_laps_for_dear_in_vain_is_slower_to_do_so_again() -> None:
    laps = laps_of((1.0, 0))
    in_parts(laps, events=1, at_the_end=0)
    for _ in range(2 * DEAR_LAPS):
        assert not laps.dear
        laps.looked(1.0, 0)
        laps.lap_ended()
    assert in_parts(laps, events=0, at_the_end=1)
    in_parts(laps, events=1, at_the_end=0)
    for _ in range(2 * DEAR_LAPS):
        laps.looked(1.0, 0)
        laps.lap_ended()
    assert laps.dear, "it was right the last time but one"


def test_of_laps_in_parts_those_above_the_floor_tell_nothing_about_others() -> None:
    laps = laps_of((1.0, 0))
    for lap in range(2 * THOROUGH):
        assert laps.thorough == (lap % THOROUGH == 0)
        for _ in range(PARTS):
            laps.looked(1.0 if laps.thorough else 0.001, 0)
            laps.part_ended(0.0, 1.0 if laps.thorough else 0.001)
        assert laps.dear
    laps.looked_at_the_end(0, cut=True, waiting=int(PARTS / SECONDS_PER_EVENT), saves=False)
    assert not laps.behind, "what a lap costs is what a thorough one cost"


def test_where_laps_are_dear_a_filled_claim_is_a_sign_of_a_backlog() -> None:
    laps = Laps()
    laps.looked(9.0, 4_000, full=True)
    assert not laps.behind, "laps are not dear"
    laps = laps_of((1.0, 0))
    laps.looked(1.0, 0, full=True)
    assert not laps.behind, "it was filled with what it could not take"
    laps.looked(1.0, 4_000, full=True)
    assert laps.behind


def test_who_was_behind_makes_whole_laps_until_one_in_which_no_claim_was_filled_then_parts() -> None:
    laps = laps_of((1.0, 0))
    laps.looked(1.0, 4_000, full=True)
    laps.looked(0.001, 7)  # others had locked the rest
    laps.lap_ended()
    assert laps.behind
    laps.looked(0.001, 7)
    laps.lap_ended()
    assert (laps.behind, laps.dear) == (False, True), "a lap above a floor says nothing about others"
