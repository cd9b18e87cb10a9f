"""What a stretch of work cost: wall time, and CPU of this process and of the database's local backends."""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS = 100.0  # USER_HZ: fixed at 100 for what /proc shows


@dataclass
class Cost:
    seconds: float = 0.0
    relay_cpu: float = 0.0
    database_cpu: float | None = None  # None: the database is not on this machine
    peak_rss_bytes: int = 0


@contextmanager
def measured(postmaster: int | None, settle: Callable[[], None]) -> Iterator[Cost]:
    """Filled in when the block ends. `postmaster`: the server's main process, if it runs here.

    `settle` waits, off the clock, until the server has accounted for its ended backends.
    """
    cost = Cost()
    database_before = _family_cpu(postmaster) if postmaster else None
    cpu_before = time.process_time()
    started = time.monotonic()
    yield cost
    cost.seconds = time.monotonic() - started
    cost.relay_cpu = time.process_time() - cpu_before
    cost.peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    settle()
    if postmaster is not None and database_before is not None:
        cost.database_cpu = _family_cpu(postmaster) - database_before


def local_postmaster(backend_pid: int) -> int | None:
    """The parent of our backend, if that process is on this machine and a postgres."""
    stat = _stat(backend_pid)
    return stat[1] if stat and stat[0].startswith("postgres") else None


def _family_cpu(postmaster: int) -> float:
    """CPU seconds of the postmaster, of its ended children, and of its living ones."""
    total = 0.0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        stat = _stat(int(entry.name))
        if stat is None:
            continue
        _, parent, own, ended = stat
        if int(entry.name) == postmaster:
            total += own + ended
        elif parent == postmaster:
            total += own
    return total


def _stat(pid: int) -> tuple[str, int, float, float] | None:
    """Name, parent, CPU seconds of the process, CPU seconds of its ended children."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    user, system, ended_user, ended_system = (int(field) for field in fields[11:15])
    return name, int(fields[1]), (user + system) / _TICKS, (ended_user + ended_system) / _TICKS
