"""Runs the measurements one after the other and gathers the figures."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import monotonic, sleep
from typing import Any

from psycopg import Connection

from publishers.memory import MemoryPublisher
from relay.bench.client import client_figure
from relay.bench.measure import Cost, local_postmaster, measured
from relay.bench.table import bench_outbox, fill_outbox
from relay.errors import RelayError
from relay.metrics import Metrics
from relay.names import TableName
from relay.outcome import Publisher
from relay.plugins import make_publisher
from relay.scan import Scan
from relay.settings import Settings
from relay.settlement import Settlement
from relay.store.claim import Claim, Claiming, Limits
from relay.store.connection import connect, resolve
from relay.store.settle import Settling
from relay.worker.registration import Registration
from relay.worker.state import Hold


@dataclass(frozen=True)
class Plan:
    events: int = 100_000
    keys: int = 20_000
    payload_bytes: int = 200


@dataclass(frozen=True)
class Figure:
    """One measured drain."""

    name: str
    events: int
    cost: Cost
    ceiling: float | None = None  # events per second of the raw loop in the same run

    @property
    def rate(self) -> float:
        return self.events / self.cost.seconds

    def as_dict(self) -> dict[str, Any]:
        micro = 1e6 / self.events
        return {
            "name": self.name,
            "events": self.events,
            "seconds": round(self.cost.seconds, 3),
            "events_per_second": round(self.rate),
            "ratio_of_raw_loop": round(self.rate / self.ceiling, 2) if self.ceiling else None,
            "relay_cpu_us_per_event": round(self.cost.relay_cpu * micro, 1),
            "database_cpu_us_per_event": (
                None if self.cost.database_cpu is None else round(self.cost.database_cpu * micro, 1)
            ),
            "peak_rss_mib": round(self.cost.peak_rss_bytes / 2**20, 1),
        }


def run_bench(settings: Settings, plan: Plan, progress: Callable[[str], None]) -> dict[str, Any]:
    """The raw loop, the relay without a broker, and the relay with the publisher of the settings."""
    url = settings.database_url.get_secret_value()
    with bench_outbox(url) as name, connect(url, "bench") as conn:
        mine = settings.model_copy(update={"table": f"{name.schema}.{name.table}"})
        postmaster = local_postmaster(conn.info.backend_pid)

        def drained(title: str, drain: Callable[[], None]) -> Cost:
            progress(f"filling {plan.events:,} events for: {title}")
            fill_outbox(conn, name, plan.events, plan.keys, plan.payload_bytes)
            progress(title)
            with measured(postmaster, lambda: _wait_for_ended_backends(conn)) as cost:
                drain()
            _must_be_empty(conn, name, title)
            return cost

        raw = Figure(
            "raw claim-and-settle loop", plan.events, drained("raw loop", lambda: _raw_loop(mine, url, name))
        )
        figures = [raw]
        memory = drained("relay, no broker", lambda: _relay(mine, MemoryPublisher({"discard": True})))
        figures.append(Figure("relay, no broker", plan.events, memory, raw.rate))
        if settings.publisher not in ("memory", "stdout"):
            publisher = make_publisher(settings)
            try:
                cost = drained(f"relay to {settings.publisher}", lambda: _relay(mine, publisher))
            finally:
                publisher.close()
            figures.append(Figure(f"relay to {settings.publisher}", plan.events, cost, raw.rate))
        progress(f"{settings.publisher}: the publisher alone, and its bare client")
        client = client_figure(settings, plan.events, plan.payload_bytes)
    return {
        "plan": asdict(plan),
        "completion": settings.completion,
        "batch_size": settings.batch_size,
        "figures": [figure.as_dict() for figure in figures],
        "client": client,
    }


def _raw_loop(settings: Settings, url: str, name: TableName) -> None:
    """Claim and settle from one thread, two claims in flight, with nothing in between."""
    with (
        connect(url, "raw") as claiming_conn,
        connect(url, "raw", synchronous_commit="off") as settling_conn,
    ):
        table = resolve(claiming_conn, name)
        claiming = Claiming(table, "bench", settings.destination, settings.lease_seconds)
        settling = Settling(table, "bench", settings.completion)
        scan, limits = Scan(), Limits(settings.batch_size, settings.claim_bytes)
        flying: list[Claim] = []
        while True:
            claim = claiming.claim(claiming_conn, scan, limits).claim
            if claim:
                flying.append(claim)
            if not flying:
                return
            if len(flying) > 1 or claim is None:
                first = flying.pop(0)
                settling.settle(settling_conn, first, [Settlement("complete")] * len(first.events))


def _relay(settings: Settings, publisher: Publisher) -> None:
    Registration(settings, publisher, Hold(), Metrics()).run(until_empty=True)


def _wait_for_ended_backends(conn: Connection[Any]) -> None:
    """The server counts a backend's time when it has ended."""
    deadline = monotonic() + 5
    while monotonic() < deadline:
        row = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE 'outbox-relay %' AND application_name <> 'outbox-relay bench'"
        ).fetchone()
        if row and row[0] == 0:
            break
        sleep(0.01)
    sleep(0.5)  # gone from the view, the process may still be ending


def _must_be_empty(conn: Connection[Any], name: TableName, title: str) -> None:
    table = resolve(conn, name)
    row = conn.execute(
        f"SELECT count(*) FROM {table.name} WHERE completed_at IS NULL"  # the bench's own, safe name
    ).fetchone()
    if row and row[0]:
        raise RelayError(f"{title}: {row[0]} events were left behind")
