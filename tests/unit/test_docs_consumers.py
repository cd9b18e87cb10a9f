"""The snippets of docs/consumers.md are right."""

import re
import sqlite3
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from relay.consumers.metrics import metrics_of

TEXT = (Path(__file__).parent.parent.parent / "docs/consumers.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_recipe_without_postgresql_applies_each_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (recipe,) = [snippet for snippet in SNIPPETS if "sqlite3" in snippet]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(recipe, "docs/consumers.md", "exec"), names)
    on_message, conn = names["on_message"], names["conn"]
    assert callable(on_message)
    assert isinstance(conn, sqlite3.Connection)
    for event_id in ("evt-1", "evt-2", "evt-1"):
        on_message(event_id, {"amount": 10})
    assert conn.execute("SELECT event_id FROM ledger").fetchall() == [("evt-1",), ("evt-2",)]
    conn.close()
    assert [file.name for file in tmp_path.iterdir()] == ["billing.sqlite"]


def test_every_metric_of_consumers_is_named() -> None:
    assert metrics_of(REGISTRY) is metrics_of(None)
    for metric in vars(metrics_of(None)).values():
        assert f"`{metric._name}" in TEXT
