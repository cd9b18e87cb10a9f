"""Processes that end with the one that started them.

On Linux that holds however it ends, SIGKILL included; elsewhere only where it still gets to end them.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from relay.errors import RelayError

# Runs in the child: takes on the uid, asks to die with the parent, becomes the server. A script
# rather than preexec_fn, which may deadlock in a process with threads. Once the uid has changed,
# it can import nothing: that user may not be able to read this Python's library.
_LAUNCHER = """
import ctypes, os, sys
uid, gid, death_signal, parent, *argv = sys.argv[1:]
if int(uid) >= 0:
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(death_signal))
    if os.getppid() != int(parent):
        sys.exit("the parent is gone")
os.execv(argv[0], argv)
"""


class ServerError(RelayError):
    """A server of our own could not be found, started or stopped."""


def launch(
    argv: Sequence[str],
    log: IO[bytes],
    *,
    account: pwd.struct_passwd | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that Linux signals when the calling thread ends."""
    uid, gid = (account.pw_uid, account.pw_gid) if account else (-1, -1)
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER]
    program = shutil.which(argv[0])
    if program is None:
        raise ServerError(f"The program {argv[0]} was not found.")
    arguments = [str(uid), str(gid), str(int(death_signal)), str(os.getpid()), program, *argv[1:]]
    return subprocess.Popen(
        [*launcher, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=None if env is None else dict(env),
        start_new_session=True,
    )


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
