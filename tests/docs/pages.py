"""The project's Markdown, taken apart: blocks of code by language, commands in the text, headings, links.

What counts as a page is found by walking, so that a new one is checked without being named anywhere.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("docs", "compose", "examples")
SHELL = ("sh", "console")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^|(?<=\n\n))((?: {4}.*\n(?:\n(?= {4}))?)+)", re.MULTILINE)
_PROGRAMS = r"relay|make|export|docker|kubectl|test|curl|pip|\.venv/bin/\S+"
_LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int  # where its text begins


@dataclass(frozen=True)
class Page:
    name: str  # its path from the root

    @property
    def path(self) -> Path:
        return ROOT / self.name

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def fenced(self) -> list[Block]:
        return [Block(found[1], found[2], self._line(found.start(2))) for found in _FENCE.finditer(self.text)]

    @cached_property
    def blocks(self) -> list[Block]:
        """The fenced ones, and of the indented ones those whose language shows."""
        return self.fenced + list(self._indented())

    def of(self, *languages: str) -> list[Block]:
        return sorted(
            (block for block in self.blocks if block.language in languages), key=lambda block: block.line
        )

    @cached_property
    def prose(self) -> str:
        """Without fenced blocks, line for line."""
        return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), self.text)

    def spoken(self) -> Iterator[tuple[int, str]]:
        """Commands of the text, between backticks."""
        for found in re.finditer(r"`(relay [a-z][^`]*)`", self.prose):
            yield self._line(found.start()), " ".join(found[1].split())

    def links(self) -> Iterator[tuple[str, str | None]]:
        """Of each link within the project: the path as it is written, and the anchor."""
        for found in _LINK.finditer(re.sub(r"`[^`\n]*`", "", self.prose)):
            yield found[1], found[2]

    def anchors(self) -> set[str]:
        """The headings' names, as GitHub makes them."""
        seen: dict[str, int] = {}
        anchors = set()
        for heading in re.findall(r"^#{1,6} +(.+?) *$", self.prose, re.MULTILINE):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
            slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            anchors.add(f"{slug}-{count}" if count else slug)
        return anchors

    def _indented(self) -> Iterator[Block]:
        for found in _INDENTED.finditer(self.prose):
            text = re.sub("^ {4}", "", found[1], flags=re.MULTILINE)
            line = self.prose.count("\n", 0, found.start()) + 1
            if re.match(rf"(?:[A-Z_]+=\S+ +)*(?:{_PROGRAMS}) ", text):
                yield Block("sh", text, line)
            elif re.match(r"(?:SELECT|INSERT|UPDATE|DELETE) ", text):
                yield Block("sql", text, line)

    def _line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


def pages() -> list[Page]:
    found = [*ROOT.glob("*.md"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.md"))]
    return [Page(str(file.relative_to(ROOT))) for file in sorted(found)]


def pages_with(*languages: str) -> list[Page]:
    return [page for page in pages() if page.of(*languages)]
