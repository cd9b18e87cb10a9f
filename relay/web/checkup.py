"""The doctor's findings for the pages: one examination at a time, remembered for a while."""

import threading
from collections.abc import Callable, Sequence
from time import monotonic, time
from typing import Any

from relay.doctor import Finding

STALE_SECONDS = 60.0
SOONEST_SECONDS = 5.0


class Checkup:
    def __init__(self, examine: Callable[[], Sequence[Finding]]) -> None:
        self._examine = examine
        self._lock = threading.Lock()
        self._findings: Sequence[Finding] | None = None
        self._trouble: str | None = None
        self._running = False
        self._at = 0.0
        self._ended = 0.0

    def state(self, *, again: bool = False) -> dict[str, Any]:
        """What was found last; looks again in the background where that is old, or if asked to."""
        with self._lock:
            age = monotonic() - self._ended if self._ended else STALE_SECONDS
            if not self._running and age >= (SOONEST_SECONDS if again else STALE_SECONDS):
                self._running = True
                threading.Thread(target=self._run, name="relay-pages-doctor", daemon=True).start()
            findings = [
                {
                    "family": f.family,
                    "severity": f.severity,
                    "what": f.what,
                    "why": f.why,
                    "fix": f.fix,
                    "fine": f.fine,
                }
                for f in self._findings or ()
            ]
            return {
                "running": self._running,
                "known": self._findings is not None,
                "at": self._at,
                "trouble": self._trouble,
                "findings": findings,
            }

    def _run(self) -> None:
        findings, trouble = self._findings, None
        try:
            findings = self._examine()
        except Exception as error:  # noqa: BLE001 - told on the page
            trouble = f"the examination broke off: {str(error).strip() or type(error).__name__}"
        with self._lock:
            self._findings, self._trouble = findings, trouble
            self._running, self._at, self._ended = False, time(), monotonic()
