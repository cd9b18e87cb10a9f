"""The servers of the comparison: PostgreSQL and Apache Kafka as somebody would run them, on this machine.

Unlike the servers of the tests they write to the disk for good (fsync), and Kafka's Java compiles fully.
"""

from pathlib import Path

from relay.demo.postgres import PostgresServer, ServerError
from tests.servers.kafka import KafkaBroker

SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "max_connections": "100",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "max_replication_slots": "4",
    "max_wal_senders": "4",
}


def postgres(version: int, *, logical: bool) -> PostgresServer:
    """A new server; `logical`: its WAL can be decoded, which Debezium needs and nobody else."""
    settings = {**SETTINGS, "wal_level": "logical" if logical else "replica"}
    if version == 18:
        return PostgresServer.embedded(settings=settings, trust=True)
    programs = Path(f"/usr/lib/postgresql/{version}/bin")
    if not programs.is_dir():
        raise ServerError(f"PostgreSQL {version} is not installed: make servers, or --postgres 18.")
    return PostgresServer(programs, settings=settings, trust=True)


class Broker(KafkaBroker):
    def _java(self) -> list[str]:
        tuning = ["-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        return ["java", *tuning, "-cp", f"{self.jars}/*"]
