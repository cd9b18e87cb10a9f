"""How the store connects: with patience of its own, beside one another, and aware of a pooler's server."""

import socket
from collections.abc import Callable, Iterator

import psycopg
import pytest

from relay.errors import RelayError
from relay.store.connection import connect, hang_up, transaction


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_connection_gives_up_on_a_server_that_vanishes_unless_the_url_says_otherwise(database: str) -> None:
    with connect(f"{database}?keepalives_idle=7") as conn:
        given = conn.info.get_parameters()
        with socket.socket(fileno=conn.fileno()) as line:
            assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
            assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 7
            assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            line.detach()
    assert given["connect_timeout"] == "10"


def test_a_second_connection_goes_where_the_first_one_found_its_server(
    database: str, silent_port: int
) -> None:
    head, _, tail = database.partition("@")
    several = f"{head}@127.0.0.1:{silent_port},{tail}"
    with (
        connect(f"{several}?connect_timeout=2") as first,
        # Would wait for a minute if it asked the silent one first.
        connect(f"{several}?connect_timeout=60", beside=first) as second,
    ):
        assert (second.info.hostaddr, second.info.port) == (first.info.hostaddr, first.info.port)


def test_hanging_up_ends_what_waits_for_an_answer(database: str) -> None:
    with connect(database) as conn:
        hang_up(conn)
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")
    hang_up(conn)  # of one that is closed, nothing


def test_a_transaction_through_a_pooler_that_leads_elsewhere_now_is_refused(pgbouncer: str) -> None:
    with connect(pgbouncer) as conn:
        assert conn.pooled
        assert conn.timeline == 1
        with transaction(conn):
            assert conn.execute("SHOW enable_seqscan").fetchone() == ("off",)
        conn.timeline = 2
        with pytest.raises(RelayError, match="taken over"), transaction(conn):
            pass


@pytest.mark.parametrize("pooled", [False, True])
def test_commits_last_where_the_database_defaults_to_not_waiting_for_the_disk(
    database: str, pooler: Callable[[str], str], pooled: bool
) -> None:
    """Or a crash of the server would hand out the same generations again."""
    name = database.rpartition("/")[2]
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    through = pooler(database) if pooled else database
    with connect(through) as conn, transaction(conn):
        assert conn.execute("SHOW synchronous_commit").fetchone() == ("on",)
    with connect(through, synchronous_commit="off") as conn, transaction(conn):
        assert conn.execute("SHOW synchronous_commit").fetchone() == ("off",)


def test_a_stricter_default_of_the_database_stays(database: str) -> None:
    name = database.rpartition("/")[2]
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = remote_apply')
    with connect(database) as conn:
        assert conn.execute("SHOW synchronous_commit").fetchone() == ("remote_apply",)
