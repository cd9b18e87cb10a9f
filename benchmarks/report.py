"""The comparison for people: medians of the runs, with each run beside them."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.measuring import Run

BASE = "tuned"  # in the name of whom the others are compared with


def lines(drains: Mapping[str, Sequence[Run]], steadies: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    if drains:
        yield from _drains(drains)
    if steadies:
        yield from _steadies(steadies)


def _drains(drains: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    base = next((runs for name, runs in drains.items() if BASE in name), ())
    head = ("drain", "events/s", "x tuned", "second half", "CPU µs: itself", "database", "broker", "all")
    rows: list[Sequence[str]] = [
        (*head, "x tuned", "second half", "RSS MiB", "others", "runs, events/s", "check")
    ]
    for name, runs in drains.items():
        rate, cpu = middle(runs, "events_per_second"), middle(runs, "cpu_us_per_event_together")
        each = [run.figures["cpu_us_per_event"] for run in runs]
        rows.append(
            (
                name,
                f"{rate:,.0f}",
                _ratio(rate, middle(base, "events_per_second")),
                _thousands(middle(runs, "second_half_events_per_second")),
                *(f"{median(c[part] for c in each):.1f}" for part in ("contender", "database", "broker")),
                f"{cpu:.1f}",
                _ratio(cpu, middle(base, "cpu_us_per_event_together")),
                _tenths(middle(runs, "second_half_cpu_us_per_event_together")),
                f"{max(run.figures['peak_rss_mib'] for run in runs):.0f}",
                f"{max(run.noise for run in runs):.1%}",
                " ".join(f"{run.figures['events_per_second']:,}" for run in runs),
                _checked(runs),
            )
        )
    yield from columns(rows)


def _steadies(steadies: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    yield ""
    head = ("commit → broker's log, ms", "p50", "p99", "p99.9", "CPU µs: itself", "database", "broker")
    rows: list[Sequence[str]] = [(*head, "RSS MiB", "others", "check")]
    for name, runs in steadies.items():
        each = [run.figures["cpu_us_per_event"] for run in runs]
        times = [run.figures["latency_ms"] for run in runs]
        rows.append(
            (
                name,
                *(f"{median(t[share] for t in times):.1f}" for share in ("p50", "p99", "p99_9")),
                *(f"{median(c[part] for c in each):.0f}" for part in ("contender", "database", "broker")),
                f"{max(run.figures['peak_rss_mib'] for run in runs):.0f}",
                f"{max(run.noise for run in runs):.1%}",
                _checked(runs),
            )
        )
    yield from columns(rows)


def middle(runs: Sequence[Run], name: str) -> float | None:
    values = [run.figures[name] for run in runs if run.figures[name] is not None]
    return median(values) if values else None


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join(cells)


def _checked(runs: Sequence[Run]) -> str:
    if all(run.clean for run in runs):
        return "ok"
    checks: list[dict[str, Any]] = [run.figures["check"] for run in runs if not run.clean]
    return f"FAILED: {checks[0]}"


def _ratio(value: float | None, base: float | None) -> str:
    return f"{value / base:.2f}" if value and base else "-"


def _tenths(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _thousands(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
