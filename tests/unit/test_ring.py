"""Who owns which buckets: evenly, and with few moves."""

from relay.ring import owned_buckets, shares
from relay.scan import BUCKETS

WORKERS = [f"host-{number}-abcd" for number in range(10)]


def _shares(workers: list[str]) -> dict[int, str]:
    return {bucket: worker for worker in workers for bucket in owned_buckets(worker, workers)}


def test_every_bucket_has_exactly_one_owner() -> None:
    owned = [bucket for worker in WORKERS for bucket in owned_buckets(worker, WORKERS)]
    assert sorted(owned) == list(range(BUCKETS))


def test_shares_are_about_even() -> None:
    sizes = [len(owned_buckets(worker, WORKERS)) for worker in WORKERS]
    assert min(sizes) > BUCKETS / 10 * 0.6
    assert max(sizes) < BUCKETS / 10 * 1.4


def test_a_worker_that_leaves_moves_only_its_own_buckets() -> None:
    before, after = _shares(WORKERS), _shares(WORKERS[:-1])
    moved = {bucket for bucket in before if before[bucket] != after[bucket]}
    assert moved == set(owned_buckets(WORKERS[-1], WORKERS))


def test_a_worker_that_joins_takes_about_its_share_and_nothing_else_moves() -> None:
    before, after = _shares(WORKERS[:-1]), _shares(WORKERS)
    moved = {bucket for bucket in before if before[bucket] != after[bucket]}
    assert all(after[bucket] == WORKERS[-1] for bucket in moved)
    assert BUCKETS / 10 * 0.6 < len(moved) < BUCKETS / 10 * 1.4


def test_a_worker_that_does_not_see_itself_still_watches_its_share() -> None:
    assert owned_buckets("new", WORKERS) == owned_buckets("new", [*WORKERS, "new"])


def test_alone_it_watches_everything() -> None:
    assert owned_buckets("only", ["only"]) == list(range(BUCKETS))


def test_the_shares_of_all_are_what_each_works_out_for_itself() -> None:
    assert shares(WORKERS) == {worker: owned_buckets(worker, WORKERS) for worker in WORKERS}
    assert shares([]) == {}
