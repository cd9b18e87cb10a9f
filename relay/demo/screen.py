"""Shows on standard error what happens: a live picture at a terminal, else a line every second."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

HISTORY = 60  # samples
RATE_SECONDS = 1.0
SPARKS = " ▁▂▃▄▅▆▇█"
PLAIN_SPARKS = " .:-=+*#@"


@dataclass(frozen=True)
class Share:
    """One relay's part."""

    name: str
    published: int
    in_flight: int
    state: str  # "", "killed", …


@dataclass(frozen=True)
class Sample:
    progress: float  # 0 to 1
    emitted: int
    rolled_back: int
    delivered: int
    duplicates: int
    unpublished: int
    lag_seconds: float
    shares: tuple[Share, ...]

    @property
    def in_flight(self) -> int:
        return sum(share.in_flight for share in self.shares)


class Rate:
    """Deliveries per second over the last second."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, now: float, delivered: int) -> float:
        self._points.append((now, delivered))
        while len(self._points) > 2 and now - self._points[1][0] >= RATE_SECONDS:
            self._points.popleft()
        (then, before), (_, after) = self._points[0], self._points[-1]
        return (after - before) / (now - then) if now > then else 0.0


class Screen(Protocol):
    def say(self, text: str, style: str = "") -> None: ...
    def show(self, sample: Sample) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def screen(console: Console) -> Screen:
    return (
        LiveScreen(console) if console.is_terminal and not console.is_dumb_terminal else PlainScreen(console)
    )


class PlainScreen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._rate = Rate()
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str, style: str = "") -> None:
        self._line(text)

    def show(self, sample: Sample) -> None:
        now = time.monotonic()
        rate = self._rate.add(now, sample.delivered)
        if now < self._next:
            return
        self._next = now + 1.0
        shares = "".join(f"  {share.name}: {share.published:,}" for share in sample.shares)
        self._line(
            f"emitted {sample.emitted:,}  in flight {sample.in_flight:,}  delivered {sample.delivered:,}"
            f"  {rate:,.0f}/s  lag {_duration(sample.lag_seconds)}{shares}"
        )

    def _line(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        self._console.print(f"{seconds:5.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)


class LiveScreen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._sparks = SPARKS if "utf" in console.encoding.lower() else PLAIN_SPARKS
        self._rate = Rate()
        self._history: deque[float] = deque([0.0] * HISTORY, HISTORY)
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style))

    def show(self, sample: Sample) -> None:
        rate = self._rate.add(time.monotonic(), sample.delivered)
        self._history.append(rate)
        self._live.update(self._picture(sample, rate))

    def _picture(self, sample: Sample, rate: float) -> RenderableType:
        spark = Text(sparkline(list(self._history), self._sparks), "cyan")
        spark.append(f"  {rate:,.0f} events/s", "bold")
        parts = [spark, self._figures(sample), self._relays(sample)]
        bar = ProgressBar(total=1.0, completed=sample.progress, width=HISTORY, complete_style="cyan")
        return Panel(Group(*parts, bar), title="relay demo", width=HISTORY + 24)

    @staticmethod
    def _figures(sample: Sample) -> RenderableType:
        grid = Table.grid(padding=(0, 3))
        names = ("emitted", "rolled back", "in flight", "delivered", "duplicates", "lag")
        values = (
            f"{sample.emitted:,}",
            f"{sample.rolled_back:,}",
            f"{sample.in_flight:,}",
            f"{sample.delivered:,}",
            f"{sample.duplicates:,}",
            _duration(sample.lag_seconds),
        )
        grid.add_row(*(Text(name, "dim") for name in names))
        grid.add_row(*(Text(value, "bold") for value in values))
        return grid

    @staticmethod
    def _relays(sample: Sample) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        total = sum(share.published for share in sample.shares) or 1
        for share in sample.shares:
            style = "red" if share.state else "green"
            bar = ProgressBar(total=total, completed=share.published, width=30, complete_style=style)
            part = f"{share.published:,} ({share.published / total:.0%})"
            grid.add_row(share.name, bar, part, Text(share.state, "bold red"))
        return grid


def sparkline(values: Sequence[float], sparks: str) -> str:
    top = max(*values, 1.0)
    return "".join(sparks[round(value / top * (len(sparks) - 1))] for value in values)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
