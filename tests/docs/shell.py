"""The shell lines of the documents: each program is known, and each command of the relay exists as written.

`relay` is parsed by its own definition, `make` and `pip` are held against the Makefile and pyproject.toml,
`psql -c` is handed to whoever runs SQL. Whatever else a line starts must be in FOREIGN, with the reason why
no test runs it.
"""

import re
import shlex
import tomllib
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import typer.main

from relay.cli import make_app
from relay.settings import PREFIX, Settings
from tests.docs.pages import ROOT, SHELL, Page

FOREIGN = {
    "compose/secrets.sh": "writes secrets into the reader's copy; tests/unit/test_compose.py runs it",
    "cp": "copies onto the reader's machine",
    "curl": "asks a relay or the example that the reader has started",
    "docker": "needs a container engine; tests/system/test_compose_wiring.py covers the stack",
    "install": "writes to the reader's /etc",
    "kafka-consumer-groups.sh": "Kafka's own tool, on the reader's broker",
    "kafka-topics.sh": "Kafka's own tool, on the reader's broker",
    "kubectl": "needs a cluster; tests/unit/test_compose.py checks the manifests",
    "python3": "makes an environment on the reader's machine",
    "rm": "removes what the reader has made",
    "systemctl": "needs systemd and root",
    "test": "part of the reader's own check",
}
# Settings of the image and of the tests, not of the relay.
OTHER_VARIABLES = re.compile(rf"{PREFIX}(TEST_\w+|\w+_FILE)$")


@dataclass(frozen=True)
class Command:
    page: str
    line: int
    words: tuple[str, ...]
    piped: bool  # into another: what it prints is not for people

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def commands(page: Page) -> Iterator[Command]:
    for block in page.of(*SHELL):
        text = block.text
        if block.language == "console":  # prompts and answers
            text = re.sub(r"^(?!\$ ).*$", "", text, flags=re.MULTILINE).replace("$ ", "")
        joined = re.sub(r"\\\n", lambda _: "\\\0", text)
        for number, line in enumerate(joined.replace("\\\0", " ").splitlines(), block.line):
            for words, piped in _split(line):
                yield Command(page.name, number, words, piped)


def spoken_commands(page: Page) -> Iterator[Command]:
    for line, text in page.spoken():
        if "…" not in text:
            yield from (Command(page.name, line, words, piped) for words, piped in _split(text))


def _split(line: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for token in lexer:
        if token in ("|", "&&", "||", ";", "&"):
            yield tuple(words), token == "|"
            words = []
        else:
            words.append(token)
    if words:
        yield tuple(words), False


def assignments(command: Command) -> dict[str, str]:
    """The variables that the command sets, exported or for its own program."""
    named = command.words[1:] if command.words[0] == "export" else _leading(command.words)
    return dict(word.split("=", 1) for word in named if re.match(r"[A-Z_]+=", word))


def program(command: Command) -> tuple[str, ...]:
    """The program and its arguments, without what is assigned before it or redirected behind it."""
    words = command.words[len(_leading(command.words)) :]
    ends = [words.index(sign) for sign in (">", ">>", "<", "<<<", "2>") if sign in words]
    words = words[: min(ends)] if ends else words
    return (words[0].removeprefix(".venv/bin/"), *words[1:]) if words else ()


def _leading(words: tuple[str, ...]) -> tuple[str, ...]:
    count = next((n for n, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)), len(words))
    return words[:count]


def problem(command: Command) -> str | None:
    """What is wrong with a command, or None."""
    named = [name for name in assignments(command) if name.startswith(PREFIX)]
    return _missing("setting", [name for name in named if not is_setting(name)], ()) or _misuse(command)


def _misuse(command: Command) -> str | None:
    match program(command):
        case () | ("export" | "psql", *_) | ("cd", _):
            return None
        case ("relay", *arguments):
            return misuse(arguments)
        case ("make", *targets):
            return _missing("target of make", (word for word in targets if "=" not in word), make_targets())
        case ("pip" | "/opt/outbox-relay/bin/pip", "install", *what):
            extras = (extra for word in what for extra in re.findall(r"[\w-]+", word.partition("[")[2]))
            return _missing("extra", extras, known_extras())
        case ("python", *words):
            files = (word for word in words if word.endswith(".py"))
            modules = (word.replace(".", "/") for word in words if word.startswith(("tests.", "examples.")))
            gone = [name for name in (*files, *modules) if not list(ROOT.glob(f"{name}*"))]
            return f"there is no {', '.join(gone)}" if gone else None
        case words:
            return _missing("program in FOREIGN, with a reason,", words[:1], FOREIGN)


def _missing(what: str, named: Iterable[str], known: Container[str]) -> str | None:
    missing = [name for name in named if name not in known]
    return f"there is no {what} called {', '.join(missing)}" if missing else None


def misuse(arguments: list[str]) -> str | None:
    """What the command line itself has against these words."""
    command = command_line()
    words, names = list(arguments), ["relay"]
    while words and hasattr(command, "commands"):
        names.append(words.pop(0))
        if names[-1] in ("--help", "-h"):
            return None
        if names[-1] not in command.commands:
            return f"there is no command '{' '.join(names)}'"
        command = command.commands[names[-1]]
    if hasattr(command, "commands") or words in (["--help"], ["-h"]):
        return None
    try:
        command.make_context(names[-1], words)
    except Exception as error:  # noqa: BLE001 - whatever the parser finds
        return str(getattr(error, "message", error))
    return None


def is_setting(variable: str) -> bool:
    if OTHER_VARIABLES.match(variable):
        return True
    name, _, rest = variable.removeprefix(PREFIX).lower().partition("__")
    field = Settings.model_fields.get(name)
    inner = getattr(field.annotation, "model_fields", None) if field else None
    return field is not None and (not rest or inner is None or rest.partition("__")[0] in inner)


@cache
def command_line() -> Any:
    return typer.main.get_command(make_app())


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@cache
def known_extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])
