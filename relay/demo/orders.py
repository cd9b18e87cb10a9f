"""The orders domain: pays orders, and emits OrderPaid in the transaction that does so.

Now and then a transaction is rolled back after its event was emitted, on purpose: that event must never
be seen anywhere. What committed and what did not is remembered here, for the verdict.
"""

import random
import threading
import time
import uuid
from typing import Any

from psycopg import Connection

from relay import Outbox
from relay.demo.database import ORDERS, Database
from relay.demo.verdict import Emitted

TILLS = 4  # threads, each with a connection of its own
ROLLED_BACK_SHARE = 0.08
FARTHEST_BEHIND = 0.5  # seconds: a till that the machine held up does not make up for more

PAY = """
UPDATE {orders} SET status = 'paid', payments = payments + 1, paid_cents = paid_cents + %s
WHERE id = %s RETURNING payments
"""


class Orders:
    def __init__(self, database: Database, rate: float, limit: int | None) -> None:
        self.emitted: dict[str, Emitted] = {}
        self.rolled_back: set[str] = set()
        self.failure: BaseException | None = None
        self._database = database
        self._outbox = Outbox(str(database.outbox))
        self._pay = database.fill(PAY)
        self._interval = TILLS / rate
        self._left = limit
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._tills = [
            threading.Thread(target=self._till, name=f"till-{n}", daemon=True) for n in range(TILLS)
        ]

    def start(self) -> None:
        for till in self._tills:
            till.start()

    @property
    def sold_out(self) -> bool:
        """Whether as many events were emitted as were asked for."""
        return self._left == 0

    def close(self) -> None:
        """Pay no more; returns when the last transaction has ended."""
        self._closing.set()
        for till in self._tills:
            if till.is_alive():
                till.join()

    def _till(self) -> None:
        try:
            with self._database.connect() as conn:
                due = time.monotonic()
                while not self._closing.wait(max(due - time.monotonic(), 0)):
                    changes_its_mind = random.random() < ROLLED_BACK_SHARE
                    if not changes_its_mind and not self._take():
                        return
                    self._sell(conn, changes_its_mind)
                    due = max(due + self._interval, time.monotonic() - FARTHEST_BEHIND)
        except BaseException as failure:  # noqa: BLE001 - told by whoever watches
            self.failure = failure

    def _take(self) -> bool:
        with self._lock:
            if self._left == 0:
                return False
            if self._left is not None:
                self._left -= 1
            return True

    def _sell(self, conn: Connection[Any], changes_its_mind: bool) -> None:
        """One transaction, which is rolled back if the customer changes their mind."""
        order = random.randint(1, ORDERS)
        key = f"order:{order}"
        cents = random.randint(100, 20_000)
        event_id = f"evt-{uuid.uuid4()}"
        with conn.transaction(force_rollback=changes_its_mind):
            row = conn.execute(self._pay, [cents, order]).fetchone()
            assert row is not None
            payload = {"order_id": order, "payment": row[0], "cents": cents}
            self._outbox.emit(conn, "OrderPaid", key=key, payload=payload, event_id=event_id)
            committed_at = time.monotonic()
        if changes_its_mind:
            self.rolled_back.add(event_id)
        else:
            self.emitted[event_id] = Emitted(key, row[0], committed_at)
