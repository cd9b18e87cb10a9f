"""Ctrl-C, SIGTERM and SIGHUP as a wish to stop, heeded where nothing can be left behind.

The first signal is only remembered: `check` and `sleep` raise Interrupted. A second one interrupts at
once, for a user whose server does not answer; what is then left, the helper process tidies up.
"""

import signal
import time
from typing import Any, Self

from relay.errors import RelayError

NAP_SECONDS = 0.05


class Interrupted(RelayError):
    """The user wants it to end."""

    def __init__(self, number: int) -> None:
        super().__init__("the demo was interrupted: everything it had started has been ended")
        self.exit_code = 128 + number


class Interruption:
    def __init__(self) -> None:
        self._number: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has decided otherwise
                self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, _: Any) -> None:
        if self._number is not None:
            raise KeyboardInterrupt
        self._number = number

    def check(self) -> None:
        if self._number is not None:
            raise Interrupted(self._number)

    def sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check()
            # Python resumes a sleep that a signal interrupted, hence short ones.
            time.sleep(min(left, NAP_SECONDS))
        self.check()
