"""The plot: orders are paid, two relays publish, one is killed and replaced, and then the books are opened.

The verdict rests on both ends alone: what the orders domain committed and what billing received and applied.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from relay.demo.interruption import Interrupted, Interruption
from relay.demo.plan import Plan
from relay.demo.relays import RelayProcess
from relay.demo.report import Kill, Report
from relay.demo.screen import Sample, Screen, Share
from relay.demo.stage import Stage, set_up
from relay.demo.verdict import judge
from relay.errors import RelayError

LOOK_SECONDS = 0.25
KILL_AT = 0.4  # of the run
REPLACED_AFTER = 1.5  # seconds
OVERTIME_SECONDS = 10.0
DRAIN_SECONDS = 20.0
LAST_LINES = 3
LINE_LENGTH = 500

# The kill waits for a bad moment: the relay is frozen, looked at, and let go again if it has nothing in
# hand. The first looks want the worst one, events that the broker has and the outbox does not know of.
FROZEN_SECONDS = 0.03
LET_GO_SECONDS = 0.01
LOOKS_FOR_THE_WORST = 40
LOOKS = 80
LOOKS_PER_PICTURE = 8


def play(plan: Plan, screen: Screen, conclude: Callable[[Report], None]) -> Report:
    """Run the demo; `conclude` is told the report while everything that is kept still runs."""
    with Interruption() as interruption:
        with set_up(plan, screen, interruption) as (stage, stack):
            with screen:
                report = _Play(stage, stack, screen, interruption).run()
            if not report.verdict.clean:
                _last_words(stage, screen)
            if plan.keep:
                conclude(report)
                _keep(report, screen, interruption)
        if not plan.keep:
            conclude(report)
        return report


def _last_words(stage: Stage, screen: Screen) -> None:
    """The ends of the relays' logs, which may say why."""
    for relay in stage.relays:
        for line in relay.log.read_text(errors="replace").splitlines()[-LAST_LINES:]:
            screen.say(f"{relay.name}: {line[:LINE_LENGTH]}")


def _keep(report: Report, screen: Screen, interruption: Interruption) -> None:
    screen.say("Everything stays up until Ctrl-C:")
    for name, address in report.addresses.items():
        screen.say(f"  {name:<18} {address}")
    try:
        while True:
            interruption.sleep(1.0)
    except Interrupted:
        screen.say("stopping")


@dataclass
class _Killed:
    relay: RelayProcess
    worker: str
    held: list[str]
    at_the_broker: int
    at: float  # monotonic
    at_by_database: float


class _Play:
    def __init__(self, stage: Stage, stack: ExitStack, screen: Screen, interruption: Interruption) -> None:
        self._stage = stage
        self._stack = stack
        self._screen = screen
        self._interruption = interruption
        self._began = time.monotonic()
        self._killed: _Killed | None = None
        self._replacement_works = False

    def run(self) -> Report:
        stage, orders = self._stage, self._stage.orders
        stage.billing.start()
        orders.start()
        self._screen.say("orders       are being paid; billing reads along")
        self._began = time.monotonic()
        while not self._enough():
            self._look()
            if self._killed is None and self._progress() >= KILL_AT:
                self._killed = self._kill()
            if self._killed is not None and time.monotonic() >= self._killed.at + REPLACED_AFTER:
                self._replace()
        orders.close()
        self._screen.say("orders       are closed; the relays publish what is left")
        killed = self._killed or self._kill()
        stage.wait_for(self._replace(), self._interruption)
        self._drain()
        return self._report(killed)

    def _enough(self) -> bool:
        """At the end of the time, once the replacement has had its part; a busy machine gets overtime."""
        if self._progress() < 1 or self._stage.orders.sold_out:
            return self._progress() >= 1
        overtime = time.monotonic() - self._began - self._stage.plan.seconds
        return self._replacement_works or overtime > OVERTIME_SECONDS

    def _progress(self) -> float:
        plan, stage = self._stage.plan, self._stage
        share = (time.monotonic() - self._began) / plan.seconds
        if plan.events:
            share = max(share, len(stage.orders.emitted) / plan.events)
        return min(share, 1.0)

    def _look(self) -> None:
        self._show()
        self._interruption.sleep(LOOK_SECONDS)

    def _show(self) -> None:
        stage = self._stage
        stage.require_sound()
        look = stage.watch.look()
        received = len(stage.billing.received)
        delivered = len(stage.billing.seen)
        shares = tuple(
            Share(
                relay.name,
                sum(look.published.get(worker, 0) for worker in self._workers(relay)),
                sum(look.in_flight.get(worker, 0) for worker in self._workers(relay)),
                "killed" if relay.name in stage.killed else "",
            )
            for relay in stage.relays
        )
        self._replacement_works = len(shares) > 2 and shares[-1].published > 0
        self._screen.show(
            Sample(
                self._progress(),
                len(stage.orders.emitted),
                len(stage.orders.rolled_back),
                delivered,
                received - delivered,
                look.unpublished,
                look.lag_seconds,
                shares,
            )
        )

    def _workers(self, relay: RelayProcess) -> list[str]:
        return [worker for worker, name in self._stage.workers.items() if name == relay.name]

    def _kill(self) -> _Killed:
        stage = self._stage
        relay = stage.relays[0]
        worker = next(iter(self._workers(relay)))
        for look in range(LOOKS):
            relay.freeze()
            time.sleep(FROZEN_SECONDS)  # what it had sent to the servers arrives meanwhile
            held = stage.watch.held(worker)
            at_the_broker = len(stage.billing.seen.intersection(held))
            if at_the_broker or (held and look >= LOOKS_FOR_THE_WORST):
                break
            relay.thaw()
            if look % LOOKS_PER_PICTURE == 0:
                self._show()
            self._interruption.sleep(LET_GO_SECONDS)
        stage.killed.add(relay.name)
        relay.kill()
        self._screen.say(
            f"SIGKILL      {relay.name} (pid {relay.pid}) is dead, with {len(held)} events in hand, "
            f"{at_the_broker} of them already delivered",
            "bold red",
        )
        return _Killed(relay, worker, held, at_the_broker, time.monotonic(), stage.watch.now())

    def _replace(self) -> RelayProcess:
        """Start the third relay, or see whether it has registered by now."""
        stage = self._stage
        if len(stage.relays) == 2:
            self._screen.say("replacement  relay 3 starts")
            stage.start_relay(self._stack)
        newest = stage.relays[-1]
        if not self._workers(newest) and (worker := stage.watch.worker(newest.pid)):
            stage.workers[worker] = newest.name
        return newest

    def _drain(self) -> None:
        """Until the outbox is empty and billing has read the topic to its end."""
        stage = self._stage
        deadline = time.monotonic() + DRAIN_SECONDS
        while stage.watch.unpublished() and time.monotonic() < deadline:
            self._look()
        if not stage.plan.keep:
            self._stop_relays()
        while not stage.billing.read_to_the_end() and time.monotonic() < deadline:
            self._look()
        stage.require_sound()

    def _stop_relays(self) -> None:
        stage = self._stage
        living = stage.living()
        for relay in living:
            relay.ask_to_stop()
        for relay in living:
            stage.killed.add(relay.name)
            if (code := relay.wait()) != 0:
                raise RelayError(f"{relay.name} was asked to stop and ended with exit code {code}, not 0")

    def _report(self, killed: _Killed) -> Report:
        stage = self._stage
        look = stage.watch.look()
        taken_over, last = stage.watch.taken_over(killed.held, killed.worker)
        with stage.database.connect() as conn:
            applied = stage.billing.applied(conn)
        return Report(
            verdict=judge(
                stage.orders.emitted, stage.orders.rolled_back, list(stage.billing.received), applied
            ),
            kill=Kill(
                relay=killed.relay.name,
                worker=killed.worker,
                in_hand=len(killed.held),
                at_the_broker=killed.at_the_broker,
                taken_over=taken_over,
                takeover_seconds=None if last is None else round(max(last - killed.at_by_database, 0.0), 2),
            ),
            published_by={
                relay.name: sum(look.published.get(worker, 0) for worker in self._workers(relay))
                for relay in stage.relays
            },
            addresses=stage.addresses(),
        )
