"""One stage of a bench: processes drain what was filled in, and are checked.

Whatever a stage starts or makes is gone when it ends, also by an exception.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import Connection

from relay.bench.brokers import Broker, Place
from relay.bench.checker import Found, Verdict, check
from relay.bench.child import Done, Job
from relay.bench.child import main as child_main
from relay.bench.figures import Figure, pace
from relay.bench.journal import Entry, merged
from relay.bench.measure import Meter
from relay.bench.plan import KEY_TYPE, Plan
from relay.bench.processes import children
from relay.bench.table import fill_outbox, live_positions
from relay.errors import RelayError
from relay.names import TableName
from relay.settings import Settings
from relay.store.connection import connect

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
    progress: Callable[[str], None]


def drain(site: Site, plan: Plan, does: Any, title: str) -> tuple[Figure, Verdict | None]:
    """Fill a backlog, let the processes drain it, and check what became of it."""
    committed = fill_outbox(site.conn, site.name, plan)
    with (
        tempfile.TemporaryDirectory(prefix="relay-bench-") as directory,
        a_place(site, does) as place,
        held_transaction(site.url) if plan.held_transaction else nullcontext(),
    ):
        stop_after = plan.events // plan.workers if plan.backlog > plan.events else None
        jobs = jobs_of(site, plan, does, Path(directory), place, stop_after=stop_after)
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
        site.progress(f"{title}: done at {figure.rate:,.0f} events/s; reading back what arrived")
        return figure, check(title, source, committed, left, found_by(jobs, done, entries, place))


@contextmanager
def a_place(site: Site, does: str) -> Iterator[Place | None]:
    if does != "relay":
        yield None
        return
    with site.broker.place() as place:
        yield place


def jobs_of(
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
def held_transaction(url: str) -> Iterator[None]:
    """A transaction that keeps every row version from being cleaned up."""
    with connect(url, "bench holder", idle_in_transaction_session_timeout="0") as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT pg_current_xact_id()")
        yield
        conn.execute("ROLLBACK")


def found_by(
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
