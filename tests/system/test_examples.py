"""The examples as their readers run them: by the commands of the README, on throwaway and on real servers."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pika
import psutil
import psycopg
import pytest

from relay.demo.processes import free_port
from tests.conftest import Kafka
from tests.system.relays import ROOT, wait_until

README = ROOT / "examples" / "orders" / "README.md"

pytestmark = pytest.mark.slow


class Shop:
    """What customers see of a shop that runs."""

    def __init__(self, port: int) -> None:
        # No connection is used twice: a server may close one at any moment between two requests.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, limits=limits)

    def answers(self) -> bool:
        try:
            return self._client.get("/openapi.json").is_success
        except httpx.TransportError:
            return False

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self._client.post(path, json=body or None)

    def place(self, **order: Any) -> int:
        answer = self.post("/orders", **({"cents": 1250} | order))
        assert answer.status_code == 201, answer.text
        return int(answer.json()["id"])

    def show(self, order_id: int) -> Any:
        return self._client.get(f"/orders/{order_id}").raise_for_status().json()

    def check_out(self, **order: Any) -> int:
        order_id = self.place(**order)
        assert self.post(f"/orders/{order_id}/checkout").status_code == 202
        return order_id

    def curl(self, command: str) -> str:
        """Do what this command of curl would do."""
        method, path, headers, body = "GET", "", {}, None
        words = iter(shlex.split(command)[1:])
        for word in words:
            match word:
                case "-X":
                    method = next(words)
                case "-H":
                    name, value = next(words).split(": ")
                    headers[name] = value
                case "-d":
                    body = next(words)
                case _:
                    path = word.removeprefix("localhost:8000")
        answer = self._client.request(method, path, headers=headers, content=body)
        return answer.raise_for_status().text


class Example:
    """Starts `python -m examples.orders …`, and ends it as Ctrl-C does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()

    def kill(self, *words: str) -> None:
        """SIGKILL to the process with these words at the end of its command line."""
        children = psutil.Process().children(recursive=True)
        (found,) = [child for child in children if _words(child)[-len(words) :] == words]
        found.kill()

    def command(self, *parts: str, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        own = {"TMPDIR": str(self.directory), "PORT": str(self.port)}
        return subprocess.Popen(
            [sys.executable, "-m", "examples.orders", *parts],
            cwd=ROOT,
            env=inherited | own | dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def running(self, *commands: tuple[str, ...], **environment: str) -> Iterator[Shop]:
        """The shop while these commands run; afterwards they have ended well and left nothing behind."""
        started = [self.command(*parts, environment=environment) for parts in commands]
        try:
            shop = Shop(self.port)
            wait_until(
                lambda: shop.answers() or any(process.poll() is not None for process in started),
                what="the service answers",
            )
            yield shop
        finally:
            for process in started:
                process.send_signal(signal.SIGINT)
            endings = [_end(process) for process in started]
        assert [code for code, _, _ in endings] == [0] * len(started), endings
        assert "Traceback" not in "".join(errors for _, _, errors in endings)
        wait_until(lambda: not list(self.directory.iterdir()), what="everything is tidied up")


def _words(process: psutil.Process) -> tuple[str, ...]:
    try:
        return tuple(process.cmdline())
    except psutil.Error:  # it is gone
        return ()


def _end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    return process.returncode, output, errors


@pytest.fixture
def example() -> Iterator[Example]:
    # Not pytest's own directory: the throwaway PostgreSQL of root runs as another user.
    directory = Path(tempfile.mkdtemp(prefix="example-test-"))
    directory.chmod(0o755)
    yield Example(directory)
    shutil.rmtree(directory, ignore_errors=True)


def _walks_through_the_readme() -> Iterator[tuple[list[str], list[str]]]:
    """Each block of curl commands, and what the text up to the next block promises of its last answer."""
    text = README.read_text()
    for block in re.finditer(r"```sh\n((?:curl [^\n]*\n)+)```(.*?)(?=```|\n## )", text, re.DOTALL):
        yield block[1].splitlines(), re.findall(r'`("\w+":\[.*?\])`', block[2])


def test_a_newcomer_who_follows_the_readme_sees_what_it_says(example: Example) -> None:
    walks = list(_walks_through_the_readme())
    assert [len(promises) for _, promises in walks] == [1, 1, 2]
    with example.running(()) as shop:
        for commands, promises in walks:
            for command in commands[:-1]:
                shop.curl(command)
            for promise in promises:
                _wait_for(lambda: shop.curl(commands[-1]), promise)  # noqa: B023 - called before it changes


def _wait_for(look: Callable[[], str], promise: str) -> None:
    try:
        wait_until(lambda: promise in look(), what=promise)
    except AssertionError as vain:
        raise AssertionError(f"{vain}; the last answer: {look()}") from vain


DONE = ["ReserveStock", "ChargeCard", "ShipOrder", "done"]
UNSHIPPABLE = [
    "ReserveStock",
    "ChargeCard",
    "ShipOrder failed: address unknown",
    "RefundCard",
    "ReleaseStock",
    "compensated",
]
DECLINED = ["ReserveStock", "ChargeCard failed: card declined", "ReleaseStock", "compensated"]
SOLD_OUT = ["ReserveStock failed: out of stock", "compensated"]


def go_shopping(shop: Shop, database: str) -> None:
    """Pay and check out orders of each kind, and wait until the books say what they should."""
    before = _stock(database)
    paid = shop.place(cents=1250)
    with ThreadPoolExecutor(4) as customers:
        answers = list(customers.map(lambda _: shop.post(f"/orders/{paid}/pay"), range(4)))
    assert {answer.status_code for answer in answers} == {200}
    sagas = {
        shop.check_out(item="lamp", cents=4900): ("shipped", [4900], DONE),
        shop.check_out(item="lamp", cents=700, address="nowhere"): ("cancelled", [700, -700], UNSHIPPABLE),
        shop.check_out(item="lamp", cents=800, card="declined"): ("cancelled", [], DECLINED),
        shop.check_out(item="unicorn", cents=900): ("cancelled", [], SOLD_OUT),
    }
    expected: dict[int, tuple[str, list[int], list[str]]] = {paid: ("paid", [1250], [])} | sagas

    def seen() -> dict[int, tuple[str, list[int], list[str]]]:
        shown = [shop.show(order_id) for order_id in expected]
        return {order["id"]: (order["status"], order["ledger"], order["saga"]) for order in shown}

    try:
        wait_until(lambda: seen() == expected)
    finally:
        assert seen() == expected
    assert _stock(database) == before | {"lamp": before["lamp"] - 1}
    assert _events(database, f"order:{paid}") == ["OrderPlaced", "OrderPaid"]
    assert shop.post(f"/orders/{paid}/checkout").status_code == 409
    assert shop.post("/orders/999999/pay").status_code == 404
    assert shop.post("/orders", item="nothing", cents=1).status_code == 422
    wait_until(lambda: _unpublished(database) == 0)


def _rows(database: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as conn:
        return conn.execute(statement, parameters).fetchall()


def _stock(database: str) -> dict[str, int]:
    return dict(_rows(database, "SELECT item, available FROM stock"))


def _events(database: str, key: str) -> list[str]:
    rows = _rows(database, "SELECT event_type FROM outbox WHERE partition_key = %s ORDER BY id", key)
    return [row[0] for row in rows]


def _unpublished(database: str) -> int:
    return int(_rows(database, "SELECT count(*) FROM outbox WHERE status <> 'completed'")[0][0])


def test_the_shop_is_in_the_right_on_kafka(example: Example, empty_database: str, kafka: Kafka) -> None:
    environment = {
        "RELAY_DATABASE_URL": empty_database,
        "RELAY_KAFKA__BOOTSTRAP_SERVERS": kafka.address,
        "SHOP_NAME": f"shop-{uuid.uuid4().hex}",
    }
    with example.running((), **environment) as shop:
        go_shopping(shop, empty_database)


def test_each_part_runs_by_itself_on_rabbitmq(example: Example, empty_database: str, rabbitmq: str) -> None:
    environment = {
        "RELAY_DATABASE_URL": empty_database,
        "RELAY_RABBITMQ__URL": rabbitmq,
        "SHOP_NAME": f"shop-{uuid.uuid4().hex}",
    }
    with example.running(("relay",), ("service",), ("billing",), ("saga",), **environment) as shop:
        go_shopping(shop, empty_database)
        example.kill("relay", "run")
        example.kill("examples.orders.billing")
        order_id = shop.place()
        assert shop.post(f"/orders/{order_id}/pay").is_success
        wait_until(lambda: shop.show(order_id)["ledger"] == [1250], what="what was killed is back")
    channel = pika.BlockingConnection(pika.URLParameters(rabbitmq)).channel()
    queues = [f"{environment['SHOP_NAME']}.{consumer}" for consumer in ("billing", "saga")]
    left = [channel.queue_declare(queue, passive=True).method.message_count for queue in queues]
    channel.connection.close()
    assert left == [0, 0]


def test_an_orders_table_of_somebody_else_is_left_alone(example: Example, empty_database: str) -> None:
    with psycopg.connect(empty_database) as conn:
        conn.execute("CREATE TABLE orders (id int)")
    code, _, errors = _end(example.command(environment={"RELAY_DATABASE_URL": empty_database}))
    assert code == 1
    assert errors.startswith("error: this database has a table of somebody else's")
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
    assert _rows(empty_database, tables) == [("orders",)]


def test_a_server_that_is_not_there_is_a_sentence(example: Example) -> None:
    nowhere = {"RELAY_DATABASE_URL": "postgresql://u:hush@127.0.0.1:1/shop"}
    code, output, errors = _end(example.command("service", environment=nowhere))
    assert (code, output) == (1, "")
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
    assert "hush" not in errors


def test_a_part_that_nobody_knows_is_told_which_there_are(example: Example) -> None:
    code, _, errors = _end(example.command("warehouse", environment={}))
    assert code == 2
    assert "[relay] [service] [billing] [saga]" in errors


def test_an_order_whose_event_cannot_be_written_is_not_paid(example: Example, empty_database: str) -> None:
    with example.running(("service",), RELAY_DATABASE_URL=empty_database) as shop:
        order_id = shop.place()
        with psycopg.connect(empty_database) as conn:
            conn.execute("ALTER TABLE outbox ADD CHECK (event_type <> 'OrderPaid')")
        assert shop.post(f"/orders/{order_id}/pay").status_code == 500
        assert shop.show(order_id)["status"] == "open"
        assert _events(empty_database, f"order:{order_id}") == ["OrderPlaced"]
