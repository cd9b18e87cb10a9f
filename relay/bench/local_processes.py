"""Servers that run on this machine: which process they are, and how much CPU they have used.

Reads /proc; elsewhere, and for servers of other machines, everything here answers None.
"""

import socket
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_TICKS = 100.0  # USER_HZ: fixed at 100 for what /proc shows
_LISTENING = "0A"


class Stat(NamedTuple):
    name: str
    parent: int
    cpu: float  # seconds
    ended: float  # of children that have ended and were waited for


def read_stat(pid: int) -> Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    user, system, ended_user, ended_system = (int(field) for field in fields[11:15])
    return Stat(name, int(fields[1]), (user + system) / _TICKS, (ended_user + ended_system) / _TICKS)


def family_cpu(leader: int | None) -> float | None:
    """CPU seconds of a process, of its children, and of those of them that have ended."""
    if leader is None:
        return None
    total = 0.0
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        stat = read_stat(int(entry.name))
        if stat is not None and int(entry.name) == leader:
            total += stat.cpu + stat.ended
        elif stat is not None and stat.parent == leader:
            total += stat.cpu
    return total


def peak_rss(pid: int | str = "self") -> int | None:
    """Bytes. Not getrusage: its maximum includes that of the process that started this one."""
    try:
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def local_postmaster(backend_pid: int, host: str | None) -> int | None:
    """The parent of our backend, if the server is on this machine."""
    stat = read_stat(backend_pid) if _is_here(host) else None
    return stat.parent if stat and stat.name.startswith("postgres") else None


def listening_process(host: str, port: int) -> int | None:
    """The process that listens there, if it is one of this machine's that we may look at."""
    inodes = _listening_inodes(port) if _is_here(host) else set()
    if not inodes:
        return None
    for entry in PROC.iterdir():
        if entry.name.isdigit() and _holds(entry, inodes):
            stat = read_stat(int(entry.name))
            return int(entry.name) if stat and stat.name != "docker-proxy" else None
    return None


def _is_here(host: str | None) -> bool:
    if not host or host.startswith("/"):
        return True
    try:
        for family, kind, number, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, number) as probe:
                probe.bind(address)
                return True
    except OSError:
        return False
    return False


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(str(entry.readlink()) in inodes for entry in (process / "fd").iterdir())
    except OSError:
        return False
