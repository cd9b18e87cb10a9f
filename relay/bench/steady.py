"""The steady stage of a bench: a writer commits single events at a rate, the relay keeps up.

Latency is counted from the writer's acknowledgement of the commit to the return of the publisher, and once
more from the moment the INSERT was sent. All times are of one clock, this machine's CLOCK_MONOTONIC.
"""

import tempfile
from array import array
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from relay.bench.checker import Verdict, check
from relay.bench.child import Done
from relay.bench.child import main as child_main
from relay.bench.figures import costs, histogram, latency
from relay.bench.journal import Entry, merged
from relay.bench.plan import Plan
from relay.bench.processes import Child, children
from relay.bench.stage import Site, a_place, found_by, held_transaction, jobs_of
from relay.bench.table import live_positions
from relay.bench.writer import Commits, Load
from relay.bench.writer import main as writer_main
from relay.errors import RelayError
from relay.store.sqltext import fill

CATCH_UP_SECONDS = 60.0
# The load runs for so long before anything counts: clients connect, caches fill.
WARM_UP_SECONDS = 2.0
INSERT = """
INSERT INTO {outbox} (partition_key, event_type, payload) VALUES (%s, %s, %s::jsonb) RETURNING id
"""


def steady(site: Site, plan: Plan) -> tuple[dict[str, Any], Verdict]:
    title = f"steady load, {plan.rate:g}/s"
    site.conn.execute(fill("TRUNCATE {outbox}, {archive}", site.name))
    load = Load(site.url, fill(INSERT, site.name), replace(plan, seconds=plan.seconds + WARM_UP_SECONDS))
    with (
        tempfile.TemporaryDirectory(prefix="relay-bench-") as directory,
        a_place(site, "relay") as place,
        held_transaction(site.url) if plan.held_transaction else nullcontext(),
        children(writer_main, [load]) as (writer,),
    ):
        jobs = jobs_of(site, plan, "relay", Path(directory), place, until_empty=False)
        with children(child_main, jobs) as processes:
            for process in processes:
                process.send("go")
            _wait_for_workers(site, plan.workers)
            writer.send("go")
            sleep(WARM_UP_SECONDS)
            before, relay_before, writer_before = site.meter.read(), _cpu(processes), writer.cpu()
            commits: list[Commits] = writer.receive(plan.seconds + CATCH_UP_SECONDS)
            _wait_until_published(site)
            after, relay_cpu = site.meter.read(), _cpu(processes) - relay_before
            writer_cpu = writer.cpu() - writer_before
            for process in processes:
                process.send("stop")
            done: list[Done] = [process.receive(CATCH_UP_SECONDS) for process in processes]
        entries = merged(job.journal for job in jobs)
        committed = {position for each in commits for position in each.positions}
        left = live_positions(site.conn, site.name)
        verdict = check(title, site.broker.source, committed, left, found_by(jobs, done, entries, place))
    rss = max((each.peak_rss for each in done if each.peak_rss), default=None)
    cost = site.meter.cost(before, after, relay_cpu, rss, besides=writer_cpu)
    figure = _figure(plan, commits, entries, before.at)
    return figure | costs(cost, figure["events"]), verdict


def _figure(plan: Plan, commits: Sequence[Commits], entries: Sequence[Entry], since: float) -> dict[str, Any]:
    """Of what was committed since then."""
    confirmed: dict[int, float] = {}
    for entry in entries:
        for position in entry.positions:
            confirmed.setdefault(position, entry.at)
    from_commit, from_send, acknowledged = [], [], array("d")
    for each in commits:
        for position, sent, committed in zip(each.positions, each.sent, each.acknowledged, strict=True):
            if committed < since:
                continue
            acknowledged.append(committed)
            if (at := confirmed.get(position)) is not None:
                from_commit.append(at - committed)
                from_send.append(at - sent)
    took = max(acknowledged, default=0.0) - min(acknowledged, default=0.0)
    return {
        "rate": plan.rate,
        "seconds": round(took, 1),
        "warm_up_seconds": WARM_UP_SECONDS,
        "events": len(acknowledged),
        "events_per_second": round((len(acknowledged) - 1) / took, 1) if took else None,
        "commit_to_confirm_ms": latency(from_commit),
        "insert_to_confirm_ms": latency(from_send),
        "histogram_ms": histogram(from_commit),
    }


def _cpu(processes: Sequence[Child]) -> float:
    return sum(process.cpu() for process in processes)


def _wait_for_workers(site: Site, number: int) -> None:
    deadline = monotonic() + CATCH_UP_SECONDS
    alive = fill("SELECT count(*) >= %s FROM {workers} WHERE status = 'alive'", site.name)
    while site.conn.execute(alive, [number]).fetchone() != (True,):
        if monotonic() > deadline:
            raise RelayError("the bench's relays did not register")
        sleep(0.02)


def _wait_until_published(site: Site) -> None:
    deadline = monotonic() + CATCH_UP_SECONDS
    some = fill("SELECT EXISTS (SELECT FROM {outbox} WHERE completed_at IS NULL)", site.name)
    while site.conn.execute(some).fetchone() == (True,):
        if monotonic() > deadline:
            raise RelayError("the relay did not catch up with the steady load: try a lower --rate")
        sleep(0.05)
