"""What an examination finds: how bad it is, why it matters, and the command that ends it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Literal, TypeAlias

from psycopg import sql

Severity: TypeAlias = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """One thing that was found in a family of checks; a family that is in order is one finding, of `info`.

    `fix` is one command per line: a line that ends with a semicolon is SQL, every other is for a shell. ''
    where there is nothing to do.
    """

    family: str  # "schema", "indexes", "kafka", …
    severity: Severity
    what: str
    why: str = ""
    fix: str = ""

    @property
    def fine(self) -> bool:
        """Looked at, and in order."""
        return self.severity == "info" and not self.why


def or_fine(findings: Sequence[Finding], family: str, what: str) -> list[Finding]:
    """The findings; where none of them is a fault, also what was looked at."""
    in_order = all(finding.severity == "info" for finding in findings)
    return [*findings, *([Finding(family, "info", what)] if in_order else [])]


LONGEST_SECONDS = 15.0


def in_time(names: Iterable[str], skipped: list[str]) -> Iterator[str]:
    """The names one by one, for so long; those that are left when the time is up are `skipped`."""
    until = monotonic() + LONGEST_SECONDS
    for name in names:
        if monotonic() < until:
            yield name
        else:
            skipped.append(name)


def out_of_time(family: str, skipped: Sequence[str]) -> list[Finding]:
    """What was not looked at, so that silence is not taken for health."""
    if not skipped:
        return []
    what = f"{len(skipped)} more were not looked at: {', '.join(skipped[:3])}{' …' if skipped[3:] else ''}"
    return [Finding(family, "warning", what, f"the first ones took {LONGEST_SECONDS:g} s: try again")]


def quoted(*parts: str) -> str:
    """The name as SQL has it."""
    return sql.Identifier(*parts).as_string(None)


def literal(text: str) -> str:
    return sql.Literal(text).as_string(None)
