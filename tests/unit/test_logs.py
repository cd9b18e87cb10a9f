"""Logs: what a terminal shows, what a machine reads, and what neither ever sees."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from relay.logs import configure, hide, redact

log = logging.getLogger("relay.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def loggers_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    root = logging.getLogger()
    named = [root, logging.getLogger("relay"), logging.getLogger("publishers")]
    handlers, levels = list(root.handlers), [logger.level for logger in named]
    yield
    hide([])
    root.handlers[:] = handlers
    for logger, level in zip(named, levels, strict=True):
        logger.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_machine_gets_one_object_per_line_with_the_extra_fields() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    log.info("worker %s\nrelays", "w1", extra={"worker": "w1", "events": 3, "where": object})
    log.error("no")
    first, second = lines(stream)
    assert first | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": "relay.test",
        "message": "worker w1\nrelays",
        "worker": "w1",
        "events": 3,
        "where": str(object),
    }
    assert first["time"].endswith("+00:00")
    assert second["level"] == "error"


def test_an_extra_field_cannot_replace_one_of_ours() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    log.info("true", extra={"level": "fake", "time": "fake"})
    assert lines(stream)[0]["level"] == "info"
    assert lines(stream)[0]["time"] != "fake"


def test_a_terminal_gets_short_lines_coloured_by_how_bad_it_is() -> None:
    stream = Terminal()
    configure(stream=stream)
    log.info("fine", extra={"events": 3})
    log.warning("careful")
    fine, careful = stream.getvalue().splitlines()
    assert fine[8:] == " fine  events=3"
    assert careful[8:] == " \x1b[33mwarning: careful\x1b[0m"


@pytest.mark.parametrize("name, value", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colours_gets_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    stream = Terminal()
    configure(stream=stream)
    log.error("bad")
    assert stream.getvalue()[8:] == " error: bad\n"


def test_libraries_speak_only_when_something_is_wrong() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    logging.getLogger("somelibrary").info("chatter")
    logging.getLogger("somelibrary").warning("trouble")
    log.debug("detail")
    assert [line["message"] for line in lines(stream)] == ["trouble"]


def test_configuring_twice_does_not_print_twice() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    configure(stream=stream)
    log.info("once")
    assert len(lines(stream)) == 1


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_passwords_are_hidden_in_messages_fields_and_tracebacks(stream: io.StringIO) -> None:
    configure(stream=stream)
    url = "postgresql://relay:hunter2@db/shop"
    try:
        raise ValueError(url)
    except ValueError as error:
        log.exception("cannot reach %s", url, extra={"cause": error, "url": url})
    assert "hunter2" not in stream.getvalue()
    assert "cannot reach postgresql://relay:***@db/shop" in stream.getvalue()
    assert "Traceback" in stream.getvalue()


@pytest.mark.parametrize(
    "text, shown",
    [
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ("amqps://u:p%40x@h:5671/%2f and more", "amqps://u:***@h:5671/%2f and more"),
        ("postgresql://u:p@ss@h1,h2/d", "postgresql://u:***@h1,h2/d"),
        ("postgresql://:p@h/d", "postgresql://:***@h/d"),
        ("postgresql://h/d?user=u&password=p&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("host=h password='a b\\'c' dbname=d", "host=h password=*** dbname=d"),
        ("sasl.password=p", "sasl.password=***"),
        ("postgresql://relay:p'w9secret@db/app", "postgresql://relay:***@db/app"),
        ('postgresql://relay:p"w9secret@db/app', "postgresql://relay:***@db/app"),
        ("host=db password=abc,def;ghi", "host=db password=***"),
        ("host=db password=a'b&c\"d dbname=d", "host=db password=*** dbname=d"),
        ("password=pa\\ ss host=db", "password=*** host=db"),
        ("postgresql://db/app?user=relay&password=abc,def", "postgresql://db/app?user=relay&password=***"),
        ("postgresql://db/app?passw%6Frd=hidden1&x=1", "postgresql://db/app?passw%6Frd=***&x=1"),
        ("https://h/?page=2&limit=3", "https://h/?page=2&limit=3"),
        ("http://h:80/a@b", "http://h:80/a@b"),
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("order:9182 at 12:30", "order:9182 at 12:30"),
    ],
)
def test_only_the_password_of_a_url_is_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_known_secrets_are_hidden_however_they_are_written(stream: io.StringIO) -> None:
    hide(["pa ss", "p'w9/secret", "abc"])
    configure(stream=stream)
    log.warning(
        "login with pa ss, p'w9/secret or p%27w9%2Fsecret", extra={"tried": ["pa ss", "p%27w9/secret"]}
    )
    log.info("abc is too short to be told from a word, and pa ssed is another one")
    text = stream.getvalue()
    assert "login with ***, *** or ***" in text
    assert "secret" not in text
    assert "pa ss," not in text
    assert "abc is too short to be told from a word, and pa ssed is another one" in text


def test_only_the_secrets_told_last_are_known() -> None:
    hide(["the-first-one"])
    hide(["the-second-one"])
    assert redact("the-first-one the-second-one") == "the-first-one ***"
    hide([])
    assert redact("the-second-one") == "the-second-one"


def test_logs_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    log.info("here")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["message"] == "here"
    assert sys.stderr is not None
