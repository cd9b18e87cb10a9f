"""PostgreSQL servers for tests: the embedded 18 and the distribution's 15."""

from pathlib import Path

from relay.demo.postgres import PostgresServer, ServerError

TEST_SETTINGS = {
    "max_connections": "300",
    "shared_buffers": "256MB",
    "wal_level": "logical",
    "max_wal_size": "4GB",
    "track_io_timing": "on",
    "track_functions": "all",
    "log_min_messages": "warning",
}


def embedded(*, port: int | None = None) -> PostgresServer:
    """PostgreSQL 18, from the wheel."""
    return PostgresServer.embedded(settings=TEST_SETTINGS, trust=True, port=port)


def distribution(*, port: int | None = None) -> PostgresServer:
    """The newest PostgreSQL that the distribution has installed; on Debian 12 that is 15."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda program: int(program.parts[-3]),
    )
    if not found:
        raise ServerError("The distribution's PostgreSQL is not installed: make servers.")
    return PostgresServer(found[-1].parent, settings=TEST_SETTINGS, trust=True, port=port)
