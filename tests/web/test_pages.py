"""Each page in a real browser: what it shows, that it stays alive, and how it looks when things are amiss."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.store.connection import connect, resolve
from relay.store.workers import Registry
from relay.tally import Tally
from tests.integration.store_kit import OUTBOX, Actor, Raw, insert
from tests.servers.proxy import TcpProxy
from tests.web import shop
from tests.web.browser import DESKTOP, PHONE, Browser
from tests.web.conftest import Serve

CHECKS = Path(__file__).parent / "checks"
CONTRAST = (CHECKS / "contrast.js").read_text()
NAMELESS = (CHECKS / "nameless.js").read_text()
PAGES = ("/", "/workers", "/waiting", "/events", "/dead-letters", "/pauses", "/audit", "/doctor", "/sign-in")
STILL_HERE = "return window.stillHere === true"


@pytest.fixture
def furnished(database: str) -> str:
    """A database with something for every page to show."""
    shop.park(database, 3, "evt-dead", "OrderPaid", "broker-# timed out")
    shop.park(database, 1, "evt-failed", "RefundMade", "no such exchange", "failed")
    shop.behind(database, "order:7001", 4)
    with psycopg.connect(database, autocommit=True) as conn:
        insert(
            conn, "order:1", idempotency_key="evt-1", payload='{"big": 12345678901234567890, "a": [1, {}]}'
        )
        insert(conn, "order:2", available_at=Raw("now() + interval '1 hour'"), idempotency_key="evt-later")
        conn.execute(
            "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by, until) VALUES"
            " ('event_type', 'Tested', 'operator', 'under review', 'ana', NULL),"
            " ('destination', 'outbox.events', 'breaker', 'broker down', 'w1', now() + interval '1 hour')"
        )
        conn.execute(
            "INSERT INTO outbox_audit (actor, action, details) VALUES"
            " ('ana', 'pause', jsonb_build_object("
            "'scope', 'event_type', 'value', 'Tested', 'reason', 'a review'))"
        )
        conn.execute(
            "INSERT INTO outbox_workers (id, status) VALUES ('worker-1', 'alive'), ('worker-2', 'alive')"
        )
    return database


def test_the_overview_shows_where_the_outbox_stands(furnished: str, visitor: Browser) -> None:
    visitor.open("/")
    for text in ("Pending", "Dead letters", "Throughput", "Lag", "Outcomes", "Latency"):
        visitor.shows(text, "main")
    visitor.until(
        lambda: visitor.find(".tile.dead_letter .tile-number").text == "3", "three dead letters are counted"
    )
    visitor.shows("Paused: event type Tested", ".attention")
    visitor.shows("Breaker: destination outbox.events", ".attention")
    visitor.shows("1 failed event holds its key", ".attention")
    visitor.find(".tile.failed").click()
    visitor.shows("evt-failed-1", "main")
    assert visitor.driver.current_url.endswith("/events?status=failed")
    assert visitor.complaints() == []


def test_the_charts_follow_what_the_workers_tell(database: str, visitor: Browser) -> None:
    with connect(database) as conn:
        table = resolve(conn, OUTBOX)
        registry = Registry(table, 30.0)
        registry.register(conn, "worker-1", {})
        visitor.open("/")
        told = [0]

        def flows() -> bool:
            told[0] += 500
            confirmed = {"0.1": told[0], "+Inf": told[0]}
            registry.tell(conn, "worker-1", Tally({"delivered": told[0]}, {}, confirmed).as_json())
            return re.match(r"[1-9][\d.,]*k?/s", visitor.text(".chart-now")) is not None

        visitor.until(flows, "the throughput is not nothing")
        visitor.shows("Events flow.", ".hero")
        label = visitor.find(".chart .plot").get_attribute("aria-label") or ""
        assert label.startswith("Throughput: now delivered ")
        assert visitor.all(".chart .line"), "a line is drawn"


def test_the_ring_gives_every_worker_its_buckets(furnished: str, visitor: Browser) -> None:
    visitor.open("/workers")
    visitor.shows("worker-1", ".shares")
    shares = [int(share.text) for share in visitor.all(".shares b")]
    assert len(shares) == 2
    assert sum(shares) == 1024
    assert len(visitor.all(".ring .slice")) == 2
    label = visitor.find(".ring").get_attribute("aria-label") or ""
    assert "worker-1" in label
    assert str(shares[0]) in label


def test_keys_that_wait_say_why(furnished: str, database: str, visitor: Browser) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("DELETE FROM outbox_pauses WHERE origin = 'breaker'")
        insert(conn, "order:3", event_type="Other", idempotency_key="evt-retry")
    worker = Actor(database)
    claim = worker.must_claim()
    worker.settle(claim, "release")
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "UPDATE outbox SET attempts = 2, available_at = now() + interval '5 minutes',"
            " last_error = 'timed out' WHERE idempotency_key = 'evt-retry'"
        )
    worker.close()
    visitor.open("/waiting")

    def rows() -> dict[str, str]:
        return {row.text.split("\n")[0].split(" ")[0]: row.text for row in visitor.all("tbody tr")}

    visitor.until(lambda: "order:7001" in rows(), "the blocked key is listed")
    found = rows()
    assert "Blocked" in found["order:7001"]
    assert "4" in found["order:7001"]
    assert "Retry" in found["order:3"]
    assert "timed out" in found["order:3"]
    assert "in 5 min" in found["order:3"]
    assert "Delayed" in found["order:2"]
    visitor.shows("order:1", ".hold")
    visitor.shows("under review", ".hold")


def test_filters_are_in_the_address_and_pages_are_turned_by_it(database: str, visitor: Browser) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        insert(conn, "order:1", 120)
        insert(conn, "order:2", 3, event_type="Rare")
    visitor.open("/events?key=order%3A1")
    visitor.shows("120 match", ".summary")
    visitor.until(lambda: len(visitor.all("tbody tr")) == 50, "a page is full")
    seen = visitor.text("tbody td:first-child small").split("\n")
    visitor.press("Older")
    visitor.until(
        lambda: visitor.text("tbody td:first-child small").split("\n")[0] not in ("", *seen),
        "older ones are shown",
    )
    assert "before=" in visitor.driver.current_url
    seen += visitor.text("tbody td:first-child small").split("\n")
    visitor.press("Older")
    visitor.until(lambda: len(visitor.all("tbody tr")) == 20, "the last page is short")
    seen += visitor.text("tbody td:first-child small").split("\n")
    assert len(set(seen)) == 120, "no event twice, none left out"
    visitor.driver.back()
    visitor.until(lambda: len(visitor.all("tbody tr")) == 50, "the browser goes back")
    visitor.open("/events")
    visitor.fill("input[name=type]", "Rare\n")
    visitor.shows("3 match", ".summary")
    assert visitor.driver.current_url.endswith("/events?type=Rare")


def test_a_list_stays_alive_and_keeps_the_focus(database: str, visitor: Browser) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        insert(conn, "order:1", idempotency_key="evt-1")
        visitor.open("/events")
        visitor.shows("evt-1", "tbody")
        visitor.run("window.stillHere = true; document.querySelector('[name=key]').focus()")
        visitor.find("input[name=key]").send_keys("half-typ")
        insert(conn, "order:1", idempotency_key="evt-2")
        visitor.shows("evt-2", "tbody")
    assert visitor.run(STILL_HERE)
    assert visitor.run("return document.activeElement.name") == "key"
    assert visitor.run("return document.activeElement.value") == "half-typ"


def test_an_event_shows_its_whole_life(furnished: str, visitor: Browser) -> None:
    visitor.open("/event?id=evt-failed-1")
    for text in (
        "Written",
        "Attempt 5 of 5 failed",
        "no such exchange",
        "Failed: holds its key",
        "order:7001",
    ):
        visitor.shows(text, "main")
    visitor.open("/event?id=evt-1")
    visitor.shows('"big": 12345678901234567890', ".payload")
    assert visitor.text(".payload") == '{\n  "a": [\n    1,\n    {}\n  ],\n  "big": 12345678901234567890\n}'
    visitor.shows("It is the head of its key", ".life")
    visitor.open("/event?id=never-written")
    visitor.shows("There is no such event", "main")


def test_an_event_is_followed_until_it_is_published(database: str, visitor: Browser) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        insert(conn, "order:1", idempotency_key="evt-1")
    visitor.open("/event?id=evt-1")
    visitor.shows("Pending", "main")
    worker = Actor(database)
    claim = worker.must_claim()
    visitor.shows("In flight", "main")
    visitor.shows("by worker-1, generation", ".life")
    worker.settle(claim)
    worker.close()
    visitor.shows("Published", ".life")


def test_dead_letters_are_grouped_by_type_and_error(furnished: str, visitor: Browser) -> None:
    visitor.open("/dead-letters")
    visitor.shows("4 events in 2 groups", "main")
    visitor.shows("broker-… timed out", ".group")
    visitor.shows("3 variants of this error", ".group")
    visitor.press("Show events", ".group")
    visitor.shows("evt-dead-1", "tbody")
    assert "status=dead_letter" in visitor.driver.current_url


def test_pauses_and_the_audit_trail_are_shown(furnished: str, visitor: Browser) -> None:
    visitor.open("/pauses")
    visitor.shows("event type Tested", "main")
    visitor.shows("Holds 2 pending events of 2 keys", "main")
    assert not visitor.all(".pause-form"), "nobody may act here"
    visitor.open("/audit")
    visitor.shows("Paused event type Tested", "tbody")
    visitor.shows("a review", "tbody")


def test_the_doctors_findings_are_shown(furnished: str, visitor: Browser) -> None:
    visitor.open("/doctor")
    visitor.shows("as of", "main")
    assert visitor.all(".finding, .fine li")


def test_every_page_has_something_to_say_when_there_is_nothing(visitor: Browser) -> None:
    sayings = {
        "/workers": "No worker relays",
        "/waiting": "No key waits",
        "/events": "No events yet",
        "/events?key=nobody": "No event matches",
        "/dead-letters": "No dead letters",
        "/pauses": "Nothing is held",
        "/audit": "Nothing was done",
        "/sign-in": "no operator's token is set",
        "/": "No worker relays.",
    }
    for path, text in sayings.items():
        visitor.open(path)
        visitor.shows(text, "main")
    assert visitor.complaints() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_is_readable_on_a_desk_and_a_phone(furnished: str, visitor: Browser, theme: str) -> None:
    visitor.theme(theme)
    for path in (*PAGES, "/event?id=evt-failed-1"):
        visitor.size(*PHONE)
        visitor.open(path)
        visitor.until(
            lambda: visitor.all("main h1") and not visitor.all("[aria-busy], .skeleton"), f"{path} is there"
        )
        assert visitor.run("return document.scrollingElement.scrollWidth") <= PHONE[0], (
            f"{path} is wider than a phone"
        )
        visitor.size(*DESKTOP)
        assert visitor.run("return document.scrollingElement.scrollWidth") <= DESKTOP[0], path
        faint = visitor.run(CONTRAST)
        assert faint == [], f"{path} has text that is hard to read"
        assert visitor.run(NAMELESS) == [], f"{path} has controls without a name"
    background = visitor.run("return getComputedStyle(document.body).backgroundColor")
    assert (int(background.split("(")[1].split(",")[0]) > 128) == (theme == "light")
    assert visitor.complaints() == []


def test_a_theme_that_is_chosen_is_kept(visitor: Browser) -> None:
    visitor.open("/audit")
    button = visitor.find("#theme")
    button.click()
    button.click()
    assert visitor.run("return document.documentElement.dataset.theme") == "dark"
    visitor.open("/pauses")
    assert visitor.run("return document.documentElement.dataset.theme") == "dark"
    visitor.find("#theme").click()
    assert visitor.run("return document.documentElement.dataset.theme || 'system'") == "system"


def test_the_keyboard_leads_to_the_content_and_pages_are_told_apart(furnished: str, visitor: Browser) -> None:
    visitor.open("/pauses")
    visitor.shows("Tested", "main")
    visitor.find("body").send_keys("\ue004")  # Tab
    assert visitor.run("return document.activeElement.className") == "skip"
    assert visitor.run("return document.querySelectorAll('header, nav, main').length >= 3")
    visitor.find("nav a[href='/audit']").send_keys("\ue007")  # Enter
    visitor.until(lambda: visitor.driver.title == "Audit trail · Outbox Relay", "the title tells the page")
    assert visitor.run("return document.activeElement.id") == "main", (
        "a screen reader starts with the new page"
    )
    assert visitor.find("nav [aria-current=page]").text == "Audit trail"


def test_a_relay_that_goes_away_is_noticed_and_so_is_its_return(
    furnished: str, database: str, serve: Serve, browser: Browser
) -> None:
    server = serve()
    port = server.port
    browser.home = f"http://127.0.0.1:{port}"
    browser.open("/events")
    browser.shows("evt-dead-1", "tbody")
    server.stop()
    browser.shows("Disconnected", "#live")
    browser.shows("No connection to the relay", ".page-notice")
    browser.shows("evt-dead-1", "tbody")
    serve(http=f"127.0.0.1:{port}")
    browser.hides("No connection to the relay", ".page-notice")
    browser.shows("Live", "#live")


def test_a_database_that_goes_away_is_noticed_and_so_is_its_return(
    furnished: str, database: str, serve: Serve, browser: Browser, proxy: Callable[[str], TcpProxy]
) -> None:
    between = proxy(database)
    browser.home = f"http://127.0.0.1:{serve(database_url=between.url(database)).port}"
    browser.open("/dead-letters")
    browser.shows("broker-… timed out", "main")
    between.cut()
    browser.shows("No database", "#live")
    browser.shows("What you see is from before", ".page-notice")
    browser.open("/audit")
    browser.shows("The database is out of reach", "main")
    between.restore()
    browser.shows("Paused event type Tested", "main")
    browser.shows("Live", "#live")


HOSTILE = (
    """<img src=x onerror="window.struck=1"><script>window.struck=1</script>'"</pre>{{7*7}}javascript:1"""
)


def test_hostile_events_are_shown_as_text(database: str, visitor: Browser) -> None:
    both = json.dumps({HOSTILE: HOSTILE})
    names: dict[str, Any] = {"event_type": HOSTILE, "payload": both, "headers": both}
    told = json.dumps({"host": HOSTILE, "version": HOSTILE, "publisher": HOSTILE, "destination": HOSTILE})
    with psycopg.connect(database, autocommit=True) as conn:
        insert(conn, HOSTILE, idempotency_key=HOSTILE, **names)
        insert(conn, HOSTILE + "2", idempotency_key=HOSTILE + "2", destination=HOSTILE, **names)
        conn.execute(
            "UPDATE outbox SET status = 'failed', parked_at = now(), available_at = 'infinity', attempts = 5,"
            " last_error = %s WHERE idempotency_key = %s",
            [HOSTILE, HOSTILE],
        )
        conn.execute(
            "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by)"
            " VALUES ('event_type', %s, 'operator', %s, %s)",
            [HOSTILE] * 3,
        )
        conn.execute(
            "INSERT INTO outbox_audit (actor, action, event_id, details) VALUES (%s, %s, %s, %s)",
            [HOSTILE, HOSTILE, HOSTILE, both],
        )
        conn.execute(
            "INSERT INTO outbox_workers (id, status, metadata) VALUES (%s, 'alive', %s)", [HOSTILE, told]
        )
    for path in ("/", "/workers", "/waiting", "/events", "/dead-letters", "/pauses", "/audit"):
        visitor.open(path)
        visitor.shows("onerror", "main")
        assert visitor.run("return window.struck") is None, path
        assert not visitor.all("main img"), path
    visitor.open("/events")
    visitor.find("tbody a[href^='/event?']").click()
    visitor.shows("</script>", ".payload")
    visitor.shows("window.struck", ".facts")
    assert visitor.run("return window.struck") is None
    assert visitor.all("main img, main script") == []
    visitor.open(f"/events?key={'%3Cscript%3E'}&error=%22%3E%3Cimg%20src=x%3E")
    visitor.shows("No event matches", "main")
    assert visitor.find("input[name=key]").get_attribute("value") == "<script>"
    assert visitor.complaints() == []


def test_the_policy_keeps_what_is_injected_from_running(visitor: Browser) -> None:
    visitor.open("/audit")
    visitor.shows("Nothing was done", "main")
    visitor.run(
        "const s = document.createElement('script'); s.append('window.struck = 1'); document.body.append(s);"
        "try { document.body.insertAdjacentHTML('beforeend', '<b id=injected>x</b>') } catch (e) {}"
    )
    assert visitor.run("return window.struck") is None
    assert visitor.all("#injected") == []
    assert any("Content Security Policy" in said or "TrustedHTML" in said for said in visitor.complaints())
