"""Sleeping until something was inserted, without making writers pay for it.

A sleeping relay raises a flag that lasts a moment; the trigger on the outbox notifies only while the
flag is up. The notification is a hint: a writer whose statement ran before the flag and whose commit
came after the last look is missed, so every sleep is short.
"""

import select
from time import monotonic
from typing import Any, Protocol

from psycopg import Connection, sql

from relay.store.connection import Table
from relay.store.sqltext import fill

FLAG_SECONDS = 2.0

# The flag may be lost in a crash of the server: nobody is asleep then. One that another relay has raised
# will do if it outlasts the sleeps that begin while this relay takes it for raised.
RAISE_FLAG = """
WITH unsynchronised AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE {wake} SET asleep_until = clock_timestamp() + %(seconds)s * interval '1 second'
FROM unsynchronised WHERE asleep_until < clock_timestamp() + %(seconds)s * 0.75 * interval '1 second'
"""


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Alarm:
    """Wakes one relay. Uses the claimer's own connection while it has nothing to claim."""

    def __init__(self, table: Table) -> None:
        self._raise_flag = fill(RAISE_FLAG, table.name)
        self._listen = sql.SQL("LISTEN {}").format(sql.Identifier(table.channel))
        self._flag_until = 0.0

    def listen(self, conn: Connection[Any]) -> None:
        conn.execute(self._listen)

    @property
    def armed(self) -> bool:
        """The flag is up, and has been since the last sleep."""
        return monotonic() < self._flag_until

    def arm(self, conn: Connection[Any]) -> bool:
        """Raise the flag where needed; True: it was down, so look once more before sleeping."""
        if self.armed:
            return False
        now = monotonic()
        conn.execute(self._raise_flag, {"seconds": FLAG_SECONDS})
        self._flag_until = now + FLAG_SECONDS / 2
        return True

    def sleep(self, conn: Connection[Any], seconds: float, bell: HasFileno | None = None) -> bool:
        """Until a writer notifies or the bell rings, or for `seconds`; False: neither has."""
        if _notified(conn):  # while it looked for work
            return True
        # The driver's own wait would come back ten times a second to see whether anything else happened.
        waiting = select.poll()
        for each in [conn, bell] if bell else [conn]:
            waiting.register(each.fileno(), select.POLLIN)
        woken_by = {fileno for fileno, _ in waiting.poll(seconds * 1000)}
        return (conn.fileno() in woken_by and _notified(conn)) or bool(woken_by - {conn.fileno()})


def _notified(conn: Connection[Any]) -> bool:
    return bool(list(conn.notifies(timeout=0)))
