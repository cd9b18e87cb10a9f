"""Relay processes under a supervisor that starts those anew that have ended."""

import json
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.system.relays import RelayProcess

STOP_SECONDS = 60.0


class Fleet(threading.Thread):
    """One relay per slot; `start_relay(slot)` starts one. The thread ends with the last relay."""

    def __init__(self, size: int, start_relay: Callable[[int], RelayProcess]) -> None:
        super().__init__(name="fleet", daemon=True)
        self.size = size
        self.ends: Counter[int] = Counter()  # by exit code
        self._start_relay = start_relay
        self._relays: list[RelayProcess] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def run(self) -> None:
        # Linux ends a relay together with the thread that started it: it is always this one.
        while not self._stopping.wait(0.05):
            with self._lock:
                for slot in range(self.size):
                    self._keep(slot)
        for relay in self._relays:
            relay.process.wait()

    def _keep(self, slot: int) -> None:
        if slot == len(self._relays):
            self._relays.append(self._start_relay(slot))
        elif (code := self._relays[slot].process.poll()) is not None:
            self.ends[code] += 1
            self._relays[slot] = self._start_relay(slot)

    def pick(self, dice: Random) -> RelayProcess:
        with self._lock:
            return dice.choice(self._relays)

    def pids(self) -> list[int]:
        with self._lock:
            return [relay.process.pid for relay in self._relays]

    def stop(self) -> list[int]:
        """Drain them all; their exit codes."""
        self._stopping.set()
        with self._lock:
            for relay in self._relays:
                relay.process.send_signal(signal.SIGTERM)
        return [relay.wait(STOP_SECONDS) for relay in self._relays]

    def kill(self) -> None:
        self._stopping.set()
        with self._lock:
            for relay in self._relays:
                relay.kill()
        self.join()


def worker_ends(directory: Path) -> dict[str, str]:
    """By worker id: what its relay said when that registration ended."""
    said = (re.match(r"worker (\S+) ends: (.*)", record["message"]) for record in log_records(directory))
    return {match[1]: match[2] for match in said if match}


def tracebacks(directory: Path) -> list[str]:
    """The last line of each traceback that a relay has logged or died of."""
    logged = [
        record["traceback"].splitlines()[-1] for record in log_records(directory) if "traceback" in record
    ]
    raw = [log for log in directory.glob("relay-*.err") if "\nTraceback" in f"\n{log.read_text()}"]
    return logged + [f"{log.name}: {log.read_text().splitlines()[-1]}" for log in raw]


def log_records(directory: Path) -> Iterator[dict[str, Any]]:
    for log in directory.glob("relay-*.err"):
        for line in log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)
