"""The answers of /livez and /readyz in a file, for machines that cannot ask over HTTP.

Written anew every few seconds, always whole, and removed when the relay ends: a file that is older than a
minute, or gone, says that the relay is not alive, whatever is in it. One file for each relay.
"""

import json
import logging
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

from relay.errors import SettingsError
from relay.probes import Probe

log = logging.getLogger(__name__)

WRITE_SECONDS = 2.0


class HealthFile:
    def __init__(self, path: Path | None, liveness: Probe, readiness: Probe) -> None:
        self._path = path
        self._liveness = liveness
        self._readiness = readiness
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = False

    def start(self) -> None:
        """Write it, and go on; SettingsError where it cannot be written."""
        if self._path is None:
            return
        try:
            self._write(self._path)
        except OSError as error:
            raise SettingsError(
                f"health_file = {self._path} cannot be written: {error.strerror};"
                " name a file in a directory that exists and is the relay's to write"
            ) from error
        self._thread = threading.Thread(target=self._run, args=[self._path], name="relay-health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Remove it: nobody is there any more."""
        if self._path is None or self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        self._path.unlink(missing_ok=True)

    def _run(self, path: Path) -> None:
        while not self._ended.wait(WRITE_SECONDS):
            try:
                self._write(path)
                self._failing = False
            except OSError as error:
                if not self._failing:
                    log.error("health_file = %s cannot be written: %s", path, error.strerror)
                self._failing = True

    def _write(self, path: Path) -> None:
        wrong, not_ready = self._liveness(), self._readiness()
        health = {
            "live": wrong is None,
            "ready": wrong is None and not_ready is None,
            "reason": wrong or not_ready,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "pid": os.getpid(),
        }
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(health) + "\n")
        draft.replace(path)
