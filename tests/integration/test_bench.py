"""`relay bench` on real servers: its figures are complete, its check finds what is wrong, nothing stays."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from confluent_kafka import Producer
from pydantic import SecretStr

from benchmarks.topic import Topic
from relay.bench.checker import Found, check
from relay.bench.journal import Journal, read_journal
from relay.bench.raw_loop import raw_loop
from relay.settings import Settings
from relay.store.claim import Claiming
from relay.store.look import Look
from relay.store.settle import Settling
from tests.conftest import Kafka
from tests.integration.cli_kit import failure, nowhere, relay
from tests.integration.store_kit import Stage
from tests.system.relays import wait_until

__all__ = ["nowhere"]

SMALL = ("--events", "2000", "--keys", "200", "--rate", "100", "--seconds", "2", "--json")
FIGURE = {
    "name": str,
    "workers": int,
    "events": int,
    "seconds": float,
    "events_per_second": int,
    "ratio_of_raw_loop": float | None,
    "ratio_of_client": float | None,
    "ratio_of_plain": float | None,
    "relay_cpu_us_per_event": float,
    "database_cpu_us_per_event": float | None,
    "broker_cpu_us_per_event": float | None,
    "wal_bytes_per_event": int,
    "dead_tuples_per_event": float,
    "hot_update_share": float | None,
    "peak_rss_mib": float | None,
    "other_processes_cpu_share": float | None,
    "course": list,
}
STEADY = {
    "rate": float,
    "seconds": float,
    "warm_up_seconds": float,
    "events": int,
    "events_per_second": float,
    "commit_to_confirm_ms": dict,
    "insert_to_confirm_ms": dict,
    "histogram_ms": list,
    "over_time": list,
}


def bench(database: str, *arguments: str, **environment: str) -> dict[str, Any]:
    done = relay("bench", "--database-url", database, *SMALL, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def schemas(database: str) -> list[str]:
    with psycopg.connect(database) as conn:
        rows = conn.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'relay_bench%'").fetchall()
    return [row[0] for row in rows]


def of_form(value: dict[str, Any], form: dict[str, Any]) -> None:
    for name, kind in form.items():
        assert isinstance(value[name], kind), (name, value[name])


def test_figures_ceilings_and_checks_are_complete_without_a_broker(nowhere: Path, database: str) -> None:
    result = bench(database, "--publisher", "memory", "--completion", "delete", "--poison-backlog", "50")
    names = [figure["name"] for figure in result["figures"]]
    assert names[:3] == ["raw claim-and-settle loop", "relay, no broker", "relay to memory"]
    assert names[3].endswith("50 events behind a poisoned one")
    for figure in result["figures"]:
        of_form(figure, FIGURE)
        assert figure["events"] == 2000
        assert figure["dead_tuples_per_event"] >= 1
    assert [figure["ratio_of_raw_loop"] is None for figure in result["figures"]] == [
        True,
        False,
        False,
        False,
    ]
    assert result["figures"][3]["ratio_of_plain"] > 0
    of_form(result["steady"], STEADY)
    assert result["steady"]["commit_to_confirm_ms"].keys() == {"p50", "p99", "p99_9", "max"}
    assert len(result["steady"]["over_time"]) > 0
    of_form(result["steady"]["over_time"][0], {"table_bytes": int, "index_bytes": int})
    assert result["client"] is None
    assert [check["lost"] for check in result["checks"]] == [0, 0, 0, 0]
    assert [check["inverted"] for check in result["checks"]] == [0, 0, 0, 0]
    assert result["checks"][2]["left"] == 51
    assert result["clean"] is True
    assert schemas(database) == []


def test_the_raw_loop_claims_by_two_sessions_and_leaves_nothing_behind(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        stage.insert(f"order:{number}", 20)
    # Of one key a claim at a time: the lap in which the last of it is in flight is in vain.
    stage.insert("order:hot", 300)
    keys = {row["id"]: row["partition_key"] for row in stage.rows()}
    claimed: Counter[int] = Counter()
    claim = Claiming.claim

    def watched(claiming: Claiming, conn: Any, scan: Any, limits: Any) -> Look:
        look = claim(claiming, conn, scan, limits)
        claimed[conn.info.backend_pid] += look.claim is not None
        return look

    monkeypatch.setattr(Claiming, "claim", watched)
    journal = Journal(tmp_path / "journal")
    settings = Settings(database_url=SecretStr(stage.url), completion="delete", batch_size=10)
    raw_loop(settings, journal, 0, 1, None)
    journal.close()
    assert len(+claimed) == 2
    assert stage.rows() == []
    settled = [position for entry in read_journal(tmp_path / "journal") for position in entry.positions]
    verdict = check("raw", "the journal", keys, (), (Found(keys[each], each) for each in settled))
    assert (verdict.clean, verdict.duplicates) == (True, 0)


def test_a_raw_loop_whose_settler_fails_ends_with_what_happened(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.insert("order:1", 5)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Settling, "settle", broken)
    settings = Settings(database_url=SecretStr(stage.url), completion="delete")
    with (
        closing(Journal(tmp_path / "journal")) as journal,
        pytest.raises(ZeroDivisionError, match="a bug"),
    ):
        raw_loop(settings, journal, 0, 1, None)


def test_kafka_is_read_back_and_its_bare_client_is_a_ceiling(
    nowhere: Path, database: str, kafka: Kafka
) -> None:
    before = _topics(kafka)
    result = bench(
        database, "--publisher", "kafka", "--workers", "2", RELAY_KAFKA__BOOTSTRAP_SERVERS=kafka.address
    )
    of_form(result["client"], {"client_events_per_second": int, "publisher_events_per_second": int})
    of_form(result["client"], {"ratio": float, "ratio_of_free_running": float, "client_one_message_ms": dict})
    figure = result["figures"][-1]
    assert (figure["name"], figure["workers"], figure["events"]) == ("relay to kafka", 2, 2000)
    assert figure["ratio_of_raw_loop"] > 0
    assert figure["ratio_of_client"] > 0
    sources = {check["stage"]: (check["source"], check["found"]) for check in result["checks"]}
    assert sources["relay to kafka"] == ("the topic", 2000)
    assert result["clean"] is True
    assert {name for name in _topics(kafka) - before if name.startswith("relay-bench")} == set()


def test_the_topic_of_a_comparison_is_read_on_from_where_the_last_reading_ended(kafka: Kafka) -> None:
    topic = Topic(kafka.address, f"benchmark-{os.urandom(4).hex()}")
    producer = Producer({"bootstrap.servers": kafka.address})
    try:
        for last in (30, 50):
            for position in range(len(topic.read().found) + 1, last + 1):
                key, number = f"order:{position % 7}", str(position)
                producer.produce(topic.name, key=key, value=b"{}", headers=[("position", number)])
            producer.flush(20)
            topic.wait_for(last, 20, lambda: None)
            arrivals = topic.read()
            assert sorted(found.position for found in arrivals.found) == list(range(1, last + 1))
            assert len(arrivals.at) == last
    finally:
        topic.delete()


def test_rabbitmq_is_read_back_with_a_fair_and_a_free_running_ceiling(
    nowhere: Path, database: str, rabbitmq: str
) -> None:
    result = bench(database, "--publisher", "rabbitmq", "--seconds", "0", RELAY_RABBITMQ__URL=rabbitmq)
    assert result["client"]["client_events_per_second"] > 0
    assert result["client"]["client_free_running_events_per_second"] > 0
    sources = {check["stage"]: (check["source"], check["found"]) for check in result["checks"]}
    assert sources["relay to rabbitmq"] == ("the queue", 2000)
    assert result["clean"] is True


@pytest.mark.parametrize("publisher, lost, inverted", [("Losing", 2, False), ("Inverting", 0, True)])
def test_a_publisher_that_lies_about_deliveries_is_found_out(
    nowhere: Path, database: str, publisher: str, lost: int, inverted: bool
) -> None:
    name = f"tests.integration.bench_publishers:{publisher}"
    arguments = ("--publisher", name, "--seconds", "0", "--no-ceilings")
    done = relay("bench", "--database-url", database, *SMALL, *arguments)
    assert done.returncode == 1
    assert "lost or out of order" in done.stderr
    (check,) = json.loads(done.stdout)["checks"]
    assert check["lost"] == lost
    assert (check["inverted"] > 0) == inverted
    assert check["clean"] is False


def test_stdout_is_read_back_and_a_trial_is_compared_with_a_plain_drain(nowhere: Path, database: str) -> None:
    arguments = ("--publisher", "stdout", "--distribution", "hot", "--held-transaction", "--backlog", "4000")
    result = bench(database, *arguments, "--no-ceilings", "--completion", "archive", "--seconds", "0")
    plain, tried = result["figures"]
    assert plain["events"] == 2000
    assert tried["events"] >= 2000
    assert tried["ratio_of_plain"] > 0
    check = result["checks"][1]
    assert check["committed"] == 4000
    assert check["left"] == 4000 - check["found"]
    assert result["clean"] is True


def test_a_steady_load_beside_a_held_transaction_ends_with_a_backlog(nowhere: Path, database: str) -> None:
    arguments = ("--publisher", "memory", "--held-transaction", "--no-ceilings", "--completion", "delete")
    result = bench(database, *arguments)
    behind = result["steady"]["backlog_behind_it"]
    assert behind["events"] == 2000
    assert behind["ratio_of_plain"] > 0
    assert result["checks"][-1]["committed"] > 2000
    assert result["clean"] is True


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_nothing_behind(
    nowhere: Path, database: str, signal_number: signal.Signals
) -> None:
    arguments = ("--publisher", "memory", "--events", "2000", "--seconds", "300", "--no-ceilings")
    with subprocess.Popen(
        [sys.executable, "-m", "relay", "bench", "--database-url", database, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("steady load"):
                break
        wait_until(lambda: _steady_rows(database) > 0, what="the writer to write")
        # Ctrl-C as a terminal does it: to everyone in the group.
        os.killpg(process.pid, signal_number) if signal_number is signal.SIGINT else process.terminate()
        assert process.wait(60) == 130
        assert "Traceback" not in process.stderr.read()
    assert schemas(database) == []
    wait_until(lambda: _sessions(database) == 0, what="the bench's sessions to end")


def test_an_outbox_that_exists_is_left_alone(nowhere: Path, database: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("INSERT INTO outbox (partition_key, event_type, payload) VALUES ('a:1', 'A', '{}')")
    bench(database, "--publisher", "memory", "--seconds", "0", "--no-ceilings")
    with psycopg.connect(database) as conn:
        assert conn.execute("SELECT status, attempts FROM outbox").fetchall() == [("pending", 0)]


def test_a_broker_that_is_not_there_is_told_in_a_sentence(nowhere: Path, database: str) -> None:
    said = failure(
        relay(
            "bench",
            "--database-url",
            database,
            *SMALL,
            "--publisher",
            "kafka",
            RELAY_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1",
        )
    )
    assert said.startswith("Kafka at 127.0.0.1:1 does not answer")


def test_who_may_not_make_a_schema_is_told_what_to_grant(nowhere: Path, database: str) -> None:
    role = f"bench_{os.urandom(4).hex()}"
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {role} LOGIN".encode())
        try:
            url = urlsplit(database)
            mine = url._replace(netloc=f"{role}@{url.hostname}:{url.port}").geturl()
            said = failure(relay("bench", "--database-url", mine, "--publisher", "memory", *SMALL))
        finally:
            conn.execute(f"DROP ROLE {role}".encode())
    assert f'GRANT CREATE ON DATABASE "{url.path[1:]}" TO "{role}"' in said


def _topics(kafka: Kafka) -> set[str]:
    from confluent_kafka.admin import AdminClient

    return set(AdminClient({"bootstrap.servers": kafka.address}).list_topics(timeout=10).topics)


def _steady_rows(database: str) -> int:
    with psycopg.connect(database) as conn:
        for schema in schemas(database):
            row = conn.execute(f'SELECT coalesce(max(id), 0) FROM "{schema}".outbox'.encode()).fetchone()
            assert row is not None
            return int(row[0])
    return 0


def _sessions(database: str) -> int:
    with psycopg.connect(database) as conn:
        row = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE 'outbox-relay%'"
        ).fetchone()
    assert row is not None
    return int(row[0])
