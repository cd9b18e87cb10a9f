"""Everything the demo runs on: directory, broker, database, relays, orders and billing.

Whatever was started here is ended, in the opposite order, when the stage is left, and what was made on
servers of the user's is removed. Must be entered in the main thread: processes end with the thread that
started them.
"""

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from relay.demo.billing import Billing
from relay.demo.database import Database, first_line, on_server, throwaway
from relay.demo.helper import Helper
from relay.demo.interruption import Interruption
from relay.demo.orders import Orders
from relay.demo.plan import Plan
from relay.demo.postgres import base_directory
from relay.demo.processes import ServerError
from relay.demo.relays import RelayProcess
from relay.demo.screen import Screen
from relay.demo.topic import topic_on
from relay.demo.watch import Watch
from relay.errors import RelayError
from relay.logs import redact

REGISTRATION_SECONDS = 20.0


@dataclass
class Stage:
    plan: Plan
    directory: Path
    database: Database
    servers: str
    topic: str
    watch: Watch
    orders: Orders
    billing: Billing
    relays: list[RelayProcess] = field(default_factory=list)
    killed: set[str] = field(default_factory=set)
    workers: dict[str, str] = field(default_factory=dict)  # relay by worker

    def start_relay(self, stack: ExitStack) -> RelayProcess:
        number = len(self.relays) + 1
        relay = RelayProcess(number, self.database, self.servers, self.topic, self.directory)
        stack.callback(relay.kill)
        self.relays.append(relay)
        return relay

    def wait_for(self, relay: RelayProcess, interruption: Interruption) -> str:
        """Wait until the relay has registered; the id of its worker."""
        deadline = time.monotonic() + REGISTRATION_SECONDS
        while (worker := self.watch.worker(relay.pid)) is None:
            relay.require_running()
            if time.monotonic() > deadline:
                raise ServerError(f"{relay.name} did not register within {REGISTRATION_SECONDS:.0f} s")
            interruption.sleep(0.05)
        self.workers[worker] = relay.name
        return worker

    def living(self) -> list[RelayProcess]:
        return [relay for relay in self.relays if relay.name not in self.killed]

    def require_sound(self) -> None:
        """Raise what went wrong meanwhile in any part."""
        for name, part in (("the orders domain", self.orders), ("billing", self.billing)):
            if part.failure is not None:
                raise RelayError(f"{name} failed: {first_line(part.failure)}") from part.failure
        for relay in self.living():
            relay.require_running()

    def addresses(self) -> dict[str, str]:
        found = {
            "database_url": self.database.url
            if self.plan.database_url is None
            else redact(self.database.url),
            "table": str(self.database.outbox),
            "bootstrap_servers": self.servers,
            "topic": self.topic,
        }
        return found | {relay.name: f"http://{relay.http}/metrics" for relay in self.living()}


@contextmanager
def set_up(plan: Plan, screen: Screen, interruption: Interruption) -> Iterator[tuple[Stage, ExitStack]]:
    """The stage with two relays that have registered, and the stack that further relays are put on."""
    with ExitStack() as stack:
        topic = f"outbox-relay-demo-{secrets.token_hex(4)}" if plan.kafka else "orders"
        directory = _directory(stack)
        helper = stack.enter_context(Helper(directory, None if plan.kafka else topic))
        if plan.kafka:
            stack.enter_context(topic_on(plan.kafka, topic))
        servers = plan.kafka or helper.bootstrap_servers()
        screen.say(f"Kafka        {servers}, topic {topic}" + ("" if plan.kafka else " (built in)"))
        interruption.check()
        place = on_server(plan.database_url) if plan.database_url else throwaway(directory)
        database = stack.enter_context(place)
        conn = stack.enter_context(database.connect())
        version = conn.info.parameter_status("server_version")
        origin = f"schema {database.schema}" if plan.database_url else "throwaway"
        screen.say(f"PostgreSQL   {version} on {conn.info.host}:{conn.info.port} ({origin}), tables migrated")
        interruption.check()
        billing = Billing(database, servers, topic)
        stack.callback(billing.close)
        orders = Orders(database, plan.rate, plan.events)
        stack.callback(orders.close)
        stage = Stage(plan, directory, database, servers, topic, Watch(database, conn), orders, billing)
        for relay in [stage.start_relay(stack), stage.start_relay(stack)]:
            stage.wait_for(relay, interruption)
        screen.say("relays       relay 1 and relay 2 have registered")
        yield stage, stack


def _directory(stack: ExitStack) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="outbox-relay-demo-", dir=base_directory()))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    directory.chmod(0o711)  # root's server runs as another user, who has to pass through
    return directory
