"""When a relay says that it does not relay, and when that only a restart would help."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

from publishers.memory import MemoryPublisher
from relay.metrics import Metrics
from relay.settings import Settings
from relay.worker.relay import Relay


@dataclass
class Life:
    """A registration as the probes see it."""

    silent: float = 1.0
    late: float = 0.0
    neglected: float = 1.0

    def silence(self) -> float:
        return self.silent

    def overdue(self) -> float:
        return self.late

    def neglect(self) -> float:
        return self.neglected

    def drain(self) -> None: ...


def relay(life: Life | None = None) -> Relay:
    settings = Settings(database_url="postgresql://nobody@127.0.0.1:1/none")  # type: ignore[arg-type]
    made = Relay(settings, MemoryPublisher({}), Metrics())
    made._registration = cast("Any", life)
    return made


def test_a_relay_that_has_registered_and_hears_from_its_database_is_ready_and_alive() -> None:
    assert relay(Life()).readiness() is None
    assert relay(Life()).liveness() is None


@pytest.mark.parametrize(
    "life, reason",
    [
        (None, "not connected to the database"),
        (Life(silent=11), "the database has not answered for 11 s"),
        (Life(late=4), "the publisher has not returned 4 s after its deadline"),
        (Life(late=61, silent=11), "the database has not answered for 11 s"),
    ],
)
def test_it_is_not_ready_while_it_cannot_relay(life: Life | None, reason: str) -> None:
    assert relay(life).readiness() == reason


def test_wrong_settings_of_the_publisher_are_told_until_something_goes_out() -> None:
    made = relay(Life())
    made._hold.engage("wrong password")
    assert made.readiness() == "claiming pauses: wrong password"
    made._hold.lift()
    assert made.readiness() is None


def test_a_relay_that_was_told_to_stop_drains() -> None:
    made = relay(Life())
    made.stop()
    assert (made.readiness() or "").startswith("draining")
    assert made.liveness() is None


@pytest.mark.parametrize("life", [None, Life(silent=10_000), Life(late=30)])
def test_no_database_and_no_broker_makes_it_dead(life: Life | None) -> None:
    assert relay(life).liveness() is None


@pytest.mark.parametrize(
    "life, reason",
    [
        (Life(late=61), "the publisher hangs: it has not returned 61 s after its deadline"),
        (Life(neglected=61), "the relay hangs: its threads have not been looked after for 61 s"),
    ],
)
def test_what_only_a_restart_would_help_makes_it_dead(life: Life, reason: str) -> None:
    assert relay(life).liveness() == reason
