"""The alerts fire on what they are about and on nothing else; they and the dashboard name what exists."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import pytest
import yaml

from relay.metrics import Metrics
from relay.series import Series
from tests.conftest import missing

COMPOSE = Path(__file__).parent.parent.parent / "compose"
ALERTS = COMPOSE / "prometheus/alerts.yml"
STORIES = COMPOSE / "prometheus/alerts.test.yml"
DASHBOARDS = sorted((COMPOSE / "grafana/dashboards").glob("*.json"))
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]

# What Prometheus itself adds to every scrape, and the process's own.
OTHERS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}
TARGET_LABELS = {"job", "instance"}


def known() -> dict[str, Series]:
    return {sample: series for series in Metrics().series for sample in series.samples()}


class Named(NamedTuple):
    """A metric in an expression, and every label that its query names."""

    metric: str
    labels: frozenset[str]


def walk(expression: Any, grouped: frozenset[str] = frozenset()) -> Iterator[Named]:
    match expression:
        case promql.VectorSelector():
            matched = {matcher.name for matcher in expression.matchers.matchers}
            yield Named(expression.name or "", grouped | matched)
        case promql.MatrixSelector():
            yield from walk(expression.vector_selector, grouped)
        case promql.AggregateExpr():
            labels = frozenset(expression.modifier.labels) if expression.modifier else frozenset()
            yield from walk(expression.expr, grouped | labels)
        case promql.Call():
            for argument in expression.args:
                yield from walk(argument, grouped)
        case promql.BinaryExpr():
            yield from walk(expression.lhs, grouped)
            yield from walk(expression.rhs, grouped)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from walk(expression.expr, grouped)
        case promql.NumberLiteral() | promql.StringLiteral():
            return
        case _:
            raise AssertionError(f"an expression of a kind this test does not know: {expression}")


def strangers(expression: str) -> list[str]:
    """What the expression names and the relay does not expose."""
    series = known()
    found = []
    for metric, labels in walk(promql.parse(expression)):
        if metric in OTHERS:
            allowed = TARGET_LABELS
        elif metric in series:
            allowed = {*series[metric].labels, *TARGET_LABELS}
            allowed |= {"le"} if metric.endswith("_bucket") else set()
        else:
            found.append(metric)
            continue
        found += [f"{metric}{{{label}}}" for label in sorted(labels - allowed)]
    return found


def unaggregated(expression: Any, *, inside: bool = False) -> Iterator[str]:
    """Metrics whose instance is still part of what the expression says."""
    if isinstance(expression, promql.AggregateExpr):
        labels = expression.modifier.labels if expression.modifier else []
        inside = "instance" not in labels
    if isinstance(expression, promql.VectorSelector):
        if not inside:
            yield expression.name or ""
        return
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if hasattr(expression, name):
            yield from unaggregated(getattr(expression, name), inside=inside)
    for argument in getattr(expression, "args", []):
        yield from unaggregated(argument, inside=inside)


def targets(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every query of a dashboard with its panel's title; Grafana's own variables stand for plain values."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$job", "outbox")


def test_a_name_that_does_not_exist_is_found() -> None:
    assert strangers("sum(rate(relay_published_total[5m])) > 1") == ["relay_published_total"]
    assert strangers('relay_claim_seconds{le="1"} > 1') == ["relay_claim_seconds"]
    assert strangers("sum by (topic) (relay_published_events_total)") == [
        "relay_published_events_total{topic}"
    ]
    assert strangers('relay_dead_tuples{name="outbox"}') == ["relay_dead_tuples{name}"]
    assert strangers('max by (job, table) (relay_dead_tuples{job="x"}) / on (job) up') == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_only_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    assert strangers(rule["expr"]) == []
    mentioned = set(re.findall(r"\$labels\.(\w+)", yaml.safe_dump(rule["annotations"])))
    labels = {label for named in walk(promql.parse(rule["expr"])) for label in named.labels}
    if not rule["expr"].startswith("up"):  # a bare selector keeps all labels
        assert mentioned <= labels


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_on_the_whole_outbox_does_not_start_anew_when_the_post_moves(rule: dict[str, Any]) -> None:
    of_the_outbox = {name for name, series in known().items() if series.source == "housekeeper"}
    assert set(unaggregated(promql.parse(rule["expr"]))) & of_the_outbox == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_what_is_wrong(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_names_only_metrics_and_labels_that_exist(path: Path) -> None:
    queries = list(targets(json.loads(path.read_text())))
    assert len(queries) > 10
    assert {title: strangers(query) for title, query in queries if strangers(query)} == {}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_one_that_grafana_can_show(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"]
    assert dashboard["schemaVersion"] >= 39
    panels = dashboard["panels"]
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers)
    source = yaml.safe_load((COMPOSE / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    uids = {found["uid"] for found in source["datasources"]}
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, f"{panel['title']} lies on another panel"
        cells |= own
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] in uids
            assert panel["description"]
            letters = [target["refId"] for target in panel["targets"]]
            assert len(set(letters)) == len(letters)


def test_the_dashboard_shows_every_metric_of_the_relay() -> None:
    shown = {
        named.metric
        for path in DASHBOARDS
        for _, query in targets(json.loads(path.read_text()))
        for named in walk(promql.parse(query))
    }
    hidden = [series.name for series in Metrics().series if not shown & set(series.samples())]
    assert hidden == []


@pytest.fixture(scope="module")
def promtool() -> str:
    return shutil.which("promtool") or missing("promtool is not installed: make servers.")


def run(promtool: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_prometheus_takes_the_rules(promtool: str) -> None:
    checked = run(promtool, "check", "rules", ALERTS)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(RULES)} rules found" in checked.stdout


def test_every_alert_fires_and_stays_quiet_as_its_stories_say(promtool: str) -> None:
    tested = run(promtool, "test", "rules", STORIES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_story_that_is_not_true_is_found(promtool: str, tmp_path: Path) -> None:
    stories = yaml.safe_load(STORIES.read_text())
    (story,) = [test for test in stories["tests"] if test["name"] == "OutboxNoRelay: one is up"]
    story["promql_expr_test"][0]["exp_samples"] = [{"labels": "{}", "value": 1}]
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(yaml.safe_dump(stories | {"rule_files": [str(ALERTS)], "tests": [story]}))
    assert run(promtool, "test", "rules", wrong).returncode == 1


def test_every_alert_has_a_story_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    told = set()
    for test in yaml.safe_load(STORIES.read_text())["tests"]:
        alert = test["name"].partition(":")[0]
        (look,) = test["promql_expr_test"]
        assert f'alertname="{alert}",alertstate="firing"' in look["expr"]
        told.add((alert, bool(look["exp_samples"])))
    assert told == {(rule["alert"], fires) for rule in RULES for fires in (True, False)}


def test_the_stories_use_series_that_exist() -> None:
    stories = yaml.safe_load(STORIES.read_text())["tests"]
    series = {given["series"] for story in stories for given in story["input_series"]}
    assert {name: strangers(name) for name in series if strangers(name)} == {}
