"""Under a steady load the outbox levels off: the hour-long run of docs/performance.md in short."""

import pytest

from relay.demo.postgres import PostgresServer
from tests.integration.cli_kit import nowhere
from tests.integration.test_bench import bench

__all__ = ["nowhere"]
pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.mark.usefixtures("nowhere")
def test_the_table_and_its_indexes_level_off() -> None:
    # Autovacuum comes by every minute; to see it often enough in so short a time it must come every second.
    with PostgresServer.embedded(settings={"autovacuum_naptime": "1s"}, trust=True) as server:
        load = "--rate 1000 --per-commit 10 --seconds 24"
        found = bench(
            server.url(),
            *f"--publisher memory --completion delete --no-ceilings --events 1000 {load}".split(),
        )
    course = found["steady"]["over_time"]
    third = len(course) // 3
    for size in ("table_bytes", "index_bytes"):
        sizes = [point[size] for point in course]
        # Three times as much where nothing is cleaned.
        assert max(sizes[-third:]) <= 2 * max(sizes[:third]), (size, sizes)
