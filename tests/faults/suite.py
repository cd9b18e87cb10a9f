"""One run of the fault suite: writers write, relays relay, faults strike; in the end everything is checked.

A run is made by its plan alone; what the machine makes of the timing differs from run to run, so a seed
brings back the plan of a failure, not always the failure.
"""

import itertools
import json
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from psycopg import sql

from relay.store.migrate import migrate
from tests.faults import audit
from tests.faults.arena import Arena
from tests.faults.checker import Evidence, check
from tests.faults.child import INJECTED, PUBLISHER
from tests.faults.failpoints import Failpoints
from tests.faults.faults import Fault, Struck, comes_true
from tests.faults.fleet import Fleet, log_records, tracebacks, worker_ends
from tests.faults.report import Plan, Report
from tests.faults.writers import DomainWriter
from tests.servers.proxy import TcpProxy
from tests.system.relays import ROOT, RelayProcess, wait_until

CLOCK = Path(__file__).parent / "clock"
WRITERS = 4
MAX_ATTEMPTS = 50
FAILURES = 0.2
LEASE_SECONDS = 5.0
STALE_SECONDS = 2.5
TIMING = {
    "lease_seconds": LEASE_SECONDS,
    "publish_seconds": 2.0,
    "heartbeat_seconds": 0.5,
    "stale_seconds": STALE_SECONDS,
    "grace_seconds": 20,
}
CALM_SECONDS = 120.0
TRIES = 5


def run(arena: Arena, plan: Plan) -> Report:
    directory = Path(tempfile.mkdtemp(prefix="outbox-relay-faults-"))
    with ExitStack() as stack:
        report = Run(arena, plan, directory, stack).report()
    if not report.problems:
        shutil.rmtree(directory)
    return report


class Run:
    """The stage of one run (see faults.Stage), and the conductor."""

    lease_seconds = LEASE_SECONDS
    stale_seconds = STALE_SECONDS

    def __init__(self, arena: Arena, plan: Plan, directory: Path, stack: ExitStack) -> None:
        self._plan = plan
        self._directory = directory
        self._stack = stack
        self._started = time.monotonic()
        self.postgres = arena.postgres
        self.database = self._make_database()
        self.place = arena.place(plan.broker)
        (directory / "failpoints").mkdir()
        self.failpoints = Failpoints(directory / "failpoints")
        port = self.postgres.server.port
        self.wires: Sequence[TcpProxy] = [
            stack.enter_context(TcpProxy("127.0.0.1", port)) for _ in range(plan.relays)
        ]
        self._clock = Random(plan.seed).choice([3600, -3600])
        self._struck: list[Struck] = []
        self._broken: list[BaseException] = []
        self.fleet = Fleet(plan.relays, self._start_relay)
        stack.callback(self.fleet.kill)
        self._writers = [
            DomainWriter(self.database, f"{plan.seed}-{number}", f"{plan.seed}-{number}")
            for number in range(WRITERS)
        ]

    def report(self) -> Report:
        self.fleet.start()
        for writer in self._writers:
            writer.start()
            self._stack.callback(writer.stop)
        wait_until(self._all_relay, what="every relay has registered")
        self._let_faults_strike()
        for writer in self._writers:
            writer.stop()
        self._wait_for_calm()
        drained = self.fleet.stop()
        return self._conclude(drained)

    def _make_database(self) -> str:
        name = f"faults_{self._plan.seed}_{self._plan.relays}_{time.monotonic_ns()}"
        with psycopg.connect(self.postgres.server.url(), autocommit=True) as conn:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        url = self.postgres.server.url(name)
        migrate(url)
        with psycopg.connect(url) as conn:
            conn.execute(f"ALTER TABLE outbox ALTER max_attempts SET DEFAULT {MAX_ATTEMPTS}")
            conn.execute("CREATE TABLE orders (id text PRIMARY KEY, changes int NOT NULL)")
            audit.install(conn)
        return url

    def _start_relay(self, slot: int) -> RelayProcess:
        options = self.place.options | {
            "failures": FAILURES,
            "failpoints": str(self._directory / "failpoints"),
        }
        environment = {}
        if slot == self._plan.relays - 1:
            path = f"{CLOCK}{os.pathsep}{ROOT}"
            environment = {"PYTHONPATH": path, "FAULTS_CLOCK": str(self._clock)}
        return RelayProcess(
            self.wires[slot].url(self.database),
            self._directory,
            environment=environment,
            publisher=PUBLISHER,
            destination=self.place.destination,
            publisher_options=json.dumps(options),
            batch_size=40,
            **TIMING,
        )

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database) as conn:
            return conn.execute(query).fetchall()

    def _all_relay(self) -> bool:
        alive = self._rows("SELECT (metadata ->> 'pid')::int FROM outbox_workers WHERE status = 'alive'")
        pids = self.fleet.pids()
        return len(pids) == self._plan.relays and set(pids) <= {row[0] for row in alive}

    def _relay_is_connected(self) -> bool:
        return any(wire.open_connections for wire in self.wires)

    def _let_faults_strike(self) -> None:
        lanes = [
            threading.Thread(target=self._lane, args=[name, faults], name=f"faults-{name}")
            for name, faults in self._plan.faults.items()
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        self.failpoints.disarm()
        if self._broken:
            raise self._broken[0]

    def _lane(self, name: str, faults: Sequence[Fault]) -> None:
        dice = Random(f"{self._plan.seed}-{self._plan.relays}-{name}")
        try:
            for fault in self._schedule(faults):
                comes_true(self._relay_is_connected)  # without one, a fault would strike nothing
                time.sleep(dice.uniform(0.1, 1.0))
                if struck := fault.strike(self, dice):
                    self._struck.append(struck)
        except BaseException as broken:  # noqa: BLE001 - told by the main thread
            self._broken.append(broken)

    def _schedule(self, faults: Sequence[Fault]) -> Iterator[Fault]:
        """Round and round, or until each has struck."""
        for _ in itertools.count() if self._plan.seconds else range(TRIES):
            for fault in faults:
                if self._plan.seconds and time.monotonic() > self._started + self._plan.seconds:
                    return
                if self._plan.seconds or all(struck.what != fault.kind for struck in self._struck):
                    yield fault

    def _wait_for_calm(self) -> None:
        """Everything that can be published is; what is not, by then, is a violation."""
        deadline = time.monotonic() + CALM_SECONDS
        query = "SELECT count(*) FROM outbox WHERE status IN ('pending', 'processing')"
        while self._rows(query) != [(0,)] and time.monotonic() < deadline:
            time.sleep(0.1)
        wait_until(self._all_relay, what="every relay is back")

    def _conclude(self, drained: Sequence[int]) -> Report:
        with psycopg.connect(self.database) as conn:
            changes = audit.changes(conn)
            leases = conn.execute("SELECT count(*) FROM outbox_leases").fetchone()
            rows = audit.rows(conn)
        evidence = Evidence(
            rows=rows,
            messages=self.place.messages(),
            changes=changes,
            acknowledged={event_id for writer in self._writers for event_id in writer.committed},
            leases_left=leases[0] if leases else 0,
            fates=self._fates({change.worker for change in changes}),
        )
        struck = Counter(struck.what for struck in self._struck)
        planned = [fault.kind for faults in self._plan.faults.values() for fault in faults]
        return Report(
            plan=self._plan,
            verdict=check(evidence),
            struck=struck,
            missed=[kind for kind in planned if not struck[kind] and self._plan.seconds is None],
            injected=sum(bool(change.error and change.error.startswith(INJECTED)) for change in changes),
            fenced=sum("the lease of generation" in r["message"] for r in log_records(self._directory)),
            clock_off=self._clock_off(),
            exits=self.fleet.ends,
            drained=drained,
            tracebacks=tracebacks(self._directory),
            seconds=time.monotonic() - self._started,
            logs=self._directory,
        )

    def _fates(self, workers: set[str]) -> dict[str, str]:
        """What befell each worker that something befell; a registration that ended has said why."""
        ends = worker_ends(self._directory)
        by_pid = {pid: struck.what for struck in self._struck for pid in struck.pids}
        fates = {}
        for worker in workers:
            pid = int(worker.split("-")[-2])
            if worker in ends and "declared dead" not in ends[worker]:
                fates[worker] = f"its database went away ({ends[worker].partition(';')[0]})"
            elif pid in by_pid:
                fates[worker] = by_pid[pid]
            elif worker in ends:
                fates[worker] = "was silent for too long"
        return fates

    def _clock_off(self) -> float:
        now = time.time()
        offs = [
            datetime.fromisoformat(record["time"]).timestamp() - now
            for record in log_records(self._directory)
        ]
        return max(offs, key=abs, default=0.0)
