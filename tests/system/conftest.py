"""Relay processes for tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.relays import RelayProcess, relays


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Callable[..., RelayProcess]]:
    """Starts relay processes: relay(database, "--until-empty", completion="delete")."""
    with relays(tmp_path) as start:
        yield start
