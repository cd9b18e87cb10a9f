"""What an examination finds: how bad it is, why it matters, and the command that ends it. Pure."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class Finding:
    """One thing that was found in a family of checks; a family that is in order is one finding, of `info`.

    `fix` is a command per line: SQL ends with a semicolon, `RELAY_… = …` is a setting, all else is for a
    shell. '' where there is nothing to do.
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
