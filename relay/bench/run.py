"""Runs the stages of a bench one after the other and gathers the figures."""

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from psycopg import Connection

from relay.bench.brokers import broker_of
from relay.bench.checker import Verdict
from relay.bench.client import client_figure
from relay.bench.figures import Figure, ratio
from relay.bench.local_processes import local_postmaster
from relay.bench.measure import Meter
from relay.bench.plan import Plan
from relay.bench.stage import Site, drain
from relay.bench.steady import steady
from relay.bench.table import bench_outbox
from relay.settings import Settings
from relay.store.connection import connect

RAW_LOOP = "raw claim-and-settle loop"
NO_BROKER = "relay, no broker"


def run_bench(settings: Settings, plan: Plan, progress: Callable[[str], None]) -> dict[str, Any]:
    """The ceilings, the drains and the steady load, each checked. The schema it uses is its own."""
    url = settings.database_url.get_secret_value()
    broker = broker_of(settings, plan)
    with bench_outbox(url) as name, connect(url, "bench") as conn:
        progress(f"in the schema {name.schema}, which is dropped at the end")
        postmaster = local_postmaster(conn.info.backend_pid, conn.info.host)
        meter = Meter(conn, name.schema or "", postmaster, broker.process)
        bench = _Bench(Site(conn, name, settings, broker, meter, url, progress), plan)
        bench.run()
        return {
            "machine": _machine(conn, postmaster, broker.process),
            "publisher": settings.publisher,
            "completion": settings.completion,
            "batch_size": settings.batch_size,
            "plan": asdict(plan),
            **bench.result(),
        }


class _Bench:
    def __init__(self, site: Site, plan: Plan) -> None:
        self._site = site
        self._plan = plan
        self._progress = site.progress
        self._figures: list[Figure] = []
        self._verdicts: list[Verdict] = []
        self._client: dict[str, Any] | None = None
        self._steady: dict[str, Any] | None = None

    def run(self) -> None:
        plan, to = self._plan, f"relay to {self._site.settings.publisher}"
        raw = client = None
        if plan.ceilings:
            raw = self._drain(plan.plain, "raw loop", RAW_LOOP, {})
            self._drain(plan.plain, "relay without a broker", NO_BROKER, {"raw_loop": raw.rate})
            self._progress("the publisher alone, and its bare client")
            self._client = client_figure(self._site.settings, plan, self._site.broker)
            if self._client:
                client = float(self._client["client_events_per_second"])
        rates = {"raw_loop": raw.rate if raw else None, "client": client}
        plain = self._drain(plan.plain, "relay", to, rates)
        if plan.trials:
            self._drain(plan, "relay", f"{to}: {plan.trials}", rates | {"plain": plain.rate})
        if plan.seconds:
            self._progress(f"steady load: {plan.rate:g} events/s for {plan.seconds:g} s")
            self._steady, verdict = steady(self._site, replace(plan, poison_backlog=0))
            self._verdicts.append(verdict)
            if behind := self._steady.get("backlog_behind_it"):
                behind["ratio_of_plain"] = ratio(behind["events_per_second"], plain.rate)

    def _drain(self, plan: Plan, does: Any, title: str, rates: dict[str, float | None]) -> Figure:
        self._progress(f"{title}: {plan.events:,} events, {plan.workers} process(es)")
        figure, verdict = drain(self._site, plan, does, title)
        shares = {name: ratio(figure.rate, rate) for name, rate in rates.items()}
        figure = replace(figure, ratios={name: share for name, share in shares.items() if share is not None})
        self._figures.append(figure)
        if verdict is not None:
            self._verdicts.append(verdict)
        return figure

    def result(self) -> dict[str, Any]:
        floor = self._client and self._client["client_one_message_ms"]
        if self._steady and self._steady["commit_to_confirm_ms"] and floor:
            self._steady["ratio_of_client"] = ratio(self._steady["commit_to_confirm_ms"]["p50"], floor["p50"])
        return {
            "figures": [figure.as_dict() for figure in self._figures],
            "client": self._client,
            "steady": self._steady,
            "checks": [verdict.as_dict() for verdict in self._verdicts],
            "clean": all(verdict.clean for verdict in self._verdicts),
        }


def _machine(conn: Connection[Any], postmaster: int | None, broker: int | None) -> dict[str, Any]:
    settings = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "wal_level")
    row = conn.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in settings)).fetchone()
    assert row is not None
    return {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "postgresql": dict(zip(settings, row, strict=True)),
        "database_is_local": postmaster is not None,
        "broker_is_local": broker is not None,
    }
