"""What running relays say of themselves and of the outbox: over HTTP, and in a file."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.servers.proxy import TcpProxy
from tests.system.hanging import PUBLISHER
from tests.system.relays import RelayProcess, insert, statuses, wait_until

Start = Callable[..., RelayProcess]
# As the documentation has it.
READY = """test -n "$(find '{}' -mmin -1 -exec grep -l '"ready": true' {{}} \\;)" """
LIVE = """test -n "$(find '{}' -mmin -1 -exec grep -l '"live": true' {{}} \\;)" """


def address(relay: RelayProcess) -> str:
    wait_until(lambda: re.search(r"on http://([\d.:]+)", relay.log), what="it says where it listens")
    found = re.search(r"on (http://[\d.:]+)", relay.log)
    assert found is not None
    return found[1]


def get(relay: RelayProcess, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"{address(relay)}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(relay: RelayProcess) -> dict[str, float]:
    """Its series without labels."""
    families = text_string_to_metric_families(get(relay, "/metrics")[1])
    return {s.name: s.value for family in families for s in family.samples if not s.labels}


def says(relay: RelayProcess, path: str, text: str) -> Callable[[], bool]:
    return lambda: text in get(relay, path)[1]


def shell(command: str, path: Path) -> bool:
    return subprocess.run(["sh", "-c", command.format(path)], check=False).returncode == 0


@pytest.fixture
def hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HANGS", str(tmp_path / "hangs"))
    return tmp_path / "hangs"


def test_one_relay_speaks_for_the_outbox_and_another_when_it_freezes_or_dies(
    relay: Start, database: str
) -> None:
    relays = [relay(database) for _ in range(3)]

    def speakers(among: list[RelayProcess]) -> list[RelayProcess]:
        return [each for each in among if "relay_pending_events" in metrics(each)]

    wait_until(lambda: len(speakers(relays)) == 1, what="one speaks")
    (first,) = speakers(relays)
    wait_until(lambda: metrics(first)["relay_workers"] == 3, what="it sees all")
    assert [metrics(each)["relay_housekeeper"] for each in relays] == [float(r is first) for r in relays]
    assert sum(metrics(each)["relay_owned_buckets"] for each in relays) == 1024

    rest = [each for each in relays if each is not first]
    first.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: len(speakers(rest)) == 1, 30, "another speaks, long before the frozen one is stale")
    (second,) = speakers(rest)
    first.process.send_signal(signal.SIGCONT)
    assert "relay_pending_events" not in metrics(first), "what it knew before it froze"
    wait_until(lambda: metrics(second)["relay_workers"] == 3, what="the frozen one is not taken for dead")
    assert "relay_pending_events" not in metrics(first), "the post stays where it is"

    second.kill()
    alive = [each for each in relays if each is not second]
    wait_until(lambda: len(speakers(alive)) == 1, 30, "another speaks for the dead one")
    (third,) = speakers(alive)
    wait_until(lambda: metrics(third)["relay_workers"] == 2, what="it counts the living")
    insert(database, 10, 10)
    wait_until(lambda: statuses(database) == {"completed": 10}, what="they relay")


def test_a_publisher_that_hangs_is_seen_by_probes_metrics_and_in_the_file(
    relay: Start, database: str, hangs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "health"
    worker = relay(database, publisher=PUBLISHER, publish_seconds=1, health_file=file)
    wait_until(lambda: get(worker, "/readyz") == (200, "ready\n"), what="it is ready")
    wait_until(lambda: shell(READY, file), what="the file says so")
    assert metrics(worker)["relay_ready"] == 1
    hangs.touch()
    insert(database, 1, 1)
    wait_until(says(worker, "/readyz", "the publisher has not returned"), what="it is not ready")
    assert get(worker, "/readyz")[0] == 503
    assert get(worker, "/livez") == (200, "alive\n")
    found = metrics(worker)
    assert (found["relay_ready"], found["relay_publish_overdue_seconds"] > 3) == (0, True)
    wait_until(lambda: not shell(READY, file), what="the file says so, too")
    assert shell(LIVE, file)
    said = json.loads(file.read_text())
    assert "the publisher has not returned" in said["reason"]
    assert said["pid"] == worker.process.pid
    hangs.unlink()
    wait_until(lambda: get(worker, "/readyz")[0] == 200, what="it is ready again")
    assert metrics(worker)["relay_publish_overdue_seconds"] == 0


def test_a_relay_that_drains_is_alive_but_not_ready_and_leaves_no_file(
    relay: Start, database: str, hangs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "health"
    worker = relay(database, publisher=PUBLISHER, health_file=file)
    hangs.touch()
    insert(database, 1, 1)
    wait_until(lambda: statuses(database) == {"processing": 1}, what="it publishes")
    worker.terminate()
    wait_until(says(worker, "/readyz", "draining"), what="it drains")
    assert get(worker, "/readyz")[0] == 503
    assert get(worker, "/livez")[0] == 200
    wait_until(lambda: "draining" in file.read_text(), what="the file says so")
    hangs.unlink()
    assert worker.wait() == 0
    assert not file.exists()
    assert not shell(LIVE, file)


def test_a_database_that_falls_silent_is_told_by_readyz_while_livez_does_not_care(
    relay: Start, database: str, proxy: Callable[[str], TcpProxy]
) -> None:
    line = proxy(database)
    worker = relay(line.url(database), stale_seconds=20, heartbeat_seconds=5)
    wait_until(lambda: get(worker, "/readyz")[0] == 200, what="it is ready")
    line.stall()
    wait_until(says(worker, "/readyz", "the database has not answered for"), what="the silence is told")
    assert get(worker, "/livez") == (200, "alive\n")
    line.cut()
    wait_until(lambda: get(worker, "/readyz")[1] == "not connected to the database\n", what="it is cut off")
    assert get(worker, "/livez") == (200, "alive\n")
    assert "relay_pending_events" not in metrics(worker)
    assert metrics(worker)["relay_owned_buckets"] == 0


def test_a_health_file_that_cannot_be_written_ends_the_relay_with_a_sentence(
    relay: Start, database: str, tmp_path: Path
) -> None:
    worker = relay(database, health_file=tmp_path / "missing" / "health")
    assert worker.wait() == 2
    assert "health_file" in worker.log
    assert "Traceback" not in worker.log
