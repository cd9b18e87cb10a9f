"""The relays of the demo: processes of their own, as they would run in production."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from relay.demo.database import Database
from relay.demo.processes import ServerError, free_port, launch

COMMAND = [sys.executable, "-m", "relay", "run"]
STOP_SECONDS = 10.0
LAST_WORDS = 2000  # characters of a log that are worth showing

# Short, so that what a killed relay held comes back while one watches.
TIMES = {
    "RELAY_LEASE_SECONDS": "15",
    "RELAY_HEARTBEAT_SECONDS": "1",
    "RELAY_STALE_SECONDS": "5",
    "RELAY_GRACE_SECONDS": "8",
}


class RelayProcess:
    """One `relay run`; ends with the demo."""

    def __init__(self, number: int, database: Database, servers: str, topic: str, directory: Path) -> None:
        self.name = f"relay {number}"
        self.http = f"127.0.0.1:{free_port()}"
        self.log = directory / f"relay-{number}.log"
        # Only what is said here, not what the user's own relay is told.
        env = {name: value for name, value in os.environ.items() if not name.upper().startswith("RELAY_")}
        env |= TIMES | {
            "RELAY_DATABASE_URL": database.url,
            "RELAY_TABLE": str(database.outbox),
            "RELAY_PUBLISHER": "kafka",
            "RELAY_DESTINATION": topic,
            "RELAY_KAFKA__BOOTSTRAP_SERVERS": servers,
            "RELAY_HTTP": self.http,
        }
        with self.log.open("wb") as log:
            self._process = launch(COMMAND, log, cwd=directory, env=env)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def require_running(self) -> None:
        if (code := self._process.poll()) is not None:
            words = self.log.read_text(errors="replace")[-LAST_WORDS:]
            raise ServerError(f"{self.name} ended by itself with exit code {code}:\n{words}")

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        self._process.terminate()

    def wait(self) -> int:
        """The exit code of a relay that was asked to stop; it is killed if it takes too long."""
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(
                f"{self.name} did not stop within {STOP_SECONDS:.0f} s and was killed"
            ) from None
