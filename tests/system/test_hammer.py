"""Many relay processes on one outbox, nothing failing: every event exactly once, each key in order."""

from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.system.relays import RelayProcess, insert, statuses

Start = Callable[..., RelayProcess]
WORKERS = 10


@pytest.mark.parametrize("events,keys", [(100, 100), (100, 7), (10_000, 500)])
def test_ten_relays_publish_every_event_exactly_once(
    relay: Start, database: str, events: int, keys: int
) -> None:
    insert(database, events, keys)
    workers = [relay(database, "--until-empty", batch_size=200) for _ in range(WORKERS)]
    assert [worker.wait() for worker in workers] == [0] * WORKERS
    published = [line["headers"]["event_id"] for worker in workers for line in worker.lines]
    assert len(published) == events
    assert len(set(published)) == events
    assert statuses(database) == {"completed": events}


def test_a_single_relay_publishes_each_key_in_insertion_order(relay: Start, database: str) -> None:
    insert(database, 5_000, 50)
    worker = relay(database, "--until-empty", batch_size=300)
    assert worker.wait() == 0
    lanes: dict[str, list[int]] = defaultdict(list)
    for line in worker.lines:
        lanes[line["headers"]["partition_key"]].append(line["payload"]["n"])
    assert sum(map(len, lanes.values())) == 5_000
    assert all(lane == sorted(lane) for lane in lanes.values())
