"""The parts of docs/ that are made from the program itself, so that they cannot be wrong.

`make docs` writes them anew; tests/unit/test_references.py fails where one is stale.
"""

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.references import cli, licences, metrics, settings

DOCS = Path(__file__).parents[2] / "docs"
BEGIN = "<!-- made by: make docs -->"
END = "<!-- end of what is made -->"


@dataclass(frozen=True)
class Part:
    """What one document says between its two marks."""

    name: str
    source: ModuleType

    @property
    def document(self) -> Path:
        return DOCS / f"{self.name}.md"

    def renewed(self) -> str:
        """The document with this part as it should be."""
        before, begin, rest = self.document.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise ValueError(f"{self.document} lacks the marks of the part that is made:\n{BEGIN}\n{END}")
        return f"{before}{BEGIN}\n\n{self.source.reference()}\n{END}{after}"


PARTS = [
    Part("cli", cli),
    Part("licences", licences),
    Part("metrics", metrics),
    Part("settings", settings),
]
