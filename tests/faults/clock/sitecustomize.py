"""Shows another time of day to a Python process that finds this on its path: off by $FAULTS_CLOCK seconds.

Only the monotonic clock is as it was. (libfaketime would show it to librdkafka too, but not to the function
by which librdkafka waits: it then waits for ever, or not at all.)
"""

import datetime as dt
import os
import time
from typing import Self

OFF = float(os.environ["FAULTS_CLOCK"])

_time, _time_ns = time.time, time.time_ns


class ShiftedDatetime(dt.datetime):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Self:
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def today(cls) -> Self:
        return cls.now()

    @classmethod
    def utcnow(cls) -> Self:
        return cls.now(dt.UTC).replace(tzinfo=None)


time.time = lambda: _time() + OFF
time.time_ns = lambda: _time_ns() + int(OFF * 1e9)
dt.datetime = ShiftedDatetime  # type: ignore[misc]
