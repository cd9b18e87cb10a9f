"""docs/metrics.md: every metric, from the registry."""

from collections.abc import Iterable

from relay.metrics import Metrics
from relay.series import Series, Source

TITLES: dict[Source, str] = {"worker": "Of each worker", "housekeeper": "Of the whole outbox"}


def reference() -> str:
    series = Metrics().series
    return "\n".join(
        f"### {title}\n\n{_table(each for each in series if each.source == source)}"
        for source, title in TITLES.items()
    )


def _table(series: Iterable[Series]) -> str:
    rows = [
        f"| `{each.name}{'_total' if each.kind == 'counter' else ''}` | {each.kind}"
        f" | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |"
        for each in series
    ]
    return "\n".join(["| name | type | labels | |", "|---|---|---|---|", *rows, ""])
