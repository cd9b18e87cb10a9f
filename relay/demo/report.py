"""What a demo has to say at its end, for people and for machines."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from relay.demo.verdict import FAULTS, Verdict


@dataclass(frozen=True)
class Kill:
    """What the killed relay left behind, and what became of it."""

    relay: str
    worker: str
    in_hand: int  # events it had claimed and not settled
    at_the_broker: int  # of these, already delivered: they will arrive again
    taken_over: int  # of these, published by others
    takeover_seconds: float | None  # from the kill to the last of them


@dataclass(frozen=True)
class Report:
    verdict: Verdict
    kill: Kill
    published_by: dict[str, int]  # events by relay
    addresses: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.as_dict(),
            "kill": asdict(self.kill),
            "published_by": self.published_by,
            "addresses": self.addresses,
        }


def show(report: Report, console: Console) -> None:
    """The verdict as a table and a sentence."""
    verdict, kill = report.verdict, report.kill
    table = Table(title="What both ends saw", title_justify="left", show_header=False, min_width=60)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()

    def row(label: str, value: str, must_be_zero: int | None = None) -> None:
        if must_be_zero is None:
            table.add_row(label, value, "")
        else:
            sign = Text("ok", "green") if must_be_zero == 0 else Text("FAULT", "bold red")
            table.add_row(label, Text(value, "" if must_be_zero == 0 else "bold red"), sign)

    row("emitted (committed)", f"{verdict.emitted:,}")
    row("rolled back on purpose", f"{verdict.rolled_back:,}")
    row("delivered", f"{verdict.delivered:,}")
    row("duplicates seen by billing", f"{verdict.duplicates_seen:,}")
    table.add_section()
    row("duplicates applied", f"{verdict.duplicates_applied:,}", verdict.duplicates_applied)
    row("lost", f"{verdict.lost:,}", verdict.lost)
    row("delivered but not applied", f"{verdict.not_applied:,}", verdict.not_applied)
    row("rolled back, yet published", f"{verdict.rolled_back_published:,}", verdict.rolled_back_published)
    row("published, emitted by nobody", f"{verdict.never_emitted:,}", verdict.never_emitted)
    row("first arrivals out of order", f"{verdict.out_of_order:,}", verdict.out_of_order)
    table.add_section()
    row("events per second", f"{verdict.events_per_second:,.0f}")
    row("commit to consumer, p50", _milliseconds(verdict.latency_p50_ms))
    row("commit to consumer, p99", _milliseconds(verdict.latency_p99_ms))
    row("in the hands of the killed relay", f"{kill.in_hand:,}")
    row("  taken over by the others", f"{kill.taken_over:,}")
    if kill.takeover_seconds is not None:
        row("  all published again after", f"{kill.takeover_seconds:.1f} s")
    console.print(table)
    console.print(_sentence(verdict), soft_wrap=True)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"


def _sentence(verdict: Verdict) -> Text:
    if verdict.clean:
        return Text("Nothing lost, nothing applied twice, every order's events in order.", "bold green")
    if not verdict.faults:
        return Text("Nothing was delivered: this run proves nothing.", "bold red")
    faults = "; ".join(f"{count:,} {FAULTS[name]}" for name, count in verdict.faults.items())
    return Text(f"The relay broke its promise: {faults}.", "bold red")
