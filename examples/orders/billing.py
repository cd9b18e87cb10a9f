"""Billing: credits each payment to the ledger, once, however often its event arrives.

The consumer opens a transaction, lets its inbox decide whether the event is new, and calls `book` in that
transaction. It tells the broker only after the commit.
"""

from typing import Any

from psycopg import Connection

from examples.orders.shop import Shop
from relay.consumers import Message

SIGNS = {"OrderPaid": 1, "OrderRefunded": -1}

ENTER = "INSERT INTO ledger (order_id, cents) VALUES (%s, %s)"


def book(conn: Connection[Any], message: Message) -> None:
    sign = SIGNS.get(message.event_type)
    if sign is None:
        return  # an event that does not concern billing
    order_id, cents = message.payload["order_id"], sign * message.payload["cents"]
    conn.execute(ENTER, [order_id, cents])
    print(f"billing   order {order_id}: {cents:+} cents", flush=True)


def main() -> None:
    Shop.from_environment().consumer("billing", book).run(install_signals=True)


if __name__ == "__main__":
    main()
