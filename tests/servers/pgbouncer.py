"""PgBouncer for tests: the distribution's, in transaction mode unless asked, in front of one database.

Few sessions that take turns (`server_round_robin`), so that hardly two transactions of a client in a row
meet the same one: whoever relies on a session is found out.
"""

import os
import shutil
from collections.abc import Sequence
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from relay.demo.postgres import ServerError, free_port, unprivileged_account
from tests.servers.process import ServerProcess, accepts_connections

SESSIONS = 4

SETTINGS = """\
[databases]
* = {target}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {sessions}
min_pool_size = {sessions}
max_client_conn = 200
server_round_robin = 1
"""


class PgBouncer(ServerProcess):
    name = "pgbouncer"

    def __init__(self, database: str, mode: str = "transaction") -> None:
        program = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
        if program is None:
            raise ServerError("PgBouncer is not installed: make servers.")
        super().__init__()
        self.account = unprivileged_account()
        self.port = free_port()
        self._program = program
        self._database = database
        self._mode = mode

    @property
    def url(self) -> str:
        return urlsplit(self._database)._replace(netloc=f"postgres@127.0.0.1:{self.port}").geturl()

    def _prepare(self) -> None:
        target = conninfo_to_dict(self._database)
        target.pop("dbname", None)
        settings = self.home / "pgbouncer.ini"
        settings.write_text(
            SETTINGS.format(
                target=make_conninfo("", **target), port=self.port, sessions=SESSIONS, mode=self._mode
            )
        )
        if self.account is not None:
            for path in (self.home, settings):
                os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def _argv(self) -> Sequence[str]:
        return [self._program, str(self.home / "pgbouncer.ini")]

    def _answers(self) -> bool:
        if not accepts_connections(self.port):
            return False
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True
