"""The samples that the pages live on: bounded, and taken whatever happens. No database."""

import logging
from typing import Any

import pytest
from pydantic import SecretStr

from relay.errors import RelayError
from relay.settings import Settings
from relay.web import live, standin
from relay.web.desk import Desk
from relay.web.live import Live
from relay.web.standin import StandIn
from tests.servers.process import wait_until

NOWHERE = Settings(database_url=SecretStr("postgresql://nobody@127.0.0.1:1/nowhere"))


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "UNWATCHED_SECONDS", 0.01)
    monkeypatch.setattr(live, "WATCHED_SECONDS", 0.01)
    monkeypatch.setattr(standin, "LOOK_SECONDS", 0.01)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What every question at a desk ends with, from the last; where one is left it is kept."""
    ends: list[Exception] = []

    def ask(self: Desk, work: Any) -> Any:
        raise ends.pop() if len(ends) > 1 else ends[0]

    monkeypatch.setattr(Desk, "ask", ask)
    return ends


def test_a_clock_that_is_set_back_does_not_let_the_samples_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Live(Desk(NOWHERE))
    clock = [1_000_000.0]
    monkeypatch.setattr(live, "time", lambda: clock[0])
    for _ in range(3000):
        clock[0] -= 1.0
        samples._keep({"trouble": "none"})
    kept = samples.since(0)
    assert len(kept) == live.KEPT_SECONDS / live.WATCHED_SECONDS
    assert kept[-1]["number"] == 3000


@pytest.mark.usefixtures("hurried")
def test_samples_go_on_after_what_nobody_expected_and_the_log_has_it(
    asked: list[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    asked += [RelayError("no database"), RelayError(), KeyError("at")]
    samples = Live(Desk(NOWHERE))
    samples.start()
    try:
        wait_until(lambda: len(samples.since(0)) >= 3, 30, "three samples")
    finally:
        samples.stop()
    told = [sample["trouble"] for sample in samples.since(0)]
    assert told[:3] == ["an error of the relay: see its log", "RelayError", "no database"]
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None


@pytest.mark.usefixtures("hurried")
def test_a_stand_in_goes_on_after_what_nobody_expected_and_the_log_has_it(
    asked: list[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    asked += [RelayError("no database"), KeyError("at"), KeyError("at")]
    stand_in = StandIn(NOWHERE)
    stand_in.start()
    try:
        wait_until(lambda: len(asked) == 1, 30, "more than one look")
    finally:
        stand_in.stop()
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(records) == 2
    assert all(record.exc_info for record in records)
