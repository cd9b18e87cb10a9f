"""The fault suite at length: python -m tests.faults [--minutes 10] [--seed N] [--broker B] [--relays N]

Runs with 1, 4 and 8 relays on each broker, one after another, all faults round and round, until the minutes
are over; exit code 1 if anything was violated, or if some kind of fault has never struck.
"""

import argparse
import logging
import secrets
import sys
import time
from collections import Counter
from itertools import count

from tests.faults.arena import Arena, BrokerName
from tests.faults.suite import Plan, Report, every_fault, run

RUNS: tuple[tuple[BrokerName, int], ...] = (
    ("kafka", 4),
    ("rabbitmq", 4),
    ("kafka", 8),
    ("rabbitmq", 1),
    ("kafka", 1),
    ("rabbitmq", 8),
)
LONGEST_RUN = 100.0


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
    seconds = min(LONGEST_RUN, 60 * arguments.minutes / len(runs))
    tell(f"python -m tests.faults --minutes {arguments.minutes:g} --seed {arguments.seed}\n")
    reports: list[Report] = []
    with Arena() as arena:
        for number in count():
            if number and time.monotonic() > deadline:
                break
            broker, relays = runs[number % len(runs)]
            reports.append(run(arena, Plan(broker, relays, arguments.seed + number, seconds=seconds)))
            tell(f"{reports[-1]}\n")
    return _conclude(reports)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="The fault suite.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--broker", choices=["kafka", "rabbitmq"])
    parser.add_argument("--relays", type=int)
    return parser.parse_args()


def _conclude(reports: list[Report]) -> int:
    struck: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    for report in reports:
        struck += Counter(report.struck)
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
