"""Relay processes, as tests/system has them."""

from tests.system.conftest import relay

__all__ = ["relay"]
