"""Randomised faults on a Kafka of its own; docs/evidence/kafka-trials.txt has the log of a long run."""

import pytest

from relay.demo.postgres import ServerError
from tests.conftest import missing
from tests.servers.kafka import find_jars
from tests.system.trials_kafka import ROUND, trials

BITES = 12


@pytest.mark.server
@pytest.mark.slow
def test_nothing_is_lost_or_out_of_order_whatever_the_broker_does() -> None:
    try:
        find_jars()
    except ServerError as error:
        missing(str(error))
    run = list(trials(BITES, seed=20260701))
    for trial in run:
        assert trial.verdict.kept_the_promise, trial
    bit = [trial for trial in run if trial.bit]
    assert len(bit) == BITES, "too many faults did not bite"
    assert {trial.verdict.fault for trial in run} == set(ROUND)
