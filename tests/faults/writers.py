"""Writers of a domain: orders change under their row locks, and each change emits events.

Some transactions roll back, some stay open for a while, some commit lazily, some emit poison. Events of one
order get their positions in the order of commits, as the row lock makes sure.
"""

import time
from random import Random

import psycopg

from tests.faults.child import POISON
from tests.system.writers import Writer

ORDERS = 40
PAUSE_SECONDS = 0.05
LONGEST_TRANSACTION = 1.5


class DomainWriter(Writer):
    def __init__(self, database: str, name: str, seed: str) -> None:
        super().__init__(database, name, PAUSE_SECONDS)
        self._dice = Random(seed)

    def _write(self, conn: "psycopg.Connection[tuple]") -> None:
        how = self._dice.choices(["plain", "rollback", "late", "lazy", "poison"], [70, 10, 8, 8, 4])[0]
        order = f"order:{self._dice.randrange(ORDERS)}"
        number = next(self._numbers)
        ids = [f"{self.name}-{number}-{n}-{how}" for n in range(self._dice.randint(1, 4))]
        try:
            with conn.transaction() as transaction:
                conn.execute("SET LOCAL lock_timeout = '10s'")
                if how == "lazy":
                    conn.execute("SET LOCAL synchronous_commit = off")
                self._change(conn, order, ids, poison=how == "poison")
                if how in ("late", "rollback"):
                    time.sleep(self._dice.random() * LONGEST_TRANSACTION)
                if how == "rollback":
                    raise psycopg.Rollback(transaction)
        except psycopg.Rollback as lost:  # it comes out where the connection broke before
            raise psycopg.OperationalError("no rollback") from lost
        except psycopg.OperationalError:
            self.in_doubt += ids
            raise
        if how != "rollback":
            (self.in_doubt if how == "lazy" else self.committed).extend(ids)

    def _change(self, conn: "psycopg.Connection[tuple]", order: str, ids: list[str], *, poison: bool) -> None:
        conn.execute(
            "INSERT INTO orders VALUES (%s, 1) ON CONFLICT (id) DO UPDATE SET changes = orders.changes + 1",
            [order],
        )
        for event_id in ids:
            event_type = POISON if poison and event_id == ids[0] else "OrderChanged"
            # Now and then an event that needs no order.
            key = order if self._dice.random() < 0.95 else None
            self._outbox.emit(conn, event_type, key=key, payload={"order": order}, event_id=event_id)
