"""docs/licences.md: the licence of every dependency, from the metadata that it was installed with.

Old metadata says the licence in words of its own: `SPOKEN` has what they mean. Words that are
not known here stay as they are, and then are none of `ALLOWED`.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).parents[2] / "requirements-dev.txt"
PROJECT = "outbox-relay"
EXTRAS = ("kafka", "rabbitmq", "webhook", "web", "demo", "testing")

# "BSD": its metadata does not say with how many clauses.
ALLOWED = {"Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0", "PSF-2.0"}
ALLOWED_FOR = {"psycopg": {"LGPL-3.0-only"}, "psycopg-binary": {"LGPL-3.0-only"}}

SPOKEN = {
    "Apache": "Apache-2.0",
    "Apache 2": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD License": "BSD",
    "ISC License": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
UNSAID = {"promql-parser": "MIT"}  # as the LICENSE in its wheel has it


def reference() -> str:
    used = {name: _users(name) for name in pinned()}
    ours = [f"| {name} | {licence(name)} | {', '.join(by)} |" for name, by in used.items() if by]
    others = [f"| {name} | {licence(name)} |" for name, by in used.items() if not by]
    return "\n".join(
        [
            "### Of the relay\n",
            *["| package | licence | needed by |", "|---|---|---|", *ours],
            "\n### Of its development alone\n",
            *["| package | licence |", "|---|---|", *others, ""],
        ]
    )


def pinned() -> list[str]:
    """The packages of requirements-dev.txt, but for those of other systems."""
    named = re.findall(r"^([\w.-]+)==", REQUIREMENTS.read_text(), re.MULTILINE)
    return [name for name in dict.fromkeys(named) if _installed(name)]


def licence(name: str) -> str:
    said = metadata(name).json
    if expression := said.get("license_expression") or UNSAID.get(name):
        return str(expression)
    classified = [each for each in said.get("classifier", []) if each.startswith("License ::")]
    words = [said.get("license"), *(each.rpartition(" :: ")[2] for each in classified), "unknown"]
    first = next(word for word in words if word)
    return SPOKEN.get(str(first), str(first))


def allowed(name: str) -> bool:
    parts = set(re.split(r" (?:AND|OR) ", licence(name)))
    return parts <= ALLOWED | ALLOWED_FOR.get(name, set())


def _users(name: str) -> list[str]:
    """Who brings the package along: the relay itself, or those of its extras."""
    if name in _needed_by(""):
        return ["relay"]
    return [f"`[{extra}]`" for extra in EXTRAS if name in _needed_by(extra)]


@cache
def _needed_by(extra: str) -> frozenset[str]:
    found: set[str] = set()
    left = [(PROJECT, extra)]
    while left:
        name, wanted = left.pop()
        for requirement in _requirements(name, wanted):
            needed = canonicalize_name(requirement.name)
            new = {(needed, each) for each in ("", *requirement.extras)}
            if needed not in found and _installed(needed):
                found.add(needed)
                left += new
    return frozenset(found)


def _requirements(name: str, extra: str) -> Iterator[Requirement]:
    for text in requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _installed(name: str) -> bool:
    try:
        metadata(name)
    except PackageNotFoundError:
        return False
    return True
