"""The pages on a database of the test's own, in a Chromium that all tests of a process share."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from relay.http import HttpServer
from relay.metrics import Metrics
from relay.settings import Settings
from tests.conftest import missing
from tests.web.browser import DESKTOP, Browser, chromium, program
from tests.web.client import OPERATOR

Serve = Callable[..., HttpServer]


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if program() is None:
        missing("Chromium and its driver are not installed: make servers.")
    logging.getLogger("selenium").setLevel(logging.WARNING)
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def serve(database: str) -> Iterator[Serve]:
    """serve(operator_token=…) is a server of the pages of `database`, as a relay runs it."""
    with ExitStack() as stack:

        def start(**values: Any) -> HttpServer:
            settings = Settings(
                **{"database_url": database, "publisher": "stdout", "http": "127.0.0.1:0"} | values
            )
            server = HttpServer(settings, Metrics(), lambda: None)
            server.start()
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def browser(_chromium: Browser) -> Iterator[Browser]:
    """A browser that nobody has used before, so to speak; at the end nothing may have been amiss in it."""
    _chromium.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    _chromium.size(*DESKTOP)
    _chromium.theme("light")
    _chromium.complaints()
    yield _chromium
    _chromium.driver.get("about:blank")


@pytest.fixture
def visitor(serve: Serve, browser: Browser) -> Browser:
    """The browser at pages that only show."""
    browser.home = f"http://127.0.0.1:{serve().port}"
    return browser


@pytest.fixture
def operator(serve: Serve, browser: Browser) -> Browser:
    """The browser, signed in with the operator's token."""
    browser.home = f"http://127.0.0.1:{serve(operator_token=OPERATOR).port}"
    browser.open("/sign-in")
    browser.fill("#token", OPERATOR)
    browser.fill("#name", "ana")
    browser.press("Sign in")
    browser.shows("ana", "#who")
    return browser


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return tmp_path
