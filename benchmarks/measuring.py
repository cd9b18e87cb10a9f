"""One run of one contender: set up, measured, checked, taken down.

Every run has a PostgreSQL of its own; the broker is shared and warm. A drain is timed from the first message
in the broker's log to the last, so that nobody's start counts: not a JVM's, not an interpreter's. Latency is
the time from the writer's commit being acknowledged to the end of the millisecond in which the broker
appended the message.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks.accounting import Accounting, Usage
from benchmarks.contenders import KEYS, PAYLOAD_BYTES, Contender, Scene, end
from benchmarks.graphile import Graphile
from benchmarks.servers import Broker, postgres
from benchmarks.topic import Arrivals, Topic
from relay.bench.figures import latency
from relay.bench.plan import Plan
from relay.bench.processes import children
from relay.bench.writer import Commits, Load
from relay.bench.writer import main as writer_main
from relay.demo.processes import ServerError

DRAIN_SECONDS = 600.0
START_SECONDS = 120.0
WARM_UP_SECONDS = 5.0
MILLISECOND = 0.001
INVOLVED = ("contender", "database", "broker")


@dataclass(frozen=True)
class Run:
    """What one run gave; `figures` are ready to be printed."""

    name: str
    figures: dict[str, Any]
    noise: float
    clean: bool


@contextmanager
def scene_of(contender: Contender, version: int, broker: Broker) -> Iterator[tuple[Scene, Topic, int]]:
    """A new server with the contender's tables, an empty topic, and the postmaster's id."""
    with ExitStack() as stack:
        server = stack.enter_context(postgres(version, logical=contender.logical))
        topic = Topic(broker.address, f"benchmark-{secrets.token_hex(4)}")
        stack.callback(topic.delete)
        scene = Scene(server, broker.address, topic.name, stack)
        contender.prepare(scene)
        yield scene, topic, server.pid


def drain(contender: Contender, version: int, broker: Broker, events: int) -> Run:
    with scene_of(contender, version, broker) as (scene, topic, postmaster):
        committed = contender.fill(scene, events)
        with psycopg.connect(scene.url, autocommit=True) as conn:
            conn.execute("CHECKPOINT")
        started = time.time()
        processes = contender.start(scene)
        families = {
            "contender": [process.pid for process in processes],
            "database": [postmaster],
            "broker": [broker.pid],
        }
        with Accounting(families) as accounting:
            if contender.to_kafka:
                topic.wait_for(events, DRAIN_SECONDS, lambda: _alive(scene, processes))
                time.sleep(0.3)
            else:
                for process in processes:
                    process.wait(DRAIN_SECONDS)
        for process in processes:
            end(process)
        if isinstance(contender, Graphile):
            return _queue_figures(contender, scene, accounting, started, events)
        arrivals = topic.read()
    verdict = arrivals.verdict(contender.name, committed)
    at = sorted(arrivals.at)
    usage = accounting.between(at[0], at[-1] + MILLISECOND)
    took, half = at[-1] - at[0] + MILLISECOND, at[len(at) // 2]
    second_half = _micro(accounting.between(half, at[-1] + MILLISECOND), events / 2)
    figures = {
        "events": events,
        "events_per_second": round(events / took),
        "second_half_events_per_second": round(events / 2 / (at[-1] - half + MILLISECOND)),
        "seconds_to_first_event": round(at[0] - started, 2),
        **_costs(usage, accounting, events),
        "second_half_cpu_us_per_event_together": round(sum(second_half[name] for name in INVOLVED), 1),
        "check": verdict.as_dict(),
    }
    return Run(contender.name, figures, usage.noise, verdict.clean)


def _queue_figures(
    contender: Graphile, scene: Scene, accounting: Accounting, started: float, events: int
) -> Run:
    """Nothing to read back: its own count, and that its table is empty."""
    results = contender.results(scene)
    done, left = sum(each["jobs"] for each in results), contender.left(scene)
    first, last = min(each["first"] for each in results), max(each["last"] for each in results)
    usage = accounting.between(first, last)
    check = {"found": done, "lost": events - done - left, "left": left, "inverted": None}
    figures = {
        "events": done,
        "events_per_second": round(done / (last - first)),
        "second_half_events_per_second": None,
        "seconds_to_first_event": round(first - started, 2),
        **_costs(usage, accounting, events),
        "second_half_cpu_us_per_event_together": None,
        "check": check,
    }
    return Run(contender.name, figures, usage.noise, done == events and not left)


def steady(contender: Contender, version: int, broker: Broker, rate: float, seconds: float) -> Run:
    """Single commits at a rate, by a writer process of its own, after a warm-up at the same rate."""
    plan = Plan(keys=KEYS, payload_bytes=PAYLOAD_BYTES, rate=rate, seconds=seconds + WARM_UP_SECONDS)
    with scene_of(contender, version, broker) as (scene, topic, postmaster):
        processes = contender.start(scene)
        # One event to know that it publishes.
        with psycopg.connect(scene.url, autocommit=True) as conn:
            row = conn.execute(contender.insert.encode(), ["order:0", "OrderPaid", "{}"]).fetchone()
            assert row is not None
        topic.wait_for(1, START_SECONDS, lambda: _alive(scene, processes))
        families = {
            "contender": [process.pid for process in processes],
            "database": [postmaster],
            "broker": [broker.pid],
        }
        load = Load(scene.url, contender.insert, plan)
        with children(writer_main, [load]) as (writer,):
            offset = time.time() - time.monotonic()
            with Accounting(families | {"writer": [writer.pid]}) as accounting:
                began = time.time() + WARM_UP_SECONDS
                writer.send("go")
                commits: list[Commits] = writer.receive(plan.seconds + 60)
                ended = time.time()
                committed = {row[0], *(position for each in commits for position in each.positions)}
                topic.wait_for(len(committed), 60.0, lambda: _alive(scene, processes))
        for process in processes:
            end(process)
        arrivals = topic.read()
    verdict = arrivals.verdict(contender.name, committed)
    usage = accounting.between(began, ended)
    times = _latencies(arrivals, commits, offset, began)
    figures = {
        "rate": rate,
        "events": len(times),
        "events_per_second": round(len(times) / (ended - began), 1),
        "latency_ms": latency(times),
        **_costs(usage, accounting, len(times)),
        "check": verdict.as_dict(),
    }
    return Run(f"{contender.name} at {rate:g}/s", figures, usage.noise, verdict.clean)


def _latencies(arrivals: Arrivals, commits: list[Commits], offset: float, since: float) -> list[float]:
    arrived: dict[int, float] = {}
    for found, at in zip(arrivals.found, arrivals.at, strict=True):
        arrived.setdefault(found.position, at + MILLISECOND)
    return [
        arrived[position] - (acknowledged + offset)
        for each in commits
        for position, acknowledged in zip(each.positions, each.acknowledged, strict=True)
        if acknowledged + offset >= since and position in arrived
    ]


def _costs(usage: Usage, accounting: Accounting, events: int) -> dict[str, Any]:
    micro = _micro(usage, events)
    return {
        "cpu_us_per_event": {name: micro[name] for name in INVOLVED},
        "cpu_us_per_event_together": round(sum(micro[name] for name in INVOLVED), 1),
        "cpu_us_per_event_of_benchmark": round(micro["benchmark"] + micro.get("writer", 0.0), 1),
        "others_share_of_cpu": round(usage.noise, 3),
        "peak_rss_mib": round(accounting.peak["contender"] / 2**20, 1),
    }


def _micro(usage: Usage, events: float) -> dict[str, float]:
    """Microseconds of CPU per event, by who used them."""
    return {name: round(seconds * 1e6 / events, 1) for name, seconds in usage.cpu.items()}


def _alive(scene: Scene, processes: list[Any]) -> None:
    for process in processes:
        if process.poll() not in (None, 0):
            logs = "\n".join(
                path.read_text(errors="replace")[-2000:] for path in scene.directory.glob("*.log")
            )
            raise ServerError(f"A process under test ended with {process.returncode}:\n{logs}")
