"""Makes the pictures of docs/images: `python -m tests.web.screenshots`, which takes five minutes."""

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relay.http import HttpServer
from relay.metrics import Metrics
from relay.pause import Subject
from relay.settings import Settings
from relay.store import steer
from relay.store.connection import connect, resolve
from relay.store.migrate import migrate
from tests.servers import postgres
from tests.system.relays import relays
from tests.web import shop
from tests.web.browser import DESKTOP, PHONE, Browser, chromium

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
TOKEN = "only-for-these-pictures"
LATEST = "return new URL(document.querySelector('a.quiet[href^=\"/event?\"]').href).searchParams.get('id')"
Shot = tuple[str, str, str]  # address, name, a text that must be there

FLOWING: tuple[Shot, ...] = (("/", "overview", "Throughput"), ("/workers", "workers", "Who watches"))
HELD: tuple[Shot, ...] = (
    ("/waiting", "waiting", "in flight"),
    ("/dead-letters", "dead-letters", "groups"),
    ("/events", "events", "position"),
    ("/event?id=EVENT", "event", "Payload"),
    ("/pauses", "pauses", "CartAbandoned"),
    ("/audit", "audit", "Paused event type"),
    ("/doctor", "doctor", "as of"),
)
ON_A_PHONE: tuple[Shot, ...] = (("/", "overview", "Throughput"), ("/dead-letters", "dead-letters", "groups"))


def main(seconds: float = 290.0) -> None:
    with tempfile.TemporaryDirectory() as place, postgres.embedded() as server:
        url = server.url()
        migrate(url)
        furnish(url)
        with relays(Path(place)) as start, writing(url):
            for _ in range(3):
                start(url, publisher="tests.web.shop:ShopPublisher", destination="shop.orders")
            values = {"operator_token": TOKEN, "destination": "shop.orders", "http": "127.0.0.1:0"}
            settings = Settings(database_url=url, publisher="stdout", **values)  # type: ignore[arg-type]
            http = HttpServer(settings, Metrics(), lambda: None)
            http.start()
            try:
                with chromium(Path(place) / "profile") as browser:
                    browser.home = f"http://127.0.0.1:{http.port}"
                    take(browser, url, seconds)
            finally:
                http.stop()


def furnish(url: str) -> None:
    shop.park(url, 23, "evt-inv", "InvoiceIssued", "record # has no currency: schema invoices-v3 demands one")
    shop.park(url, 9, "evt-mail", "MailDue", "mailer-2.internal:2525 timed out after 3 s")
    refused = "exchange refunds does not take messages over 128 KiB"
    shop.park(url, 2, "evt-refund", "RefundMade", refused, "failed")


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Waves, as a day has them."""
    ended = threading.Event()

    def write() -> None:
        began = time.monotonic()
        while not ended.wait(0.5):
            phase = (time.monotonic() - began) % 70
            shop.write(url, 700 if 30 < phase < 36 else 60 + int(4 * abs(35 - phase)))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def take(browser: Browser, url: str, seconds: float) -> None:
    browser.open("/sign-in")
    browser.fill("#token", TOKEN)
    browser.fill("#name", "ana")
    browser.press("Sign in")
    browser.shows("Throughput")
    time.sleep(seconds)
    for theme in ("light", "dark"):
        browser.theme(theme)
        shoot(browser, FLOWING, "-dark" if theme == "dark" else "")
        browser.size(*PHONE)
        shoot(browser, ON_A_PHONE, "-phone" + ("-dark" if theme == "dark" else ""))
        browser.size(*DESKTOP)
    browser.theme("light")
    with connect(url) as conn:
        carts = Subject("event_type", "CartAbandoned")
        reason = "the campaign is under review"
        table = resolve(conn, Settings(database_url=url).table_name)  # type: ignore[arg-type]
        steer.pause(conn, table, carts, actor="ana@ops-1", reason=reason)
    shop.behind(url, "order:7001", 14)
    time.sleep(6)
    shoot(browser, HELD, "")


def shoot(browser: Browser, shots: tuple[Shot, ...], suffix: str) -> None:
    event = ""
    for path, name, ready in shots:
        browser.open(path.replace("EVENT", event))
        browser.shows(ready)
        time.sleep(2.5)
        if name == "dead-letters":
            event = browser.run(LATEST)
        browser.picture(IMAGES / f"{name}{suffix}.png")
        sys.stdout.write(f"{name}{suffix}\n")


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    main(*map(float, sys.argv[1:]))
