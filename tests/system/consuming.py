"""A consumer in a process of its own, which can be told to die at a certain point.

    python -m tests.system.consuming '{"kind": "kafka", "die": "before commit", …}'

It dies at the first event whose id ends in `-fatal`: inside the handler, or once the handler's transaction is
committed and before the broker is told.
"""

import json
import os
import signal
import sys
from typing import Any

import psycopg

from relay import logs
from relay.consumers import Message
from relay.consumers.lanes import Delivery
from tests.system.consumer_kit import KafkaPlace, Ledger, RabbitPlace


def main() -> None:
    logs.configure()
    plan: dict[str, Any] = json.loads(sys.argv[1])
    if plan["kind"] == "kafka":
        place: Any = KafkaPlace.__new__(KafkaPlace)
    else:
        place = RabbitPlace.__new__(RabbitPlace)
    place.__dict__ |= plan["place"]
    place.rig = type("Rig", (), plan["rig"])

    def handler(conn: psycopg.Connection[Any], message: Message) -> None:
        Ledger.credit(conn, message)
        if plan["die"] == "before commit" and message.event_id.endswith("-fatal"):
            die()

    consumer = place.consumer(handler, plan["database"])
    if plan["die"] == "after commit":
        done = consumer._done

        def die_before(delivery: Delivery) -> None:
            if delivery.raw.headers.get("event_id", "").endswith("-fatal"):
                die()
            done(delivery)

        consumer._done = die_before
    consumer.run(install_signals=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
