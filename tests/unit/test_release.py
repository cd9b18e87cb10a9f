"""scripts/release.py refuses what is not ready, and takes its notes from the changelog."""

import pytest

from scripts.release import notes_of, obstacles

CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.0] - 2026-07-01

### Added
- A thing.

## [1.1.0] - 2026-06-01
- Another.

[1.2.0]: compare
"""


def test_a_commit_that_is_ready_is_refused_for_nothing() -> None:
    assert list(obstacles("1.2.0", CHANGELOG, "", "v1.1.0\n")) == []


@pytest.mark.parametrize(
    "version, changelog, status, tags, said",
    [
        ("1.2.0", CHANGELOG, "?? left_over.py\n", "", "not clean"),
        ("1.2.0", CHANGELOG, "", "v1.1.0\nv1.2.0\n", "tagged already"),
        ("1.3.0", CHANGELOG, "", "", "no heading"),
        ("1.2.0", CHANGELOG.replace(" - 2026-07-01", ""), "", "", "no heading"),
        ("1.2.0", CHANGELOG.replace("### Added\n- A thing.\n", ""), "", "", "says nothing"),
        (
            "1.2.0",
            CHANGELOG.replace("[Unreleased]\n", "[Unreleased]\n- More.\n"),
            "",
            "",
            "under [Unreleased]",
        ),
        ("1.2", CHANGELOG.replace("[1.2.0] -", "[1.2] -"), "", "", "is not like"),
    ],
)
def test_what_is_not_ready_is_refused(
    version: str, changelog: str, status: str, tags: str, said: str
) -> None:
    (told,) = obstacles(version, changelog, status, tags)
    assert said in told


def test_the_notes_are_what_the_changelog_says_of_the_version() -> None:
    assert notes_of(CHANGELOG, "1.2.0") == "### Added\n- A thing."
    assert notes_of(CHANGELOG, "1.1.0") == "- Another."
    assert notes_of(CHANGELOG, "Unreleased") == ""
    assert notes_of(CHANGELOG, "9.9.9") == ""
