"""What can happen to relays, their database and their broker: one small class for each kind of fault.

A fault strikes, lasts, and has healed when `strike` returns. It returns what it struck, or None where there
was nothing to strike: then it did not happen.
"""

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from time import monotonic, sleep
from typing import Literal, Protocol

import psycopg

from relay.demo.postgres import PostgresServer
from tests.faults.arena import Operated, Place
from tests.faults.failpoints import ACTIONS, STEPS, Action, Failpoints, Step
from tests.faults.fleet import Fleet
from tests.servers.proxy import Direction, TcpProxy

PATIENCE = 20.0


def comes_true(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Wait for something to strike."""
    deadline = monotonic() + seconds
    while not condition():
        if monotonic() > deadline:
            return False
        sleep(0.02)
    return True


class Stage(Protocol):
    """What a run has that can be struck."""

    database: str
    postgres: Operated[PostgresServer]
    wires: Sequence[TcpProxy]  # between each relay and the database
    place: Place
    fleet: Fleet
    failpoints: Failpoints
    lease_seconds: float
    stale_seconds: float


@dataclass(frozen=True)
class Struck:
    """`pids` are the processes it struck themselves, if any."""

    what: str
    pids: tuple[int, ...] = ()


class Fault(ABC):
    kind: str

    @abstractmethod
    def strike(self, stage: Stage, dice: Random) -> Struck | None: ...


class Kill(Fault):
    kind = "SIGKILL"

    def strike(self, stage: Stage, dice: Random) -> Struck | None:
        process = stage.fleet.pick(dice).process
        if process.poll() is not None:
            return None
        process.kill()
        return Struck(self.kind, (process.pid,))


class Freeze(Fault):
    kind = "SIGSTOP beyond the lease"

    def strike(self, stage: Stage, dice: Random) -> Struck | None:
        process = stage.fleet.pick(dice).process
        if process.poll() is not None:
            return None
        process.send_signal(signal.SIGSTOP)
        sleep(stage.lease_seconds + dice.uniform(0.2, 1.5))
        process.send_signal(signal.SIGCONT)
        return Struck(self.kind, (process.pid,))


class Replace(Fault):
    kind = "SIGTERM"

    def strike(self, stage: Stage, dice: Random) -> Struck | None:
        process = stage.fleet.pick(dice).process
        if process.poll() is not None:
            return None
        process.terminate()
        with suppress(subprocess.TimeoutExpired):  # another fault may have frozen it
            process.wait(PATIENCE)
        return Struck(self.kind)


@dataclass
class AtStep(Fault):
    """A relay dies, freezes or dawdles at one step of its work; the latter two beyond the lease."""

    step: Step
    action: Action

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"{self.action} {self.step}"

    def strike(self, stage: Stage, dice: Random) -> Struck | None:
        points = stage.failpoints
        before = len(points.suffered())
        seconds = stage.lease_seconds + dice.uniform(0.2, 1.5)
        points.arm(self.step, self.action, seconds)
        if not comes_true(lambda: len(points.suffered()) > before):
            points.disarm()
            if len(points.suffered()) == before:
                return None
        victim = points.suffered()[before]
        if self.action != "kill":
            sleep(seconds)
        if self.action == "freeze":
            with suppress(ProcessLookupError):  # another fault may have killed it meanwhile
                os.kill(victim.pid, signal.SIGCONT)
        return Struck(self.kind, (victim.pid,))


class TerminateSessions(Fault):
    kind = "terminated database sessions"

    def strike(self, stage: Stage, dice: Random) -> Struck | None:
        whose = dice.choice(["", "claimer", "settler", "keeper"])
        with psycopg.connect(stage.database, autocommit=True) as conn:
            ended = conn.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity"
                " WHERE application_name LIKE %s ORDER BY random() LIMIT %s) victims",
                [f"outbox-relay {whose}%", dice.choice([1, 2, 100])],
            ).fetchone()
        return Struck(self.kind) if ended and ended[0] else None


@dataclass
class RestartPostgres(Fault):
    how: Literal["fast", "immediate"]

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"{self.how} restart of PostgreSQL"

    def strike(self, stage: Stage, dice: Random) -> Struck | None:
        stage.postgres.do(lambda server: server.restart(immediate=self.how == "immediate"))
        return Struck(self.kind)


@dataclass
class RestartBroker(Fault):
    how: Literal["orderly", "killed"]

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "restart of the broker" if self.how == "orderly" else "broker killed"

    def strike(self, stage: Stage, dice: Random) -> Struck | None:
        def restart(server: "Restartable") -> None:
            server.terminate() if self.how == "orderly" else server.kill()
            server.start()

        stage.place.server.do(restart)
        return Struck(self.kind)


class Restartable(Protocol):
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...


@dataclass
class Network(Fault):
    """The wires to the database (of one relay, or of all) or the one to the broker."""

    side: Literal["database", "broker"]
    how: Literal["cut", "stalled", "delayed"]

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"{self.how} connections to the {self.side}"

    def strike(self, stage: Stage, dice: Random) -> Struck | None:
        wires = [stage.place.proxy]
        if self.side == "database":
            wires = list(stage.wires) if dice.random() < 0.5 else [dice.choice(stage.wires)]
        if not comes_true(lambda: any(wire.open_connections for wire in wires)):
            return None
        for wire in wires:
            self._disturb(wire, dice)
        # Sometimes so short that only what is under way notices, sometimes beyond staleness and the lease.
        sleep(dice.choice([0.3, 1.0, stage.stale_seconds + 0.5, stage.lease_seconds + 0.5]))
        for wire in wires:
            wire.restore()
        return Struck(self.kind)

    def _disturb(self, wire: TcpProxy, dice: Random) -> None:
        directions: Sequence[Direction] = ("to_server", "to_client", "both")
        match self.how:
            case "cut":
                wire.cut()
            case "stalled":
                wire.stall(dice.choice(directions))
            case "delayed":
                wire.delay(dice.choice([0.02, 0.1, 0.4]))


NETWORK: Sequence[Literal["cut", "stalled", "delayed"]] = ("cut", "stalled", "delayed")
# Faults of one lane come one after another, those of different lanes at the same time.
LANES: dict[str, Callable[[], list[Fault]]] = {
    "processes": lambda: [Kill(), Freeze(), Replace()],
    "steps": lambda: [AtStep(step, action) for step in STEPS for action in ACTIONS],
    "database": lambda: [
        TerminateSessions(),
        RestartPostgres("fast"),
        RestartPostgres("immediate"),
        *(Network("database", how) for how in NETWORK),
    ],
    "broker": lambda: [
        RestartBroker("orderly"),
        RestartBroker("killed"),
        *(Network("broker", how) for how in NETWORK),
    ],
}
