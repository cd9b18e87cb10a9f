"""Runs the Python of one page, block after block in one namespace, against a database of its own.

    python -m tests.docs.stage docs/producers.md

A process of its own, because snippets set up Django, define handlers and leave files. Addresses that a page
shows are replaced by those of the servers; `names` is what a page may take for granted in an orders service.
What a page only defines is called afterwards, by AFTERWARDS.
"""

import asyncio
import os
import sys
import threading
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.docs.pages import Page

Names = dict[str, Any]

SHOP = """
CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, status text NOT NULL, updated_at timestamptz);
CREATE TABLE IF NOT EXISTS accounts (id bigint PRIMARY KEY, balance numeric NOT NULL);
INSERT INTO orders SELECT id, 'placed' FROM generate_series(9180, 9199) id ON CONFLICT DO NOTHING;
INSERT INTO accounts SELECT id, 0 FROM generate_series(1, 9) id ON CONFLICT DO NOTHING;
"""


def addresses(database: str) -> dict[str, str]:
    """What pages show instead of the servers' own addresses; longer ones first."""
    shown = {
        "postgresql+psycopg://app@localhost/shop": database.replace("postgresql:", "postgresql+psycopg:", 1),
        "postgresql://app@localhost/shop": database,
        "postgresql://billing@localhost/billing": database,
    }
    if "DOCS_KAFKA" in os.environ:
        shown |= {"localhost:9092": os.environ["DOCS_KAFKA"], '"orders"': f'"{os.environ["DOCS_TOPIC"]}"'}
    return shown


def credit(conn: psycopg.Connection, event: Names) -> None:
    conn.execute("UPDATE accounts SET balance = balance + %(amount)s WHERE id = %(account)s", event)


@contextmanager
def names(database: str) -> Iterator[Names]:
    """What the snippets of an orders service have around them."""
    with psycopg.connect(database) as conn:
        conn.execute(SHOP)
        conn.commit()
        yield {
            "__name__": "snippet",
            "conn": conn,
            "event_id": "evt-order-9182-paid-v1",
            "event": {"account": 1, "amount": 10},
            "partition_key": "order:9182",
            "lease_generation": "1",
            "credit": lambda conn, event: conn.execute(
                "UPDATE accounts SET balance = balance + %s WHERE id = %s",
                [event["amount"], event["account"]],
            ),
        }


def django(database: str) -> Names:
    """A project with one model, as the page takes for granted."""
    import django
    from django.conf import settings
    from django.db import models

    parts = conninfo_to_dict(database)
    ours = {name.upper(): parts.get(name) or "" for name in ("user", "password", "host", "port")}
    default = {"ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], **ours}
    settings.configure(DATABASES={"default": default}, USE_TZ=True)
    django.setup()
    meta = type("Meta", (), {"app_label": "shop", "db_table": "orders", "managed": False})
    fields = {"id": models.BigIntegerField(primary_key=True), "status": models.TextField(), "Meta": meta}
    return {"Order": type("Order", (models.Model,), {"__module__": "shop.models", **fields})}


def event_types(database: str) -> list[str]:
    with psycopg.connect(database) as conn:
        return [row[0] for row in conn.execute("SELECT event_type FROM outbox ORDER BY id")]


def after_producers(made: Names, database: str) -> None:
    from fastapi.testclient import TestClient

    before = len(event_types(database))
    with TestClient(made["app"]) as client:
        assert client.post("/orders/9190/pay").json() == {"status": "paid"}
    made["pay_with_sqlalchemy"](9191)
    made["pay_with_django"](9192)
    assert event_types(database)[before:] == ["OrderPaid"] * 3
    with psycopg.connect(database) as conn:
        paid = conn.execute("SELECT id FROM orders WHERE status = 'paid' AND id >= 9190 ORDER BY id")
        assert [row[0] for row in paid] == [9190, 9191, 9192]


def after_sharding(made: Names, database: str) -> None:
    keys = {made["shard_key"]("tenant:7", f"order:{n}") for n in range(500)}
    assert keys == {f"tenant:7/{n}" for n in range(made["SHARDS"])}


def after_publishers(made: Names, database: str) -> None:
    import socket
    from time import monotonic

    from relay import Delivered, Refused, Unconfirmed
    from relay.testing import make_event

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        publisher = made["LinePublisher"]({"address": f"127.0.0.1:{server.getsockname()[1]}"})
        heard: list[bytes] = []

        def answer() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rwb") as lines:
                for line in lines:
                    heard.append(line)
                    lines.write(b"no\n" if b"Refused" in line else b"ok\n")
                    lines.flush()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        events = [
            make_event("a"),
            make_event("b", event_type="Refused"),
            make_event("b"),
            make_event("c"),
        ]
        outcomes = publisher.publish(events, monotonic() + 30)
        assert [type(outcome) for outcome in outcomes] == [Delivered, Refused, Unconfirmed, Delivered]
        publisher.close()
        thread.join(30)
    (outcome,) = publisher.publish(events[:1], monotonic() + 5)
    assert isinstance(outcome, Unconfirmed)
    assert outcome.scope == "broker"
    assert len(heard) == 3
    conforms(made)


def conforms(made: Names) -> None:
    """The page's own suite, each test with a rig of its own."""
    suite = made["TestLines"]()
    tests = [name for name in dir(suite) if name.startswith("test_")]
    assert len(tests) > 5
    for name in tests:
        rig = made["LineRig"]()
        # A rig's own server has threads, too.
        if name != "test_close_leaves_no_thread_and_may_be_called_twice":
            getattr(suite, name)(rig)
        rig.server.shutdown()
        rig.server.server_close()


def during_consumers(made: Names, database: str) -> None:
    """Two copies of an event, and the end of the consumer once the first was applied."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": os.environ["DOCS_KAFKA"]})
    headers = {"event_id": "evt-1", "event_type": "OrderPaid", "partition_key": "order:1", "position": "1"}
    headers |= {"lease_generation": "1", "attempt": "1", "created_at": "2026-07-01T12:00:00+00:00"}
    for _ in range(2):
        producer.produce(
            os.environ["DOCS_TOPIC"], b'{"amount": 5, "account": 2}', b"evt-1", headers=list(headers.items())
        )
    assert producer.flush(60) == 0
    with psycopg.connect(database, autocommit=True) as conn:
        while conn.execute("SELECT FROM accounts WHERE id = 2 AND balance = 5").fetchone() is None:
            threading.Event().wait(0.05)
    made["consumer"].stop()


def after_webhook(made: Names, database: str) -> None:
    from publishers.signing import sign

    body = b'{"order_id": 9182}'
    assert made["verify"]("secret", sign("secret", body), body)
    assert not made["verify"]("another", sign("secret", body), body)
    assert made["header_text"]("UTF-8''%C4%8D") == "č"


BEFORE: dict[str, Callable[[str], Names]] = {"docs/producers.md": django}
# Started beside the first block that blocks until it is stopped.
DURING: dict[str, Callable[[Names, str], None]] = {"docs/consumers.md": during_consumers}
AFTERWARDS: dict[str, Callable[[Names, str], None]] = {
    "docs/producers.md": after_producers,
    "docs/publishers/README.md": after_publishers,
    "docs/publishers/webhook.md": after_webhook,
    "docs/sharding.md": after_sharding,
}


def run(page: Page, database: str) -> None:
    with names(database) as made:
        if before := BEFORE.get(page.name):
            made.update(before(database))
        for block in page.of("python"):
            text = block.text
            for shown, real in addresses(database).items():
                text = text.replace(shown, real)
            if "consumer.run(" in text and page.name in DURING:
                threading.Thread(target=DURING[page.name], args=(made, database), daemon=True).start()
            # The line numbers of a traceback are then those of the page.
            code = compile(
                "\n" * (block.line - 1) + text, page.name, "exec", flags=PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
            answer = eval(code, made)
            if answer is not None:
                asyncio.run(answer)
        if afterwards := AFTERWARDS.get(page.name):
            afterwards(made, database)


if __name__ == "__main__":
    run(Page(sys.argv[1]), os.environ["DOCS_DATABASE_URL"])
