"""docs/metrics.md says what the relay exposes."""

import re

from relay.metrics import Metrics
from tests.metrics_reference import BEGIN, DOCUMENT, END, renewed


def test_the_reference_is_up_to_date() -> None:
    text = DOCUMENT.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert text == renewed(text), "run: python -m tests.metrics_reference"


def test_every_metric_that_the_text_names_exists() -> None:
    known = {name for series in Metrics().series for name in [series.name, *series.samples()]}
    named = set(re.findall(r"\brelay_[a-z_]+", DOCUMENT.read_text()))
    assert named - known == set()
