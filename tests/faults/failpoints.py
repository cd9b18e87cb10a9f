"""Places in a relay where it can be made to die, freeze or dawdle, once, by a file.

`Failpoints(directory)` is used from both sides. A fault arms a step; the first relay that comes to it takes
the file away, says so in a log, and suffers. Without a file a step costs a few failed opens.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

Step: TypeAlias = Literal[
    "in the middle of a claim",
    "after a claim",
    "after publishing",
    "before a settle",
    "in the middle of a settle",
    "after a settle",
    "in the middle of a reap",
]
Action: TypeAlias = Literal["kill", "freeze", "dawdle"]
STEPS: tuple[Step, ...] = get_args(Step)
ACTIONS: tuple[Action, ...] = get_args(Action)


class Suffered(NamedTuple):
    pid: int
    step: str
    action: str


class Failpoints:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "log"

    def arm(self, step: Step, action: Action, seconds: float) -> None:
        """The next to come here is killed, frozen until somebody wakes it, or its thread dawdles so long."""
        draft = self._directory / "draft"
        draft.write_text(str(seconds))
        draft.rename(self._path(step, action))

    def disarm(self) -> None:
        for step in STEPS:
            for action in ACTIONS:
                self._path(step, action).unlink(missing_ok=True)

    def armed(self, step: Step) -> bool:
        return any(self._path(step, action).exists() for action in ACTIONS)

    def suffered(self) -> list[Suffered]:
        text = self._log.read_text() if self._log.exists() else ""
        return [Suffered(*json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def hit(self, step: Step) -> None:
        """Called by a relay that has come to this step."""
        for action, seconds in self._taken(step):
            with self._log.open("a") as log:
                log.write(json.dumps(Suffered(os.getpid(), step, action)) + "\n")
            match action:
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "freeze":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "dawdle":
                    time.sleep(seconds)

    def _taken(self, step: Step) -> Iterator[tuple[Action, float]]:
        for action in ACTIONS:
            path = self._path(step, action)
            try:
                seconds = float(path.read_text())
                path.unlink()
            except FileNotFoundError:
                continue
            yield action, seconds

    def _path(self, step: Step, action: Action) -> Path:
        return self._directory / f"{step.replace(' ', '-')}.{action}"
