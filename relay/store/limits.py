"""Time limits for those who look: what takes too long is given up, and said to have been."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import Connection

from relay.errors import RelayError
from relay.store.connection import transaction


class TooSlow(RelayError):
    """A look that was given up after its time; the text says what to do instead."""


@contextmanager
def limited(
    conn: Connection[Any],
    seconds: float,
    what: str,
    remedy: str,
    *,
    seqscan: bool = False,
    bitmap: bool = False,
) -> Iterator[None]:
    """A transaction each of whose statements may take so long."""
    try:
        with transaction(conn):
            conn.execute(
                "SELECT set_config('statement_timeout', %s, true), set_config('enable_seqscan', %s, true),"
                " set_config('enable_bitmapscan', %s, true)",
                [f"{max(seconds, 0.001) * 1000:.0f}ms", _switch(seqscan), _switch(bitmap)],
            )
            yield
    except psycopg.errors.QueryCanceled as error:
        raise TooSlow(f"{what} took longer than {seconds:g} s and was given up: {remedy}") from error


def _switch(on: bool) -> str:
    return "on" if on else "off"
