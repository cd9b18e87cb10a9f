"""One stage of a bench: processes drain what was filled in, or keep up with a writer, and are checked.

Whatever a stage starts or makes is gone when it ends, also by an exception.
"""

import json
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from psycopg import Connection

from relay.bench.brokers import Broker, Place
from relay.bench.checker import Found, Verdict, check
from relay.bench.child import Done, Job
from relay.bench.child import main as child_main
from relay.bench.figures import Figure, costs, histogram, latency, pace
from relay.bench.journal import Entry, merged
from relay.bench.measure import Meter
from relay.bench.plan import KEY_TYPE, Plan
from relay.bench.processes import children
from relay.bench.table import fill_outbox, live_positions
from relay.bench.writer import Commits, Load
from relay.bench.writer import main as writer_main
from relay.errors import RelayError
from relay.names import TableName
from relay.settings import Settings
from relay.store.connection import connect
from relay.store.sqltext import fill

CATCH_UP_SECONDS = 60.0
NO_BROKER = "what the publisher reported"


@dataclass(frozen=True)
class Site:
    """What all stages of a bench share."""

    conn: Connection[Any]
    name: TableName
    settings: Settings
    broker: Broker
    meter: Meter
    url: str


def drain(site: Site, plan: Plan, does: Any, title: str) -> tuple[Figure, Verdict | None]:
    """Fill a backlog, let the processes drain it, and check what became of it."""
    committed = fill_outbox(site.conn, site.name, plan)
    with (
        tempfile.TemporaryDirectory(prefix="relay-bench-") as directory,
        _place(site, does) as place,
        _held(site.url) if plan.held_transaction else nullcontext(),
    ):
        stop_after = plan.events // plan.workers if plan.backlog > plan.events else None
        jobs = _jobs(site, plan, does, Path(directory), place, stop_after=stop_after)
        with children(child_main, jobs) as processes:
            before = site.meter.read()
            for process in processes:
                process.send("go")
            done: list[Done] = [process.receive() for process in processes]
        site.meter.settle()
        after = site.meter.read()
        entries = merged(job.journal for job in jobs)
        course = pace(entries, min(each.started for each in done))
        rss = max((each.peak_rss for each in done if each.peak_rss), default=None)
        cost = site.meter.cost(before, after, sum(each.cpu for each in done), rss)
        left = live_positions(site.conn, site.name)
        if stop_after is None and len(left) > (plan.poison_backlog + 1 if plan.poison_backlog else 0):
            raise RelayError(f"{title}: {len(left)} events were left behind")
        figure = Figure(title, course, cost, plan.workers)
        if does == "raw loop":  # which publishes nothing
            return figure, None
        source = site.broker.source if does == "relay" else NO_BROKER
        return figure, check(title, source, committed, left, _found(jobs, done, entries, place))


def steady(site: Site, plan: Plan) -> tuple[dict[str, Any], Verdict]:
    """Single commits at a rate; latency from the writer's acknowledgement to the publisher's return."""
    title = f"steady load, {plan.rate:g}/s"
    site.conn.execute(fill("TRUNCATE {outbox}, {archive}", site.name))
    with (
        tempfile.TemporaryDirectory(prefix="relay-bench-") as directory,
        _place(site, "relay") as place,
        _held(site.url) if plan.held_transaction else nullcontext(),
        children(writer_main, [Load(site.url, site.name, plan)]) as (writer,),
    ):
        jobs = _jobs(site, plan, "relay", Path(directory), place, until_empty=False)
        with children(child_main, jobs) as processes:
            for process in processes:
                process.send("go")
            _wait_for_workers(site, plan.workers)
            before = site.meter.read()
            writer.send("go")
            commits: list[Commits] = writer.receive(plan.seconds + CATCH_UP_SECONDS)
            _wait_until_published(site)
            after = site.meter.read()
            for process in processes:
                process.send("stop")
            done: list[Done] = [process.receive(CATCH_UP_SECONDS) for process in processes]
        entries = merged(job.journal for job in jobs)
        committed = {position for each in commits for position in each.positions}
        left = live_positions(site.conn, site.name)
        found = _found(jobs, done, entries, place)
        verdict = check(title, site.broker.source, committed, left, found)
    rss = max((each.peak_rss for each in done if each.peak_rss), default=None)
    cost = site.meter.cost(before, after, sum(each.cpu for each in done), rss)
    return _steady_figure(plan, commits, entries, costs(cost, len(committed))), verdict


def _steady_figure(
    plan: Plan, commits: Sequence[Commits], entries: Sequence[Entry], per_event: dict[str, Any]
) -> dict[str, Any]:
    confirmed: dict[int, float] = {}
    for entry in entries:
        for position in entry.positions:
            confirmed.setdefault(position, entry.at)
    from_commit, from_send, acknowledged = [], [], array("d")
    for each in commits:
        acknowledged.extend(each.acknowledged)
        for position, sent, committed in zip(each.positions, each.sent, each.acknowledged, strict=True):
            if (at := confirmed.get(position)) is not None:
                from_commit.append(at - committed)
                from_send.append(at - sent)
    took = max(acknowledged) - min(acknowledged)
    return {
        "rate": plan.rate,
        "seconds": round(took, 1),
        "events": len(acknowledged),
        "events_per_second": round((len(acknowledged) - 1) / took, 1) if took else None,
        "commit_to_confirm_ms": latency(from_commit),
        "insert_to_confirm_ms": latency(from_send),
        "histogram_ms": histogram(from_commit),
        **per_event,
    }


@contextmanager
def _place(site: Site, does: str) -> Iterator[Place | None]:
    if does != "relay":
        yield None
        return
    with site.broker.place() as place:
        yield place


def _jobs(
    site: Site,
    plan: Plan,
    does: Any,
    directory: Path,
    place: Place | None,
    *,
    until_empty: bool = True,
    stop_after: int | None = None,
) -> list[Job]:
    update: dict[str, Any] = {"table": f"{site.name.schema}.{site.name.table}"}
    if place is not None:
        update["destination"] = place.name
    if plan.poison_backlog:
        update["on_exhausted"] = "block"
    settings = site.settings.model_copy(update=update)
    return [
        Job(settings, does, directory, number, plan.workers, until_empty, stop_after)
        for number in range(plan.workers)
    ]


@contextmanager
def _held(url: str) -> Iterator[None]:
    """A transaction that keeps every row version from being cleaned up."""
    with connect(url, "bench holder", idle_in_transaction_session_timeout="0") as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT pg_current_xact_id()")
        yield
        conn.execute("ROLLBACK")


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


def _found(
    jobs: Sequence[Job], done: Sequence[Done], entries: Sequence[Entry], place: Place | None
) -> Iterator[Found]:
    """What was published, as far from the relay's own word as the publisher allows."""
    if place is not None and jobs[0].settings.publisher in ("kafka", "rabbitmq"):
        return place.messages()
    if place is not None and jobs[0].settings.publisher == "stdout":
        return _in_time(entries, (found for job in jobs for found in _printed(job.printed)))
    if any(each.kept is not None for each in done):
        return _in_time(entries, (Found(*pair) for each in done for pair in each.kept or ()))
    return (
        Found(f"{KEY_TYPE}:{key}", position)
        for entry in entries
        for position, key in zip(entry.positions, entry.keys, strict=True)
    )


def _printed(path: Path) -> Iterator[Found]:
    with path.open() as lines:
        for line in lines:
            headers = json.loads(line)["headers"]
            yield Found(headers["partition_key"], int(headers["position"]))


def _in_time(entries: Sequence[Entry], found: Iterable[Found]) -> Iterator[Found]:
    """What several workers kept, in the order of their batches; within one batch as it was kept."""
    at = {position: number for number, entry in enumerate(entries) for position in entry.positions}
    return iter(sorted(found, key=lambda each: at.get(each.position, len(entries))))
