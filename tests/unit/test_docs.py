"""What the documents say is true, as far as reading them can tell: tests, links, commands, settings, syntax.

tests/integration/test_docs_snippets.py runs what is in them.
"""

import ast
import json
import re
import tomllib
from collections import Counter

import pytest
import yaml

from relay.settings import Settings
from tests.docs.pages import ROOT, SHELL, Page, pages
from tests.docs.shell import FOREIGN, commands, problem, program, spoken_commands

RUN = {"python", "sql", *SHELL}
READ = {"toml", "json", "yaml"}
PAGES = [pytest.param(page, id=page.name) for page in pages()]
every_page = pytest.mark.parametrize("page", PAGES)


def test_every_test_that_the_guarantees_name_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/guarantees.md").read_text()))
    assert len(named) > 20
    written = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", file.read_text())
    }
    assert named - written == set()


@every_page
def test_links_lead_somewhere(page: Page) -> None:
    for target, anchor in page.links():
        there = (page.path.parent / target).resolve() if target else page.path
        assert there.exists(), f"{page.name} links to {target}"
        if anchor and there.suffix == ".md":
            linked = Page(str(there.relative_to(ROOT)))
            assert anchor in linked.anchors(), f"{page.name} links to {target}#{anchor}"


@every_page
def test_every_block_says_its_language_and_only_text_is_left_alone(page: Page) -> None:
    assert {block.language for block in page.fenced} <= RUN | READ | {"text"}
    assert page.text.count("\n```") == 2 * len(page.fenced), "a block does not end"
    assert not re.search("^ +```", page.text, re.MULTILINE), "blocks inside of lists are not found"


@every_page
def test_every_command_exists_as_it_is_written(page: Page) -> None:
    wrong = [(command.where, problem(command)) for command in commands(page) if problem(command)]
    assert wrong == []


@every_page
def test_every_command_that_the_text_names_exists(page: Page) -> None:
    wrong = []
    for command in spoken_commands(page):
        said = problem(command)
        # The text may leave out what a command cannot do without, as in `relay show`.
        if said and not re.search("Missing (argument|option|parameter)|argument is required", said):
            wrong.append((command.where, said))
    assert wrong == []


@every_page
def test_every_snippet_can_be_read(page: Page) -> None:
    for block in page.of("python"):
        ast.parse(block.text, f"{page.name}:{block.line}")
    for block in page.of("json"):
        json.loads(block.text)
    for block in page.of("yaml"):
        list(yaml.safe_load_all(block.text))
    for block in page.of("toml"):
        values = tomllib.loads(block.text)
        if "project" not in values:
            Settings.model_validate({"database_url": "postgresql://app@localhost/shop"} | values)


def test_a_wrong_command_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page("docs/imagined.md")
    lines = (
        "relay status --no-such-option",
        "relay no-such-command",
        "RELAY_NO_SUCH=1 relay status",
        "make no-such-target",
        "mkfs /dev/sda",
        "pip install 'outbox-relay[no-such-extra]'",
        "relay status | mkfs",
        "relay status \\\n  --no-such-option",
    )
    for line in lines:
        monkeypatch.setattr(Page, "text", f"# A\n\n```sh\n{line}\n```\n")
        assert any(problem(command) for command in commands(Page(page.name))), line
    monkeypatch.setattr(Page, "text", "# A\n\n    relay status --no-such-option\n")
    assert any(problem(command) for command in commands(page))


def test_blocks_and_commands_are_found() -> None:
    found = Counter(block.language for page in pages() for block in page.blocks)
    assert min(found[language] for language in ("python", "sql", "sh")) > 10
    assert sum(program(command)[:1] == ("relay",) for page in pages() for command in commands(page)) > 100
    assert sum(1 for page in pages() for _ in spoken_commands(page)) > 50


def test_every_foreign_program_that_is_let_through_is_used() -> None:
    used = {program(command)[0] for page in pages() for command in commands(page) if program(command)}
    assert set(FOREIGN) - used == set()


def test_every_page_of_docs_is_in_the_index() -> None:
    index = Page("docs/README.md")
    linked = {str((index.path.parent / target).resolve().relative_to(ROOT)) for target, _ in index.links()}
    there = {page.name for page in pages() if page.name.startswith("docs/")}
    assert there - linked == {index.name}


def test_the_page_on_operating_shows_an_example_of_each_command_that_acts() -> None:
    shown = {program(command)[1] for command in commands(Page("docs/operating.md"))}
    assert shown >= {"retry", "skip", "replay", "pause", "resume", "prune"}
