"""Makes the pictures of docs/images: `python -m tests.web.screenshots`."""

import sys
import tempfile
import threading
import time
from pathlib import Path

from relay.http import HttpServer
from relay.metrics import Metrics
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


def main(seconds: float = 150.0) -> None:
    with tempfile.TemporaryDirectory() as place, postgres.embedded() as server:
        url = server.url()
        migrate(url)
        shop.park(
            url, 23, "evt-inv", "InvoiceIssued", "record # has no currency: schema invoices-v3 demands one"
        )
        shop.park(url, 9, "evt-mail", "MailDue", "mailer-2.internal:2525 timed out after 3 s")
        shop.park(
            url, 2, "evt-fx", "RefundMade", "exchange refunds does not take messages over 128 KiB", "failed"
        )
        shop.behind(url, "order:7001", 14)
        ended = threading.Event()
        with relays(Path(place)) as start:
            for _ in range(3):
                start(url, publisher="tests.web.shop:ShopPublisher", destination="shop.orders")
            writer = threading.Thread(target=write, args=[url, ended])
            writer.start()
            settings = Settings(
                database_url=url, operator_token=TOKEN, destination="shop.orders", http="127.0.0.1:0"
            )  # type: ignore[arg-type]
            http = HttpServer(settings, Metrics(), lambda: None)
            http.start()
            try:
                with connect(url) as conn:
                    table = resolve(conn, settings.table_name)
                    steer.pause(
                        conn,
                        table,
                        steer.Subject("event_type", "CartAbandoned"),
                        actor="ana@ops-1",
                        reason="the campaign is under review",
                    )
                with chromium(Path(place) / "profile") as browser:
                    browser.home = f"http://127.0.0.1:{http.port}"
                    take(browser, seconds)
            finally:
                ended.set()
                writer.join()
                http.stop()


def write(url: str, ended: threading.Event) -> None:
    """Waves, as a day has them."""
    began = time.monotonic()
    while not ended.wait(0.5):
        phase = (time.monotonic() - began) % 70
        shop.write(url, 1600 if 30 < phase < 36 else 90 + int(4 * abs(35 - phase)))


def take(browser: Browser, seconds: float) -> None:
    IMAGES.mkdir(exist_ok=True)
    browser.open("/sign-in")
    browser.fill("#token", TOKEN)
    browser.fill("#name", "ana")
    browser.press("Sign in")
    browser.shows("Throughput")
    time.sleep(seconds)
    event = ""
    for theme in ("light", "dark"):
        browser.theme(theme)
        for width, pages in ((DESKTOP, DESKTOP_PAGES), (PHONE, PHONE_PAGES)):
            browser.size(*width)
            for path, name, ready in pages:
                if theme == "dark" and name not in DARK:
                    continue
                browser.open(path.replace("EVENT", event))
                browser.shows(ready)
                time.sleep(2.5)
                if path.startswith("/dead"):
                    event = browser.run(
                        "return new URL(document.querySelector('a.quiet[href^=\"/event?\"]').href).searchParams.get('id')"
                    )
                suffix = ("-phone" if width == PHONE else "") + ("-dark" if theme == "dark" else "")
                browser.picture(IMAGES / f"{name}{suffix}.png")
                sys.stdout.write(f"{name}{suffix}\n")


DESKTOP_PAGES = (
    ("/", "overview", "Throughput"),
    ("/workers", "workers", "Who watches which keys"),
    ("/waiting", "waiting", "in flight"),
    ("/dead-letters", "dead-letters", "in 3 groups"),
    ("/events", "events", "position"),
    ("/event?id=EVENT", "event", "Payload"),
    ("/pauses", "pauses", "CartAbandoned"),
    ("/audit", "audit", "Paused event type"),
    ("/doctor", "doctor", "as of"),
)
PHONE_PAGES = (
    ("/", "overview", "Throughput"),
    ("/events", "events", "position"),
    ("/dead-letters", "dead-letters", "in "),
)
DARK = ("overview", "workers")

if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
