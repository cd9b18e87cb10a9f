"""Which worker watches which buckets: rendezvous hashing. Pure.

Every worker computes the same answer from the same set of living workers; one that joins or leaves moves
about 1/N of the buckets. The answer is a hint: a stale view costs speed, never order.
"""

from collections.abc import Collection
from hashlib import blake2b

from relay.scan import BUCKETS


def owned_buckets(worker: str, living: Collection[str]) -> list[int]:
    """The buckets whose highest bidder among the living is `worker`, ascending."""
    rivals = [other for other in living if other != worker]
    mine = _bids(worker)
    theirs = [_bids(other) for other in rivals]
    return [bucket for bucket in range(BUCKETS) if all(mine[bucket] > bids[bucket] for bids in theirs)]


def shares(living: Collection[str]) -> dict[str, list[int]]:
    """Every worker's buckets, as each of them computes its own."""
    bids = {worker: _bids(worker) for worker in living}
    owned: dict[str, list[int]] = {worker: [] for worker in bids}
    for bucket in range(BUCKETS) if bids else ():
        owned[max(bids, key=lambda worker: bids[worker][bucket])].append(bucket)
    return owned


def _bids(worker: str) -> list[bytes]:
    """One bid per bucket; ends with the name, so that two workers never bid the same."""
    name = worker.encode()
    return [
        blake2b(name, digest_size=8, salt=bucket.to_bytes(4)).digest() + name for bucket in range(BUCKETS)
    ]
