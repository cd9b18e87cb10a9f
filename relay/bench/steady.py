"""The steady stage of a bench: a writer commits single events at a rate, the relay keeps up.

Latency is counted from the writer's acknowledgement of the commit to the return of the publisher, and once
more from the moment the INSERT was sent. All times are of one clock, this machine's CLOCK_MONOTONIC.

Where a transaction is held open, a backlog is drained at the end: all that the load has left is still there.
"""

import tempfile
from array import array
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from psycopg import sql

from relay.bench.checker import Verdict, check
from relay.bench.child import Done
from relay.bench.child import main as child_main
from relay.bench.figures import costs, histogram, latency, pace
from relay.bench.journal import Entry, merged
from relay.bench.plan import Plan
from relay.bench.processes import Child, children
from relay.bench.stage import Site, a_place, found_by, held_transaction, jobs_of
from relay.bench.table import add_backlog, live_positions
from relay.bench.writer import Commits, Load
from relay.bench.writer import main as writer_main
from relay.errors import RelayError
from relay.store.claim_sql import FRESH, LATER
from relay.store.sqltext import fill

CATCH_UP_SECONDS = 60.0
# The load runs for so long before anything counts: clients connect, caches fill.
WARM_UP_SECONDS = 2.0
SLICES = 20
SIZES = "SELECT pg_table_size(%s), pg_indexes_size(%s)"
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
            sizes = _Sizes(site, plan.seconds)
            commits: list[Commits] = writer.receive(plan.seconds + CATCH_UP_SECONDS, sizes.look)
            _wait_until_published(site)
            after, relay_cpu = site.meter.read(), _cpu(processes) - relay_before
            writer_cpu = writer.cpu() - writer_before
            backlog = range(0)
            if plan.held_transaction:
                backlog = add_backlog(site.conn, site.name, plan)
                _wait_until_published(site, backlog.start)
            for process in processes:
                process.send("stop")
            done: list[Done] = [process.receive(CATCH_UP_SECONDS) for process in processes]
        entries = merged(job.journal for job in jobs)
        committed = {position for each in commits for position in each.positions} | set(backlog)
        left = live_positions(site.conn, site.name)
        verdict = check(title, site.broker.source, committed, left, found_by(jobs, done, entries, place))
    rss = max((each.peak_rss for each in done if each.peak_rss), default=None)
    cost = site.meter.cost(before, after, relay_cpu, rss, besides=writer_cpu)
    figure = _figure(plan, commits, entries, before.at, sizes.seen)
    if backlog:
        behind = since_position(entries, backlog.start)
        figure["backlog_behind_it"] = {
            "events": len(backlog),
            "events_per_second": round(pace(behind, after.at).rate),
        }
    return figure | costs(cost, figure["events"]), verdict


def since_position(entries: Sequence[Entry], first: int) -> list[Entry]:
    """The batches of what was written from this position on; one that delivered nothing is none of them."""
    return [entry for entry in entries if entry.positions and entry.positions[0] >= first]


def _figure(
    plan: Plan,
    commits: Sequence[Commits],
    entries: Sequence[Entry],
    since: float,
    sizes: Sequence[tuple[float, int, int]],
) -> dict[str, Any]:
    """Of what was committed since then and confirmed; what was not, the check counts as lost."""
    confirmed: dict[int, float] = {}
    for entry in entries:
        for position in entry.positions:
            confirmed.setdefault(position, entry.at)
    from_commit, from_send, acknowledged = array("d"), array("d"), array("d")
    for each in commits:
        for position, sent, committed in zip(each.positions, each.sent, each.acknowledged, strict=True):
            at = confirmed.get(position)
            if committed >= since and at is not None:
                acknowledged.append(committed)
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
        "over_time": _over_time(acknowledged, from_commit, since, sizes),
    }


def _over_time(
    acknowledged: "array[float]",
    latencies: "array[float]",
    since: float,
    sizes: Sequence[tuple[float, int, int]],
) -> list[dict[str, Any]]:
    """Latency in equal slices of the time, with the sizes of the table at the end of each."""
    if not sizes:
        return []
    width = (sizes[-1][0] - since) / len(sizes)
    slices: list[list[float]] = [[] for _ in sizes]
    for at, seconds in zip(acknowledged, latencies, strict=True):
        slices[min(int((at - since) / width), len(slices) - 1)].append(seconds)
    return [
        {
            "until_second": round(at - since, 1),
            "commit_to_confirm_ms": latency(values),
            "table_bytes": table,
            "index_bytes": indexes,
        }
        for values, (at, table, indexes) in zip(slices, sizes, strict=True)
    ]


class _Sizes:
    """Of the outbox, at the ends of equal slices of the time."""

    def __init__(self, site: Site, seconds: float) -> None:
        self._site = site
        self._step = seconds / SLICES
        self._next = monotonic() + self._step
        self.seen: list[tuple[float, int, int]] = []

    def look(self) -> None:
        if monotonic() < self._next or len(self.seen) == SLICES:
            return
        row = self._site.conn.execute(
            SIZES, [sql.Identifier(*self._site.name.parts()).as_string(None)] * 2
        ).fetchone()
        assert row is not None
        self.seen.append((monotonic(), *row))
        self._next += self._step


def _cpu(processes: Sequence[Child]) -> float:
    return sum(process.cpu() for process in processes)


def _wait_for_workers(site: Site, number: int) -> None:
    deadline = monotonic() + CATCH_UP_SECONDS
    alive = fill("SELECT count(*) >= %s FROM {workers} WHERE status = 'alive'", site.name)
    while site.conn.execute(alive, [number]).fetchone() != (True,):
        if monotonic() > deadline:
            raise RelayError("the bench's relays did not register")
        sleep(0.02)


def _wait_until_published(site: Site, first: int = 0) -> None:
    """All from this position on. By the indexes: a held transaction keeps the table full of what is gone."""
    deadline = monotonic() + CATCH_UP_SECONDS
    lanes = " OR ".join(
        f"EXISTS (SELECT FROM {{outbox}} o WHERE {lane} AND o.id >= {first})" for lane in (FRESH, LATER)
    )
    some = fill(f"SELECT {lanes}", site.name)
    while site.conn.execute(some).fetchone() == (True,):
        if monotonic() > deadline:
            raise RelayError("the relay did not catch up with the steady load: try a lower --rate")
        sleep(0.05)
