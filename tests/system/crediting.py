"""A billing process for the end-to-end tests: python -m tests.system.crediting OPTIONS.

A fifth of its handler calls fails. OPTIONS is JSON: database, book (what its entries are kept under), seed,
kafka or rabbitmq (what the consumer of that broker takes), and `naive`, a list of what this consumer gets
wrong: "hasty", it tells the broker before its transaction; "forgetful", it has no inbox. A book that is kept
so has to be wrong, or the test's faults do not bite.
"""

import json
import random
import sys
import time
from typing import Any

import psycopg
from psycopg import Connection

from relay import logs
from relay.consumers import Consumer, KafkaConsumer, Message, RabbitConsumer
from relay.consumers.lanes import Delivery

FAILURES = 0.2
LEDGER = (
    "CREATE TABLE ledger (n bigint GENERATED ALWAYS AS IDENTITY, book text, order_id bigint, cents bigint)"
)
ENTER = "INSERT INTO ledger (book, order_id, cents) VALUES (%s, %s, %s)"


class Accident(Exception):
    pass


class Billing:
    """A handler that fails in each way a handler can, for a fifth of its calls."""

    def __init__(self, book: str, seed: str) -> None:
        self._book = book
        self._dice = random.Random(seed)

    def __call__(self, conn: Connection[Any], message: Message) -> None:
        fails = self._dice.random() < FAILURES
        how = self._dice.choice(["at once", "late", "in the database"])
        if fails and how == "at once":
            raise Accident(how)
        conn.execute(ENTER, [self._book, message.payload["order_id"], message.payload["cents"]])
        time.sleep(self._dice.random() * 0.004)
        if fails and how == "late":
            raise Accident(how)
        if fails:
            conn.execute("SELECT 1 / 0")


def without_inbox(consumer: Consumer) -> None:
    def apply(conn: Connection[Any], message: Message, raw: object) -> str:
        with conn.transaction():
            consumer._applying._handle(conn, message)
        return "apply"

    consumer._applying.apply = apply  # type: ignore[method-assign, assignment]


def before_the_transaction(consumer: Consumer) -> None:
    take, tell_the_broker = consumer._take, consumer._done

    def take_and_tell(seconds: float) -> Delivery | None:
        delivery = take(seconds)
        if delivery is not None:
            tell_the_broker(delivery)
            if isinstance(consumer, KafkaConsumer):
                consumer._next_commit = 0.0
        return delivery

    consumer._take = take_and_tell  # type: ignore[method-assign]
    consumer._done = lambda _: None  # type: ignore[method-assign, assignment]


NAIVETIES = {"forgetful": without_inbox, "hasty": before_the_transaction}


def make(options: dict[str, Any]) -> Consumer:
    book = options["book"]
    handler = Billing(book, options["seed"])
    common: dict[str, Any] = {
        "database_url": options["database"],
        "max_attempts": 100,
        # The naive one is to have something in hand whenever it is killed.
        "backoff": lambda _: 0.5 if options["naive"] else 0.1,
    }
    consumer: Consumer
    if "kafka" in options:
        consumer = KafkaConsumer(book, handler, **common, **options["kafka"])
    else:
        consumer = RabbitConsumer(book, handler, **common, **options["rabbitmq"])
    for naivety in options["naive"]:
        NAIVETIES[naivety](consumer)
    return consumer


def main() -> None:
    options = json.loads(sys.argv[1])
    logs.configure()
    make(options).run(install_signals=True)


def make_ledger(database: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute(LEDGER)


if __name__ == "__main__":
    main()
