"""What is installed is what was pinned: by version and hash, from wherever pip is told to look."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "requirements-dev.txt", *sorted((ROOT / "compose/requirements").glob("*.txt"))]
PIN = re.compile(r"[\w.-]+==[\w.!+]+( ; [^\\]+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+")

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


@every_file
def test_every_pin_has_a_version_and_a_hash(file: Path) -> None:
    pins = re.split(r"\n(?! )", file.read_text().rstrip("\n"))
    assert pins
    assert [pin for pin in pins if not PIN.fullmatch(pin)] == []


@every_file
def test_no_address_is_named(file: Path) -> None:
    assert not re.search(r"://|^\s*-[-\w]*(index|find-links|i\b|f\b)|@ ", file.read_text(), re.MULTILINE)


def test_what_the_image_has_is_what_was_tested() -> None:
    tested = set(re.findall(r"^[\w.-]+==[\w.!+]+", FILES[0].read_text(), re.MULTILINE))
    for file in FILES[1:]:
        assert set(re.findall(r"^[\w.-]+==[\w.!+]+", file.read_text(), re.MULTILINE)) <= tested, file.name
