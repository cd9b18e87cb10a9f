"""The health file: whole at any moment, honest, and gone with the relay."""

import json
from pathlib import Path
from typing import Any

import pytest

from relay import health_file
from relay.errors import SettingsError
from relay.health_file import HealthFile
from tests.system.relays import wait_until


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_file, "WRITE_SECONDS", 0.01)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_it_follows_the_probes_and_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "health"
    wrong: dict[str, str | None] = {"live": None, "ready": "not connected to the database"}
    file = HealthFile(path, lambda: wrong["live"], lambda: wrong["ready"])
    file.start()
    first = read(path)
    assert (first["live"], first["ready"], first["reason"]) == (True, False, "not connected to the database")
    wrong["ready"] = None
    wait_until(lambda: read(path)["ready"], what="it is ready")
    assert read(path)["reason"] is None
    wrong["live"] = "the publisher hangs"
    wait_until(lambda: not read(path)["live"], what="it is not alive")
    assert (read(path)["ready"], read(path)["reason"]) == (False, "the publisher hangs")
    file.stop()
    assert list(tmp_path.iterdir()) == []
    file.stop()


def test_without_a_path_there_is_no_file_and_no_thread(tmp_path: Path) -> None:
    file = HealthFile(None, lambda: None, lambda: None)
    file.start()
    file.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_an_error_in_the_settings(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "health"
    with pytest.raises(SettingsError, match=f"health_file = {missing} cannot be written: No such file"):
        HealthFile(missing, lambda: None, lambda: None).start()


def test_a_directory_that_goes_away_is_told_once_and_written_to_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / "health"
    asked: list[None] = []
    file = HealthFile(path, lambda: asked.append(None), lambda: None)
    file.start()
    folder.rename(tmp_path / "gone")
    wait_until(lambda: caplog.text, what="the loss is told")
    before = len(asked)
    wait_until(lambda: len(asked) > before + 3, what="it goes on trying")
    folder.mkdir()
    wait_until(path.exists, what="the file is back")
    file.stop()
    assert caplog.text.count("cannot be written") == 1
