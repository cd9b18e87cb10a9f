"""`relay demo` as users run it: it ends by itself, tells the truth, and leaves nothing behind."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import Kafka

MARK = "DEMO_TEST_MARK"
ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

pytestmark = pytest.mark.slow


@dataclass
class Surroundings:
    """Who runs the demo, by which command, and where it may leave things behind."""

    directory: Path
    command: list[str] = field(default_factory=lambda: [sys.executable, "-m", "relay"])
    env: dict[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @contextmanager
    def demo(self, *arguments: str) -> Iterator["Demo"]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        env |= {"TMPDIR": str(self.directory), MARK: self.mark, "NO_COLOR": "1"} | self.env
        with (
            tempfile.TemporaryFile() as progress,
            subprocess.Popen(
                [*self.command, "demo", "--json", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=progress,
                env=env,
                cwd="/",
            ) as process,
        ):
            try:
                yield Demo(process, progress)
            finally:
                process.kill()

    def processes(self) -> list[str]:
        """What still runs of this demo, which handed its environment down to all that it started."""
        return [words for process in psutil.process_iter() if (words := self._words_if_ours(process))]

    def _words_if_ours(self, process: psutil.Process) -> str | None:
        """One that ends while it is looked at is none any more."""
        try:
            return " ".join(process.cmdline()) if process.environ().get(MARK) == self.mark else None
        except psutil.Error:
            return None

    def expect_nothing_left(self) -> None:
        eventually(lambda: not self.processes(), lambda: f"still running: {self.processes()}")
        eventually(lambda: not list(self.directory.iterdir()), lambda: str(list(self.directory.iterdir())))


@dataclass
class Demo:
    process: subprocess.Popen[bytes]
    _progress: IO[bytes]

    def progress(self) -> str:
        return os.pread(self._progress.fileno(), 1_000_000, 0).decode()

    def wait_for_line(self, text: str) -> None:
        eventually(lambda: text in self.progress() or self.process.poll() is not None, self.progress)
        assert text in self.progress()

    def result(self) -> tuple[int, Any]:
        """The exit code, and the one object on standard output."""
        output, _ = self.process.communicate(timeout=PATIENCE * 2)
        return self.process.returncode, json.loads(output) if output else None

    def object_while_running(self) -> Any:
        assert self.process.stdout
        text = ""
        for line in self.process.stdout:
            text += line.decode()
            if line == b"}\n":
                return json.loads(text)
        pytest.fail(f"no object came:\n{self.progress()}")


def eventually(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(told())
        time.sleep(0.02)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for temporary files that any user may enter, as /tmp is: pytest's own are private."""
    path = Path(tempfile.mkdtemp(prefix="demo-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def surroundings(directory: Path) -> Surroundings:
    return Surroundings(directory)


@pytest.fixture
def unprivileged(directory: Path) -> Iterator[Surroundings]:
    """The demo run by nobody where root runs the tests; else by whoever runs them, who is unprivileged."""
    if os.geteuid() != 0:
        yield Surroundings(directory)
        return
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    become = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "--"]
    with tempfile.TemporaryDirectory(prefix="demo-test-python-") as copies:
        python, env = _python_for_others(Path(copies))
        yield Surroundings(directory, [*become, str(python), "-m", "relay"], env | {"HOME": str(directory)})


def _python_for_others(to: Path) -> tuple[Path, dict[str, str]]:
    """A copy of this Python and of what it imports: root's own may lie where nobody else may read."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    base = Path(sys.base_prefix)
    to.chmod(0o755)
    (to / "bin").mkdir()
    (to / "lib").mkdir()
    python = to / "bin" / version
    shutil.copy(Path(sys.executable).resolve(), python)
    for library in (base / "lib").glob("libpython*.so*"):
        shutil.copy(library, to / "lib")
    unneeded = shutil.ignore_patterns("test", "__pycache__", "site-packages", "idlelib", "config-*")
    shutil.copytree(base / "lib" / version, to / "lib" / version, ignore=unneeded)
    packages = Path(psycopg.__file__).parents[1]
    heavy = shutil.ignore_patterns(
        "__pycache__", "mypy", "mypyc", "ruff*", "django", "pip", "sqlalchemy", "*.pth"
    )
    shutil.copytree(packages, to / "packages", ignore=heavy)
    for name in ("relay", "publishers", "schema"):
        shutil.copytree(ROOT / name, to / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join([str(to / "source"), str(to / "packages")])
    return python, {"PYTHONHOME": str(to), "PYTHONPATH": path, "LD_LIBRARY_PATH": str(to / "lib")}


def expect_clean(outcome: tuple[int, Any], demo: Demo) -> dict[str, Any]:
    code, report = outcome
    assert code == 0, demo.progress()
    verdict, kill = report["verdict"], report["kill"]
    assert verdict["clean"] is True
    assert verdict["delivered"] == verdict["emitted"] > 0
    assert verdict["rolled_back"] > 0
    assert kill["in_hand"] > 0, "the relay was killed while it had nothing in hand"
    assert kill["taken_over"] == kill["in_hand"]
    assert report["published_by"]["relay 1"] > 0
    return dict(report)


def test_a_relay_dies_with_events_in_hand_and_nothing_is_lost_reordered_or_applied_twice(
    surroundings: Surroundings,
) -> None:
    with surroundings.demo("--seconds", "8") as demo:
        report = expect_clean(demo.result(), demo)
        assert report["published_by"]["relay 3"] > 0, "the replacement published nothing"
        assert "SIGKILL      relay 1" in demo.progress()
        assert "\x1b" not in demo.progress()
        surroundings.expect_nothing_left()


# A relay that says Delivered of events that it drops, and publishes each batch from its end.
FALSE_RELAY = """
import random, sys
from publishers.kafka import KafkaPublisher
from relay.cli import main
from relay.outcome import Delivered

honest = KafkaPublisher.publish

def publish(self, events, deadline):
    honest(self, [event for event in reversed(events) if random.random() > 0.05], deadline)
    return [Delivered()] * len(events)

KafkaPublisher.publish = publish
main()
"""
DEMO_OF_FALSE_RELAYS = """
import sys
from relay.cli import main
from relay.demo import relays

relays.COMMAND[:] = [sys.executable, {!r}, "run"]
main()
"""


def test_relays_that_lose_and_reorder_are_found_out(surroundings: Surroundings, tmp_path: Path) -> None:
    (tmp_path / "relay_run.py").write_text(FALSE_RELAY)
    (tmp_path / "demo.py").write_text(DEMO_OF_FALSE_RELAYS.format(str(tmp_path / "relay_run.py")))
    surroundings.command = [sys.executable, str(tmp_path / "demo.py")]
    with surroundings.demo("--seconds", "4", "--rate", "2000") as demo:
        code, report = demo.result()
        assert code == 1, demo.progress()
        assert report["verdict"]["clean"] is False
        assert report["verdict"]["lost"] > 0
        assert report["verdict"]["out_of_order"] > 0
        surroundings.expect_nothing_left()


def test_an_unprivileged_user_needs_nothing_more(unprivileged: Surroundings) -> None:
    with unprivileged.demo("--seconds", "4") as demo:
        expect_clean(demo.result(), demo)
        unprivileged.expect_nothing_left()


@pytest.mark.parametrize(
    "moment, number",
    [
        ("Kafka ", signal.SIGINT),  # PostgreSQL is being made
        ("PostgreSQL ", signal.SIGHUP),  # the relays are starting
        ("orders ", signal.SIGTERM),
        ("SIGKILL ", signal.SIGINT),
    ],
)
def test_a_signal_at_any_moment_leaves_nothing_behind(
    surroundings: Surroundings, moment: str, number: signal.Signals
) -> None:
    with surroundings.demo("--seconds", "5") as demo:
        demo.wait_for_line(moment)
        demo.process.send_signal(number)
        assert demo.result() == (128 + number, None)
        assert "Traceback" not in demo.progress()
        surroundings.expect_nothing_left()


def test_an_impatient_user_leaves_nothing_behind_either(surroundings: Surroundings) -> None:
    with surroundings.demo() as demo:
        demo.wait_for_line("orders ")
        demo.process.send_signal(signal.SIGINT)
        demo.process.send_signal(signal.SIGTERM)
        demo.process.send_signal(signal.SIGINT)
        assert demo.result() == (130, None)
        surroundings.expect_nothing_left()


@pytest.mark.parametrize("moment", ["Kafka ", "orders "])
def test_a_demo_that_is_killed_takes_everything_with_it(surroundings: Surroundings, moment: str) -> None:
    with surroundings.demo() as demo:
        demo.wait_for_line(moment)
        demo.process.kill()
        surroundings.expect_nothing_left()


def test_what_is_kept_works_until_it_is_interrupted(surroundings: Surroundings) -> None:
    with surroundings.demo("--seconds", "4", "--events", "300", "--keep") as demo:
        report = demo.object_while_running()
        addresses = report["addresses"]
        with urllib.request.urlopen(addresses["relay 3"]) as metrics:
            assert b"relay_" in metrics.read()
        with psycopg.connect(addresses["database_url"], autocommit=True) as conn:
            conn.execute(
                "INSERT INTO outbox (partition_key, event_type, payload, idempotency_key)"
                " VALUES ('order:9182', 'OrderPaid', '{\"order_id\": 9182}', 'by-hand')"
            )
            applied = "SELECT FROM inbox_dedupe WHERE event_id = 'by-hand'"
            eventually(lambda: conn.execute(applied).fetchone() is not None, demo.progress)
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(PATIENCE) == 0
        surroundings.expect_nothing_left()


@pytest.mark.server
def test_servers_of_the_user_are_left_as_they_were(
    surroundings: Surroundings, database: str, kafka: Kafka
) -> None:
    def schemas() -> list[tuple[Any, ...]]:
        with psycopg.connect(database) as conn:
            return conn.execute("SELECT nspname, (SELECT count(*) FROM outbox) FROM pg_namespace").fetchall()

    before = schemas()
    with surroundings.demo("--seconds", "4", "--database-url", database, "--kafka", kafka.address) as demo:
        report = expect_clean(demo.result(), demo)
        surroundings.expect_nothing_left()
    assert schemas() == before
    admin = AdminClient({"bootstrap.servers": kafka.address})
    topic = report["addresses"]["topic"]
    assert topic.startswith("outbox-relay-demo-")
    eventually(lambda: topic not in admin.list_topics(timeout=10).topics, lambda: f"{topic} is still there")


@pytest.mark.parametrize(
    "flag, value, told",
    [
        ("--kafka", "127.0.0.1:1", "error: cannot create the topic"),
        ("--database-url", "postgresql://u:hush@127.0.0.1:1/x", "error: cannot connect to the database"),
    ],
)
def test_a_server_that_is_not_there_is_a_sentence(
    surroundings: Surroundings, flag: str, value: str, told: str
) -> None:
    with surroundings.demo(flag, value) as demo:
        assert demo.result() == (1, None)
        assert told in demo.progress()
        assert "Traceback" not in demo.progress()
        assert "hush" not in demo.progress()
        surroundings.expect_nothing_left()
