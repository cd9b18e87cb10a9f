"""The wiring of compose.yaml works: its migration, relays, dashboard and example, run natively as it says.

Prometheus scrapes them by its own configuration and evaluates the alerts; scraped more often than there, and
with alerts that wait for a second instead of minutes.
"""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from relay.demo.postgres import ServerError
from tests.conftest import Kafka, missing
from tests.servers.prometheus import Prometheus
from tests.system.compose_stack import COMPOSE, Stack, stack
from tests.system.relays import wait_until

RELAYS = ("relay-1", "relay-2")


@pytest.fixture
def shop() -> str:
    return f"shop-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def on_kafka(tmp_path: Path, database: str, kafka: Kafka, shop: str) -> Iterator[Stack]:
    servers, secrets = {"kafka:19092": kafka.address}, {"database_url": database}
    with stack(tmp_path, servers=servers, secrets=secrets, shop=shop) as made:
        yield made


@pytest.fixture
def on_rabbitmq(tmp_path: Path, database: str, rabbitmq: str, shop: str) -> Iterator[Stack]:
    secrets = {"database_url": database, "rabbitmq_url": rabbitmq}
    with stack(tmp_path, servers={}, secrets=secrets, shop=shop, RABBITMQ="yes") as made:
        yield made


def prometheus_for(made: Stack) -> Prometheus:
    """Configured as in compose/, with the addresses of the processes, in a hurry."""
    configuration = yaml.safe_load((COMPOSE / "prometheus/prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    for job in configuration["scrape_configs"]:
        instances = RELAYS if job.pop("dns_sd_configs", None) else ("dashboard-1",)
        addresses = [f"127.0.0.1:{made.ports[instance]}" for instance in instances]
        job["static_configs"] = [{"targets": addresses}]
    rules = yaml.safe_load((COMPOSE / "prometheus/alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = "1s"
    try:
        return Prometheus(configuration, rules)
    except ServerError as error:
        missing(str(error))


class Shop:
    """The orders service, as a client sees it."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def order(self, cents: int) -> int:
        return int(self._ask("/orders", {"item": "book", "cents": cents})["id"])

    def pay(self, order: int) -> None:
        self._ask(f"/orders/{order}/pay", {})

    def check_out(self, order: int) -> None:
        self._ask(f"/orders/{order}/checkout", {})

    def seen(self, order: int) -> dict[str, Any]:
        return self._ask(f"/orders/{order}")

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body).encode()
        request = Request(self._address + path, content, {"Content-Type": "application/json"})
        with urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def test_on_kafka_payments_arrive_once_and_work_without_a_worker_raises_the_alarm(on_kafka: Stack) -> None:
    made = on_kafka
    made.up("relay", "dashboard", "orders", "billing")
    assert set(RELAYS) < made.processes.keys()
    client = Shop(made.ports["orders-1"])
    with prometheus_for(made) as prometheus:
        orders = [client.order(100 + number) for number in range(5)]
        for order in orders:
            client.pay(order)
        wait_until(
            lambda: [client.seen(order)["ledger"] for order in orders] == [[100 + n] for n in range(5)],
            what="billing to book each payment once",
        )
        wait_until(lambda: prometheus.value('sum(up{job="outbox-relay"})') == 2, what="both relays scraped")
        delivered = 'sum(relay_published_events_total{outcome="delivered"})'
        wait_until(lambda: prometheus.value(delivered) == 10, what="what was delivered to be counted")
        wait_until(lambda: prometheus.value("sum(relay_workers)") == 2, what="both workers to be counted")
        assert_every_rule_is_evaluated(prometheus)

        assert made.stop(*RELAYS) == [0, 0]
        late = client.order(900)
        client.pay(late)
        wait_until(
            lambda: prometheus.firing() >= {"OutboxNoWorker", "OutboxNoRelay"},
            what="the alarm that work is pending and no worker is connected",
        )
        assert prometheus.value("sum(relay_pending_events)") == 2

        made.start("relay-3")
        wait_until(lambda: "OutboxNoWorker" not in prometheus.firing(), what="the alarm to end")
        wait_until(lambda: client.seen(late)["ledger"] == [900], what="billing to book the late payment")


def assert_every_rule_is_evaluated(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), what="rules to be evaluated")
    assert [(rule["name"], rule.get("lastError")) for rule in rules() if rule["health"] != "ok"] == []
    # Before its first scrape Prometheus knew no relay.
    wait_until(lambda: prometheus.firing() == set(), what="no alert to fire")


def test_on_rabbitmq_the_same_wiring_carries_payments_and_sagas(on_rabbitmq: Stack) -> None:
    made = on_rabbitmq
    made.up("relay", "orders", "billing", "saga")
    client = Shop(made.ports["orders-1"])
    paid, checked_out = client.order(250), client.order(450)
    client.pay(paid)
    client.check_out(checked_out)
    wait_until(lambda: client.seen(paid)["ledger"] == [250], what="billing to book the payment")
    wait_until(lambda: client.seen(checked_out)["saga"][-1:] == ["done"], what="the saga to be done")
    assert made.stop(*RELAYS) == [0, 0]
