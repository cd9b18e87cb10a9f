"""Fixtures that the tests of the store share."""

from collections.abc import Iterator

import pytest

from tests.integration.store_kit import Stage


@pytest.fixture
def stage(database: str) -> Iterator[Stage]:
    """A new database with the outbox, and actors on it."""
    stage = Stage(database)
    yield stage
    stage.close()
