"""Destinations: the host that a URL names, and what of it may be shown."""

import pytest

from relay.destination import host_of, shown


@pytest.mark.parametrize(
    "destination,host,seen",
    [
        ("orders", "", "orders"),
        ("orders.paid/v1", "", "orders.paid/v1"),
        ("https://hooks.example.com/a/b?token=s3cret", "hooks.example.com", "https://hooks.example.com"),
        ("https://hooks.example.com?token=s3cret", "hooks.example.com", "https://hooks.example.com"),
        (
            "https://user:p@ss@Hooks.Example.com:8443/x",
            "hooks.example.com:8443",
            "https://hooks.example.com:8443",
        ),
        ("https://hooks.example.com#s3cret", "hooks.example.com", "https://hooks.example.com"),
    ],
)
def test_a_url_shows_its_host_and_nothing_that_could_be_secret(
    destination: str, host: str, seen: str
) -> None:
    assert host_of(destination) == host
    assert shown(destination) == seen
