"""The reference part of docs/metrics.md, made from the metrics themselves.

python -m tests.metrics_reference      writes it anew
"""

from collections.abc import Iterable
from pathlib import Path

from relay.metrics import Metrics
from relay.series import Series, Source

DOCUMENT = Path(__file__).parent.parent / "docs" / "metrics.md"
BEGIN = "<!-- made by: python -m tests.metrics_reference -->"
END = "<!-- end of what is made -->"


def reference() -> str:
    series = Metrics().series
    parts: dict[Source, str] = {"worker": "Of each worker", "housekeeper": "Of the whole outbox"}
    tables = [
        f"### {title}\n\n{_table(each for each in series if each.source == source)}"
        for source, title in parts.items()
    ]
    return "\n".join([BEGIN, "", *tables, END])


def _table(series: Iterable[Series]) -> str:
    rows = [
        f"| `{each.name}{'_total' if each.kind == 'counter' else ''}` | {each.kind}"
        f" | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |"
        for each in series
    ]
    return "\n".join(["| name | type | labels | |", "|---|---|---|---|", *rows, ""])


def renewed(document: str) -> str:
    """The document with its reference as it should be."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{reference()}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(renewed(DOCUMENT.read_text()))
