"""The checkout saga: reserve, charge, ship; when one of them cannot be done, the ones before it are undone.

Each step is one transaction that does its work, notes it, and emits the event that asks for the next step.
So a saga never stands still between two steps and never does one twice: a step that was committed has asked
for the next one, and a step that was not is delivered again. All events of a saga have the key `saga:{id}`.

StepFailed is a decision (no stock, card declined) and starts the way back. Any other error is an accident:
the step is rolled back, and the consumer tries it again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from examples.orders.shop import Shop
from relay import Outbox
from relay.consumers import Message

Act = Callable[[Connection[Any], int], None]
outbox = Outbox()


class StepFailed(Exception):
    """The step cannot be done, and trying again would not help."""


def reserve(conn: Connection[Any], order_id: int) -> None:
    taken = conn.execute(
        "UPDATE stock SET available = available - 1"
        " WHERE item = (SELECT item FROM orders WHERE id = %s) AND available > 0",
        [order_id],
    )
    if taken.rowcount == 0:
        raise StepFailed("out of stock")


def release(conn: Connection[Any], order_id: int) -> None:
    conn.execute(
        "UPDATE stock SET available = available + 1 WHERE item = (SELECT item FROM orders WHERE id = %s)",
        [order_id],
    )


def charge(conn: Connection[Any], order_id: int) -> None:
    # A payment provider would be called here, with the message's event_id as its idempotency key: the call
    # is not part of the transaction, and happens again where the transaction is rolled back.
    row = conn.execute(
        "UPDATE orders SET status = 'paid' WHERE id = %s AND card <> 'declined' RETURNING cents", [order_id]
    ).fetchone()
    if row is None:
        raise StepFailed("card declined")
    tell_billing(conn, "OrderPaid", order_id, row[0])


def refund(conn: Connection[Any], order_id: int) -> None:
    row = conn.execute(
        "UPDATE orders SET status = 'refunded' WHERE id = %s RETURNING cents", [order_id]
    ).fetchone()
    assert row is not None
    tell_billing(conn, "OrderRefunded", order_id, row[0])


def ship(conn: Connection[Any], order_id: int) -> None:
    sent = conn.execute(
        "UPDATE orders SET status = 'shipped' WHERE id = %s AND address <> 'nowhere'", [order_id]
    )
    if sent.rowcount == 0:
        raise StepFailed("address unknown")


def tell_billing(conn: Connection[Any], event_type: str, order_id: int, cents: int) -> None:
    outbox.emit(conn, event_type, key=f"order:{order_id}", payload={"order_id": order_id, "cents": cents})


@dataclass(frozen=True)
class Step:
    name: str  # also the type of the event that asks for it
    do: Act
    undo_name: str
    undo: Act


STEPS = (
    Step("ReserveStock", reserve, "ReleaseStock", release),
    Step("ChargeCard", charge, "RefundCard", refund),
    Step("ShipOrder", ship, "", lambda *_: None),  # the last one is never undone
)
DOING = {step.name: place for place, step in enumerate(STEPS)}
UNDOING = {step.undo_name: place for place, step in enumerate(STEPS[:-1])}


@dataclass(frozen=True)
class Run:
    """One saga in the transaction of one of its steps."""

    conn: Any  # of psycopg or SQLAlchemy: whatever the outbox takes
    saga_id: int
    order_id: int

    def ask_for(self, name: str) -> None:
        outbox.emit(
            self.conn,
            name,
            key=f"saga:{self.saga_id}",
            payload={"saga_id": self.saga_id, "order_id": self.order_id},
        )

    def note(self, text: str) -> None:
        self.conn.execute("INSERT INTO saga_steps (saga_id, step) VALUES (%s, %s)", [self.saga_id, text])
        print(f"saga      {self.saga_id}: {text}", flush=True)

    def end(self, status: str) -> None:
        self.conn.execute("UPDATE sagas SET status = %s WHERE id = %s", [status, self.saga_id])
        self.note(status)


def start(session: Any, saga_id: int, order_id: int) -> None:
    """Ask for the first step, in the transaction that makes the saga."""
    Run(session, saga_id, order_id).ask_for(STEPS[0].name)


def handle(conn: Connection[Any], message: Message) -> None:
    run = Run(conn, message.payload["saga_id"], message.payload["order_id"])
    if message.event_type in DOING:
        forward(run, DOING[message.event_type])
    elif message.event_type in UNDOING:
        place = UNDOING[message.event_type]
        STEPS[place].undo(conn, run.order_id)
        run.note(message.event_type)
        back(run, place)


def forward(run: Run, place: int) -> None:
    step = STEPS[place]
    try:
        with run.conn.transaction():  # a savepoint: a step that fails leaves nothing of itself
            step.do(run.conn, run.order_id)
    except StepFailed as why:
        run.conn.execute("UPDATE sagas SET reason = %s WHERE id = %s", [str(why), run.saga_id])
        run.note(f"{step.name} failed: {why}")
        back(run, place)
        return
    run.note(step.name)
    if place + 1 < len(STEPS):
        run.ask_for(STEPS[place + 1].name)
    else:
        run.end("done")


def back(run: Run, place: int) -> None:
    """Undo the step before this one; before the first there is nothing left to undo."""
    if place > 0:
        run.ask_for(STEPS[place - 1].undo_name)
    else:
        run.conn.execute("UPDATE orders SET status = 'cancelled' WHERE id = %s", [run.order_id])
        run.end("compensated")


def main() -> None:
    Shop.from_environment().consumer("saga", handle).run(install_signals=True)


if __name__ == "__main__":
    main()
