"""PostgreSQL servers for tests: the embedded 18, the distribution's 15, and streaming replicas of either."""

from collections.abc import Mapping
from pathlib import Path

import psycopg

from relay.demo.postgres import PostgresServer, ServerError

TEST_SETTINGS = {
    "max_connections": "300",
    "shared_buffers": "256MB",
    "wal_level": "logical",
    "max_prepared_transactions": "10",
    "max_wal_size": "4GB",
    "track_io_timing": "on",
    "track_functions": "all",
    "log_min_messages": "warning",
}


def embedded(*, port: int | None = None) -> PostgresServer:
    """PostgreSQL 18, from the wheel."""
    return PostgresServer.embedded(settings=TEST_SETTINGS, trust=True, port=port)


def distribution(*, port: int | None = None, settings: Mapping[str, str] | None = None) -> PostgresServer:
    """The newest PostgreSQL that the distribution has installed; on Debian 12 that is 15."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda program: int(program.parts[-3]),
    )
    if not found:
        raise ServerError("The distribution's PostgreSQL is not installed: make servers.")
    all_settings = TEST_SETTINGS | dict(settings or {})
    return PostgresServer(found[-1].parent, settings=all_settings, trust=True, port=port)


class Standby(PostgresServer):
    """A streaming replica of a server that runs; it follows the primary by way of `port`."""

    def __init__(self, primary: PostgresServer, port: int | None = None) -> None:
        super().__init__(primary.bin_dir, settings=TEST_SETTINGS, trust=True)
        self._follows = f"host=127.0.0.1 port={port or primary.port} user=postgres"

    def promote(self) -> None:
        """Become a primary: everything received so far is replayed first."""
        with psycopg.connect(self.url(), autocommit=True) as conn:
            if conn.execute("SELECT pg_promote()").fetchone() != (True,):
                raise ServerError(f"PostgreSQL was not promoted:\n{self.log[-2000:]}")

    def _filling(self, data: Path) -> list[str]:
        fixed = ["--checkpoint=fast", "--no-sync", "--write-recovery-conf"]
        return [str(self.bin_dir / "pg_basebackup"), *fixed, f"--pgdata={data}", f"--dbname={self._follows}"]
