"""Trials against Apache Kafka: python -m tests.system.trials_kafka [how many must bite] [seed]

Prints a log like docs/evidence/kafka-trials.txt. A trial counts only if events were published again of which
some were on their way when their producer was given up (`stranded`) or are in the broker twice.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from random import Random
from time import sleep
from typing import Any

import confluent_kafka

from publishers.kafka import KafkaPublisher
from relay.testing import Received
from tests.servers.kafka import VERSION, KafkaBroker
from tests.servers.kafka_rig import KafkaRig
from tests.servers.proxy import TcpProxy
from tests.system.trials import Fault, Trial, run_trials, tell, until_bitten

HEAD = """\
Randomised trials of the Kafka publisher: python -m tests.system.trials_kafka {bites} {seed}
stranded: messages on their way when their producer was given up; resent: events published again;
duplicates: messages beyond the first of an event; missing: reported Delivered, not in the broker.
"""
DEADLINE_SECONDS = 0.7
_SHORT = ("stall both", "freeze", "stall to client", "cut", "stall to server", "delay")
# A restart takes seconds, so it comes up less often.
ROUND = (*_SHORT, "restart", *_SHORT, "kill", "stall both", "freeze", "stall to client")


class KafkaTrialRig:
    def __init__(self, broker: KafkaBroker, proxy: TcpProxy, operator: ThreadPoolExecutor, seed: int) -> None:
        self._broker = broker
        self._proxy = proxy
        self._operator = operator
        self._rng = Random(seed)
        self._topic: KafkaRig | None = None
        self._publisher: KafkaPublisher | None = None
        self.setting = ""

    @property
    def stranded(self) -> int:
        return 0 if self._publisher is None else self._publisher.incidents["stranded"]

    def fresh_destination(self) -> str:
        partitions = self._rng.choice([1, 3, 6])
        self._topic = KafkaRig(self._broker.address, partitions=partitions, via=self._proxy.address)
        self.setting = f"partitions={partitions}"
        return self._topic.destination

    def make(self) -> KafkaPublisher:
        assert self._topic is not None
        per_key, batch = self._rng.choice([0, 0, 0, 1]), self._rng.choice([1, 3, 10_000])
        self.setting += f" per_key={per_key} batch={batch}"
        config: dict[str, Any] = {"batch.num.messages": batch, "log_level": 0}
        self._publisher = self._topic.make(max_unconfirmed_per_key=per_key, config=config)
        return self._publisher

    def received(self, destination: str) -> list[Received]:
        assert self._topic is not None
        return self._topic.received(0)

    def faults(self) -> Mapping[str, Fault]:
        broker, proxy = self._broker, self._proxy
        return {
            "stall both": self._lasting(proxy.stall, proxy.restore),
            "stall to server": self._lasting(lambda: proxy.stall("to_server"), proxy.restore),
            "stall to client": self._lasting(lambda: proxy.stall("to_client"), proxy.restore),
            "cut": self._lasting(self._cut, proxy.restore),
            "delay": self._lasting(lambda: proxy.delay(0.6 * DEADLINE_SECONDS), proxy.restore),
            "freeze": self._lasting(broker.pause, broker.resume),
            "restart": self._away(broker.terminate),
            "kill": self._away(broker.kill),
        }

    def _lasting(self, strike: Callable[[], object], heal: Callable[[], object]) -> Fault:
        def fault(rng: Random, deadline_seconds: float) -> None:
            sleep(rng.uniform(0, 0.02))  # somewhere inside a call
            strike()
            sleep(deadline_seconds * (rng.uniform(0.2, 1) if rng.random() < 0.1 else rng.uniform(1, 2.5)))
            heal()

        return fault

    def _cut(self) -> None:
        """Cut off what the broker may have taken and could not confirm."""
        self._proxy.stall("to_client")
        sleep(0.05)
        self._proxy.cut()

    def _away(self, end: Callable[[], object]) -> Fault:
        """The broker ends, mostly with confirmations under way, and is started again."""

        def fault(rng: Random, _deadline_seconds: float) -> None:
            sleep(rng.uniform(0, 0.02))
            if rng.random() < 0.8:
                self._proxy.stall("to_client")
                sleep(0.05)
            # A server ends with the thread that started it: one that stays until the end.
            self._operator.submit(end).result()
            self._proxy.restore()
            self._operator.submit(self._broker.start).result()

        return fault


def trials(bites: int, seed: int, names: Sequence[str] = ROUND) -> Iterator[Trial]:
    """Trials on a broker of their own, until so many of them bit or twice as many were run."""
    with contextlib.ExitStack() as stack:
        operator = stack.enter_context(ThreadPoolExecutor(1))
        broker = KafkaBroker()
        stack.callback(lambda: operator.submit(broker.stop).result())
        operator.submit(broker.start).result()
        proxy = stack.enter_context(TcpProxy("127.0.0.1", broker.proxied_target, port=broker.proxied_port))
        rig = KafkaTrialRig(broker, proxy, operator, seed)
        verdicts = run_trials(rig, cycle(names), seed=seed, deadline_seconds=DEADLINE_SECONDS)
        yield from until_bitten(rig, verdicts, bites, by_duplicates=True)


def main(bites: int = 200, seed: int = 1) -> None:
    clients = f"librdkafka {confluent_kafka.libversion()[0]}, deadline of a call {DEADLINE_SECONDS} s"
    head = f"{HEAD.format(bites=bites, seed=seed)}\nApache Kafka {VERSION}, {clients}\n"
    tell(head, trials(bites, seed))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
