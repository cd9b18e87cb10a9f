"""What greets contributors works: the hooks are those of `make check`, the issue forms are forms."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def test_the_hooks_of_pre_commit_are_the_commands_of_make_check() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook["entry"].replace(" --force-exclude", "") for each in repositories for hook in each["hooks"]]
    (recipe,) = re.findall(r"^check: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [
        line.strip().replace("$(BIN)", ".venv/bin").removesuffix(" .") for line in recipe.splitlines()
    ]
    assert [each["repo"] for each in repositories] == ["local"]
    assert hooks == commands


@pytest.mark.parametrize(
    "file", [form for form in FORMS if form.stem != "config"], ids=lambda file: file.stem
)
def test_an_issue_form_asks_for_something(file: Path) -> None:
    form = yaml.safe_load(file.read_text())
    assert {"name", "description", "body"} <= set(form)
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in asked}) == len(asked)
    assert all(field["attributes"]["label"] for field in asked)
    assert any(field.get("validations", {}).get("required") for field in asked)


def test_every_target_of_make_says_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    told = re.findall(r"^([a-z-]+):.*  ## .+$", makefile, re.MULTILINE)
    assert sorted(phony.split()) == sorted(told)
