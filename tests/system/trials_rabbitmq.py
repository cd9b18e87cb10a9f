"""Trials against RabbitMQ: python -m tests.system.trials_rabbitmq [how many must bite] [seed]

Prints a log like docs/evidence/rabbitmq-trials.txt. A trial counts only if messages were on their way to
the broker when their connection was given up: `stranded` says how many.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from random import Random
from time import sleep

import pika

from publishers.rabbitmq import RabbitPublisher
from relay.event import Event
from relay.outcome import Delivered, Outcome
from relay.testing import Received
from tests.servers.proxy import TcpProxy
from tests.servers.rabbit_rig import RabbitRig
from tests.servers.rabbitmq import RabbitNode
from tests.system.trials import Fault, Trial, run_trials, tell, until_bitten

CONFIRM_SECONDS = 0.4
PAUSE = 0.05  # after a call in which not all was delivered, as the relay would make
_SHORT = ("stall both", "cut", "stall to server", "freeze", "stall to client", "drop", "delay and drop")
# A restart takes seconds, so it comes up less often.
ROUND = (*_SHORT, "restart", *_SHORT, "kill", "stall both", "freeze", "drop")


class PatientPublisher(RabbitPublisher):
    def publish(self, events: Sequence[Event], deadline: float) -> Sequence[Outcome]:
        outcomes = super().publish(events, deadline)
        if not all(isinstance(outcome, Delivered) for outcome in outcomes):
            sleep(PAUSE)
        return outcomes


class RabbitTrialRig:
    def __init__(self, node: RabbitNode, proxy: TcpProxy, operator: ThreadPoolExecutor, seed: int) -> None:
        self._node = node
        self._proxy = proxy
        self._operator = operator
        self._rng = Random(seed)
        # Made beforehand and used in turn. A quorum queue that was made moments before its node was killed
        # finds no leader afterwards; and what comes late from one trial must not come into the next.
        self._places = [RabbitRig(node.url, {"x-queue-type": kind}) for kind in ("classic", "quorum") * 4]
        self._place = self._places[0]
        self._publisher: RabbitPublisher | None = None
        self.setting = ""

    @property
    def stranded(self) -> int:
        return 0 if self._publisher is None else self._publisher.incidents["stranded"]

    def fresh_destination(self) -> str:
        number = self._rng.randrange(4)
        self._place = self._places.pop(number)
        self._places.append(self._place)
        self._place.drain()
        self.setting = str(self._place.arguments["x-queue-type"])
        return self._place.destination

    def make(self) -> RabbitPublisher:
        per_key = self._rng.choice([1, 1, 0])
        self.setting += f", {per_key or 'all'} per key"
        url = self._proxy.url(self._node.url)
        self._publisher = PatientPublisher(
            {"url": url, "confirm_seconds": CONFIRM_SECONDS, "max_unconfirmed_per_key": per_key}
        )
        return self._publisher

    def received(self, destination: str) -> list[Received]:
        assert self._place.destination == destination
        return self._place.received(0)

    def faults(self) -> Mapping[str, Fault]:
        node, proxy = self._node, self._proxy
        return {
            "stall both": self._lasting(proxy.stall, proxy.restore),
            "stall to server": self._lasting(lambda: proxy.stall("to_server"), proxy.restore),
            "stall to client": self._lasting(lambda: proxy.stall("to_client"), proxy.restore),
            "cut": self._lasting(proxy.cut, proxy.restore),
            "drop": self._brief(proxy.drop),
            "delay and drop": self._lasting(self._delay_and_drop, proxy.restore),
            "freeze": self._lasting(node.pause, node.resume),
            "restart": self._brief(node.restart),
            "kill": self._brief(self._kill_and_start),
        }

    def _lasting(self, strike: Callable[[], object], heal: Callable[[], object]) -> Fault:
        def fault(rng: Random, _deadline_seconds: float) -> None:
            self._brief(strike)(rng, 0.0)
            sleep(CONFIRM_SECONDS * rng.choice([rng.uniform(0.1, 1), rng.uniform(1, 3), rng.uniform(1, 3)]))
            heal()

        return fault

    def _brief(self, strike: Callable[[], object]) -> Fault:
        def fault(rng: Random, _deadline_seconds: float) -> None:
            sleep(rng.uniform(0, 0.02))  # somewhere inside a call
            # A server ends with the thread that started it: one that stays until the end.
            self._operator.submit(strike).result()

        return fault

    def _kill_and_start(self) -> None:
        self._node.kill()
        self._node.start()

    def _delay_and_drop(self) -> None:
        self._proxy.delay(0.03)
        sleep(0.1)
        self._proxy.drop()


def trials(bites: int, seed: int) -> Iterator[Trial]:
    """Trials on a node of their own, until so many of them bit or twice as many were run."""
    with contextlib.ExitStack() as stack:
        operator = stack.enter_context(ThreadPoolExecutor(1))
        node = RabbitNode()
        stack.callback(lambda: operator.submit(node.stop).result())
        operator.submit(node.start).result()
        proxy = stack.enter_context(TcpProxy("127.0.0.1", node.port))
        rig = RabbitTrialRig(node, proxy, operator, seed)
        verdicts = run_trials(rig, cycle(ROUND), seed=seed)
        yield from until_bitten(rig, verdicts, bites)


def main(bites: int = 200, seed: int = 1) -> None:
    head = f"RabbitMQ 3.10, pika {pika.__version__}, confirm_seconds {CONFIRM_SECONDS}, seed {seed}\n"
    tell(head, trials(bites, seed))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
