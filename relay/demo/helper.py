"""A process beside the demo: it is the built-in broker, and it tidies up.

It lives until its standard input closes, which happens however the demo ends, SIGKILL included. Then the
broker is gone, and so is the directory in which the demo kept everything.

The broker is librdkafka's mock cluster: one broker on a free port of 127.0.0.1 with topics of four
partitions, for any client that knows the address. It keeps 5 MB of each partition, all of it in memory.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from confluent_kafka import Producer

from relay.demo.processes import ServerError

STOP_SECONDS = 5.0
TIDY_SECONDS = 10.0
BROKER_SECONDS = 15.0


class Helper:
    """The demo's end: starts the process, knows the broker's address, closes the pipe."""

    def __init__(self, directory: Path, topic: str | None) -> None:
        """With a topic the process is also a broker that has this topic."""
        self._log = directory / "broker.log"
        argv = [sys.executable, "-m", __spec__.name, str(directory), *([topic] if topic else [])]
        with self._log.open("wb") as log:
            # A session of its own: it has to outlive a Ctrl-C that reaches the whole terminal.
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        self._topic = topic

    def bootstrap_servers(self) -> str:
        """Where the broker listens; waits until it does."""
        assert self._topic
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise ServerError(f"the built-in broker did not start:\n{self._log.read_text()[-2000:]}")
        return str(json.loads(line))

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _broker(topic: str) -> object:
    """Start the broker and say where; it lives as long as what is returned."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 3})
    broker = next(iter(producer.list_topics(timeout=BROKER_SECONDS).brokers.values()))
    producer.list_topics(topic, timeout=BROKER_SECONDS)  # being asked for it is what makes it
    sys.stdout.write(json.dumps(f"{broker.host}:{broker.port}") + "\n")
    sys.stdout.flush()
    return producer


def _remove(directory: Path) -> None:
    """Remove the directory; servers that are just being killed may still write to it for a moment."""
    deadline = time.monotonic() + TIDY_SECONDS
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.02)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    directory, *topics = sys.argv[1:]
    try:
        _kept = [_broker(topic) for topic in topics]
        sys.stdin.read()
    finally:
        _remove(Path(directory))
    os._exit(0)  # not by way of the client's destructor, which takes its time


if __name__ == "__main__":
    main()
