"""What is made in docs/ is up to date, and says what it should of everything."""

import re

import pytest

from relay.metrics import Metrics
from relay.settings import KafkaSettings, RabbitSettings, Settings, WebhookSettings
from tests.references import PARTS, Part, licences
from tests.references.settings import texts

SECTIONS = {"kafka", "rabbitmq", "webhook"}
MODELS = [Settings, KafkaSettings, RabbitSettings, WebhookSettings]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_reference_is_up_to_date(part: Part) -> None:
    assert part.document.read_text() == part.renewed(), "run: make docs"


def test_every_metric_that_the_text_names_exists() -> None:
    known = {name for series in Metrics().series for name in [series.name, *series.samples()]}
    (metrics,) = [part for part in PARTS if part.name == "metrics"]
    named = set(re.findall(r"\brelay_[a-z_]+", metrics.document.read_text()))
    assert named - known == set()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_setting_has_its_text(model: type[Settings]) -> None:
    assert set(texts(model)) == set(model.model_fields) - SECTIONS


@pytest.mark.parametrize("name", licences.pinned())
def test_a_dependency_has_a_licence_that_is_allowed(name: str) -> None:
    assert licences.allowed(name), f"{name} is under {licences.licence(name)}: see {licences.__file__}"
