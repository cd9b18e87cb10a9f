"""The fault suite at length: python -m tests.faults [--minutes 10] [--seed N] [--broker B] [--relays N]

Runs with 1, 4 and 8 relays on each broker, one after another, all faults round and round, until the minutes
are over, but each at least once; exit code 1 if anything was violated, or if some fault has never struck.
"""

import argparse
import logging
import secrets
import sys
import time
from collections import Counter
from itertools import count
from random import Random

from tests.faults.arena import Arena, BrokerName
from tests.faults.faults import Fault
from tests.faults.report import Plan, Report, every_fault
from tests.faults.suite import run

RUNS: tuple[tuple[BrokerName, int], ...] = (
    ("kafka", 4),
    ("rabbitmq", 4),
    ("kafka", 8),
    ("rabbitmq", 1),
    ("kafka", 1),
    ("rabbitmq", 8),
)
SHORTEST_RUN, LONGEST_RUN = 30.0, 100.0
CALM_SECONDS = 30.0  # a run goes on for about so long after its last fault


def tell(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    arguments = _arguments()
    runs = [
        (broker, relays)
        for broker, relays in RUNS
        if arguments.broker in (None, broker) and arguments.relays in (None, relays)
    ]
    if not runs:
        sys.exit(f"There are no such runs: choose among {RUNS}.")
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # rollbacks on broken connections are no news
    deadline = time.monotonic() + 60 * arguments.minutes
    seconds = max(SHORTEST_RUN, min(LONGEST_RUN, 60 * arguments.minutes / len(runs) - CALM_SECONDS))
    tell(f"seed {arguments.seed}, {arguments.minutes:g} minutes\n")
    reports: list[Report] = []
    struck: Counter[str] = Counter()
    with Arena() as arena:
        for number in count():
            if number >= len(runs) and time.monotonic() > deadline:
                break
            broker, relays = runs[number % len(runs)]
            plan = Plan(broker, relays, arguments.seed + number, _lanes(arguments.seed, struck), seconds)
            report = run(arena, plan)
            reports.append(report)
            struck.update(report.struck)
            tell(f"{report}\n")
    return _conclude(reports, struck)


def _lanes(seed: int, struck: Counter[str]) -> dict[str, list[Fault]]:
    """All faults, those first that have struck least."""
    dice = Random(f"{seed}-{struck.total()}")
    shuffled = {lane: dice.sample(faults, len(faults)) for lane, faults in every_fault().items()}
    return {lane: sorted(faults, key=lambda fault: struck[fault.kind]) for lane, faults in shuffled.items()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="The fault suite.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--broker", choices=["kafka", "rabbitmq"])
    parser.add_argument("--relays", type=int)
    return parser.parse_args()


def _conclude(reports: list[Report], struck: Counter[str]) -> int:
    causes: Counter[str] = Counter()
    for report in reports:
        causes += Counter(report.verdict.duplicates)
    never = [fault.kind for lane in every_fault().values() for fault in lane if not struck[fault.kind]]
    problems = [problem for report in reports for problem in report.problems]
    events = sum(report.verdict.events for report in reports)
    tell(f"{len(reports)} runs, {events} events, {causes.total()} duplicates, {struck.total()} faults")
    tell("".join(f"  {number:6} x {kind}\n" for kind, number in sorted(struck.items())))
    for problem in problems + [f"never struck: {kind}" for kind in never]:
        tell(f"PROBLEM {problem}")
    return 1 if problems or never else 0


if __name__ == "__main__":
    sys.exit(main())
