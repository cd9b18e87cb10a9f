"""Debezium Server: its outbox event router reads the WAL and publishes to Kafka.

Table, publication, slot and router are as its documentation has them; the slot exists before the backlog is
committed, so that the backlog is read from the WAL. `tuned` changes what the documentation names for
throughput: batch and queue sizes, the poll interval, the producer's linger and batch, and headers that cost
without being used. Compression is off for everybody.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import KEYS, PAYLOAD, Scene, span, sql

STRING = "org.apache.kafka.common.serialization.StringSerializer"
TUNED = {
    "debezium.source.max.batch.size": "8192",
    "debezium.source.max.queue.size": "32768",
    "debezium.source.poll.interval.ms": "10",
    "debezium.source.extended.headers.enabled": "false",
    "debezium.format.header.schemas.enable": "false",
    "debezium.sink.kafka.producer.linger.ms": "5",
    "debezium.sink.kafka.producer.batch.size": "1000000",
    "debezium.sink.kafka.producer.buffer.memory": "134217728",
}
POLL_10_MS = {"debezium.source.poll.interval.ms": "10"}


@dataclass
class Debezium:
    home: Path
    java: Path
    variant: str  # in words
    settings: dict[str, str]
    logical = True
    to_kafka = True
    insert = """
        INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
        SELECT 'order', key, type, payload::jsonb FROM (VALUES (%s, %s, %s)) event(key, type, payload)
        RETURNING position
    """

    @property
    def name(self) -> str:
        return f"Debezium Server {self.home.name.rpartition('-')[2]}, {self.variant}"

    def prepare(self, scene: Scene) -> None:
        sql(
            scene.url,
            """CREATE TABLE outbox (
                 id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
                 aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
                 type varchar(255) NOT NULL, payload jsonb NOT NULL,
                 position bigint GENERATED ALWAYS AS IDENTITY)""",
            "CREATE PUBLICATION benchmark FOR TABLE outbox",
            "SELECT pg_create_logical_replication_slot('benchmark', 'pgoutput')",
        )

    def fill(self, scene: Scene, events: int) -> range:
        sql(
            scene.url,
            "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
            f" SELECT 'order', 'order:' || (i % {KEYS}), 'OrderPaid', {PAYLOAD}"
            f" FROM generate_series(1, {events}) i",
            "VACUUM (ANALYZE) outbox",
        )
        return span(scene.url, "outbox", "position")

    def start(self, scene: Scene) -> "list[subprocess.Popen[bytes]]":
        (scene.directory / "config").mkdir()
        lines = [f"{name}={value}\n" for name, value in self._properties(scene).items()]
        (scene.directory / "config" / "application.properties").write_text("".join(lines))
        server = self.home / "debezium-server"
        (runner,) = server.glob("debezium-server-*runner.jar")
        path = f"{runner}:{server}/config/lib:{server}/lib/*"
        # Quarkus asks for this on Java 24 and newer.
        opens = "--add-opens=java.base/java.lang=ALL-UNNAMED"
        return [scene.run([str(self.java), opens, "-cp", path, "io.debezium.server.Main"], "debezium")]

    def _properties(self, scene: Scene) -> dict[str, str]:
        return {
            "debezium.sink.type": "kafka",
            "debezium.sink.kafka.producer.bootstrap.servers": scene.kafka,
            "debezium.sink.kafka.producer.key.serializer": STRING,
            "debezium.sink.kafka.producer.value.serializer": STRING,
            "debezium.format.key": "simplestring",
            "debezium.format.value": "simplestring",
            "debezium.source.connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "debezium.source.offset.storage.file.filename": str(scene.directory / "offsets.dat"),
            "debezium.source.database.hostname": "127.0.0.1",
            "debezium.source.database.port": str(scene.server.port),
            "debezium.source.database.user": "postgres",
            "debezium.source.database.password": "unused",
            "debezium.source.database.dbname": "postgres",
            "debezium.source.topic.prefix": "benchmark",
            "debezium.source.plugin.name": "pgoutput",
            "debezium.source.slot.name": "benchmark",
            "debezium.source.publication.name": "benchmark",
            "debezium.source.publication.autocreate.mode": "disabled",
            "debezium.source.table.include.list": "public.outbox",
            "debezium.source.snapshot.mode": "no_data",
            "debezium.source.tombstones.on.delete": "false",
            "debezium.transforms": "outbox",
            "debezium.transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
            "debezium.transforms.outbox.route.topic.replacement": scene.topic,
            "debezium.transforms.outbox.table.fields.additional.placement": (
                "type:header:event_type,position:header:position"
            ),
            "quarkus.log.console.json": "false",
            "quarkus.http.port": "0",
            **self.settings,
        }
