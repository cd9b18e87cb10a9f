"""Where the connection leads, and what stands in between.

A pooler makes up the process id that it announces, so it is recognised by that. Its mode is seen by what two
clients of it meet: in session mode each keeps a server session of its own.
"""

from contextlib import closing

import psycopg

from relay.doctor.finding import Finding
from relay.doctor.patient import reach
from relay.settings import Settings
from relay.store.connection import StoreConnection

FAMILY = "database"
DIRECT = "export RELAY_DATABASE_URL=postgresql://user@database-host:5432/database"


def check(settings: Settings, conn: StoreConnection) -> list[Finding]:
    info = conn.info
    version = ".".join(str(part) for part in divmod(info.server_version, 10000))
    where = f"PostgreSQL {version} at {info.host}:{info.port}, database {info.dbname}, as {info.user}"
    if not conn.pooled:
        return [Finding(FAMILY, "info", f"{where}; no pooler in between")]
    match _mode(settings, conn):
        case "statement":
            return [
                Finding(
                    FAMILY,
                    "error",
                    f"{where}; a pooler in statement mode stands in between",
                    "a claim is a transaction of two statements: the relay cannot work through it",
                    DIRECT,
                )
            ]
        case "session":
            what = f"{where}; a pooler in session mode stands in between"
            why = (
                "each relay occupies four of its sessions for as long as it runs. It cannot know"
                " that its session"
                " is its own: it polls instead of listening, and a killed relay is noticed after"
                " stale_seconds"
                f" ({settings.stale_seconds:g} s) instead of at once"
            )
        case _:
            what = f"{where}; a pooler in transaction mode stands in between"
            why = (
                "the relay works through it, with two differences: it polls instead of listening (up"
                " to 250 ms of"
                f" delay), and a killed relay is noticed after stale_seconds ({settings.stale_seconds:g} s)"
                " instead of at once"
            )
    return [Finding(FAMILY, "info", what, why, DIRECT)]


def _mode(settings: Settings, conn: StoreConnection) -> str:
    try:
        with closing(reach(settings)) as other:
            seen: dict[StoreConnection, set[int]] = {conn: set(), other: set()}
            # No rhythm that a pooler which takes its sessions in turn could follow.
            for client in (conn, other, other, conn, conn, conn, other, conn):
                seen[client].add(_session(client))
    except psycopg.errors.ProtocolViolation:
        return "statement"
    shared = seen[conn] & seen[other]
    return "transaction" if shared or any(len(pids) > 1 for pids in seen.values()) else "session"


def _session(conn: StoreConnection) -> int:
    with conn.transaction():
        row = conn.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        return int(row[0])
