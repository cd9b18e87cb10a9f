"""Each action in a real browser: preview, confirmation, outcome in the table, entry in the audit trail."""

import re
from typing import Any

import psycopg

from tests.integration.store_kit import Actor, insert
from tests.system.relays import RelayProcess, relays, wait_until
from tests.web import shop
from tests.web.browser import Browser
from tests.web.client import OPERATOR, VIEWER, Client
from tests.web.conftest import Serve


def ask(database: str, query: str, *parameters: Any) -> Any:
    with psycopg.connect(database) as conn:
        row = conn.execute(query, parameters).fetchone()
        return row[0] if row else None


def statuses(database: str, prefix: str) -> set[str]:
    with psycopg.connect(database) as conn:
        rows = conn.execute(
            "SELECT DISTINCT status::text FROM outbox WHERE idempotency_key LIKE %s", [f"{prefix}%"]
        )
        return {row[0] for row in rows}


def test_all_dead_letters_of_a_group_are_retried_after_a_preview(database: str, operator: Browser) -> None:
    shop.park(database, 12, "evt-mail", "MailDue", "mailer-# timed out")
    shop.park(database, 2, "evt-other", "OrderPaid", "mailer-# timed out")
    operator.open("/dead-letters")
    operator.press("Retry all…", "section[aria-label^='MailDue']")
    operator.shows("12 events will be sent out again", "dialog")
    assert statuses(database, "evt-mail") == {"dead_letter"}, "a preview changes nothing"
    operator.fill("#reason", "the mailer is back")
    operator.press("Retry 12")
    operator.shows("12 events sent out again.", "#toasts")
    operator.shows("2 events in 1 group", "main")
    assert statuses(database, "evt-mail") == {"pending"}
    assert statuses(database, "evt-other") == {"dead_letter"}
    assert ask(database, "SELECT count(*) FROM outbox_audit WHERE action = 'retry'") == 12
    assert ask(database, "SELECT actor FROM outbox_audit LIMIT 1") == "ana by the pages from 127.0.0.1"
    assert ask(database, "SELECT details ->> 'reason' FROM outbox_audit LIMIT 1") == "the mailer is back"
    operator.open("/audit")
    operator.shows("Retried", "tbody")
    assert operator.complaints() == []


def test_failed_events_are_skipped_only_with_a_reason(database: str, operator: Browser) -> None:
    shop.park(database, 3, "evt-ref", "RefundMade", "no such exchange", "failed")
    operator.open("/dead-letters")
    operator.press("Skip all…", ".group")
    operator.shows("3 events will be given up", "dialog")
    operator.press("Skip 3")
    operator.until(
        lambda: operator.run("return document.querySelector('#reason:invalid') !== null"),
        "a reason is asked for",
    )
    assert statuses(database, "evt-ref") == {"failed"}
    operator.fill("#reason", "refunded by hand")
    operator.press("Skip 3")
    operator.shows("3 events skipped.", "#toasts")
    assert statuses(database, "evt-ref") == {"dead_letter"}
    error = ask(database, "SELECT last_error FROM outbox LIMIT 1")
    assert error == "skipped by ana by the pages from 127.0.0.1: refunded by hand; before: no such exchange"


def test_escape_and_cancel_change_nothing_and_the_focus_returns(database: str, operator: Browser) -> None:
    shop.park(database, 1, "evt-dead", "OrderPaid", "timed out")
    operator.open("/event?id=evt-dead-1")
    operator.press("Retry")
    operator.shows("1 event will be sent out again", "dialog")
    operator.find("#reason").send_keys("\ue00c")  # Escape
    operator.until(lambda: not operator.all("dialog"), "the dialog is closed")
    assert operator.run("return document.activeElement.textContent") == "Retry"
    operator.press("Retry")
    operator.press("Cancel")
    operator.until(lambda: not operator.all("dialog"), "the dialog is closed")
    assert statuses(database, "evt-dead") == {"dead_letter"}
    operator.press("Retry")
    operator.shows("1 event will be sent out again", "dialog")
    operator.press("Retry", "dialog")
    operator.shows("1 event sent out again.", "#toasts")
    operator.shows("Pending", ".lead")
    operator.shows("Retried", ".trail")


def test_one_waiting_event_is_skipped_and_its_key_goes_on(database: str, operator: Browser) -> None:
    shop.park(database, 1, "evt-ref", "RefundMade", "no such exchange", "failed")
    shop.behind(database, "order:7001", 2)
    operator.open("/waiting")
    operator.shows("Blocked", "tbody")
    operator.press("Skip", "tbody")
    operator.fill("#reason", "no longer needed")
    operator.press("Skip", "dialog")
    operator.shows("1 event skipped.", "#toasts")
    operator.shows("No key waits", "main")
    worker = Actor(database)
    assert len(worker.must_claim().events) == 2
    worker.close()


def test_an_event_in_flight_is_left_out_and_said_to_be(database: str, operator: Browser) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        insert(conn, "order:1", idempotency_key="evt-1")
    operator.open("/event?id=evt-1")
    operator.shows("Pending", ".lead")
    worker = Actor(database)
    worker.must_claim()
    operator.press("Skip")
    operator.shows("No event that matches can be skipped now", "dialog")
    operator.shows("in flight", "dialog")
    assert operator.run("return document.querySelector('dialog button[type=submit]').disabled")
    worker.close()


def test_a_filter_of_the_list_is_retried_as_a_whole(database: str, operator: Browser) -> None:
    shop.park(database, 60, "evt-mail", "MailDue", "mailer timed out")
    operator.open("/events?status=dead_letter&type=MailDue")
    operator.press("Retry all that match…")
    operator.shows("60 events will be sent out again", "dialog")
    operator.press("Retry 60")
    operator.shows("60 events sent out again.", "#toasts")
    operator.shows("No event matches", "main")


def test_a_pause_holds_and_a_resume_lets_go(database: str, operator: Browser) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        insert(conn, "order:1", 7, event_type="OrderPaid")
    worker = Actor(database)
    operator.open("/pauses")
    operator.shows("Nothing is held", "main")
    operator.find("select[name=scope] option[value=event_type]").click()
    operator.fill("input[name=value]", "OrderPaid")
    operator.fill("input[name=reason]", "broker upgrade")
    operator.fill("input[name=for]", "2h")
    operator.press("Pause…")
    operator.shows("It would hold 7 pending events of 1 key", "dialog")
    assert ask(database, "SELECT count(*) FROM outbox_pauses") == 0
    operator.press("Pause", "dialog")
    operator.shows("event type OrderPaid is paused.", "#toasts")
    operator.shows("broker upgrade", ".hold")
    operator.shows("ends in 2 h", ".hold")
    assert worker.claim() is None
    operator.press("Resume", ".hold")
    operator.press("Resume", "dialog")
    operator.shows("Nothing is held", "main")
    assert worker.claim() is not None
    worker.close()
    operator.open("/audit")
    operator.shows("Resumed event type OrderPaid", "tbody")
    operator.shows("Paused event type OrderPaid", "tbody")


def test_a_breaker_is_closed(database: str, operator: Browser) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by, until)"
            " VALUES ('destination', 'orders', 'breaker', 'broker down', 'w1', now() + interval '1 hour')"
        )
    operator.open("/pauses")
    operator.press("Close breaker", ".hold")
    operator.press("Close breaker", "dialog")
    operator.shows("Nothing is held", "main")
    assert ask(database, "SELECT action FROM outbox_audit") == "close_breaker"


def test_a_wrong_duration_is_told_and_nothing_is_paused(database: str, operator: Browser) -> None:
    operator.open("/pauses")
    operator.fill("input[name=for]", "soon")
    operator.press("Pause…")
    operator.press("Pause", "dialog")
    operator.shows("the end is no duration", "dialog")
    assert ask(database, "SELECT count(*) FROM outbox_pauses") == 0


def test_signing_in_and_out_over_the_pages(database: str, serve: Serve, browser: Browser) -> None:
    server = serve(http_token=VIEWER, operator_token=OPERATOR)
    browser.home = f"http://127.0.0.1:{server.port}"
    shop.park(database, 1, "evt-dead", "OrderPaid", "timed out")
    browser.open("/dead-letters")
    browser.shows("These pages ask for a token", "main")
    browser.fill("#token", "not-the-right-token")
    browser.press("Sign in")
    browser.shows("this token is not known here", "main")
    browser.fill("#token", VIEWER)
    browser.press("Sign in")
    browser.shows("timed out", "main")
    assert browser.driver.current_url.endswith("/dead-letters"), "back to where one wanted to go"
    browser.shows("Read-only", "#who")
    assert "Retry all" not in browser.text("main")
    browser.press("Operate", "#who")
    browser.fill("#token", OPERATOR)
    browser.press("Sign in")
    browser.shows("Operator", "#who")
    browser.open("/dead-letters")
    browser.shows("Retry all", "main")
    browser.press("Sign out", "#who")
    browser.shows("These pages ask for a token", "main")


def test_without_an_operators_token_the_pages_say_how_to_get_one(visitor: Browser, database: str) -> None:
    shop.park(database, 1, "evt-dead", "OrderPaid", "timed out")
    visitor.open("/dead-letters")
    visitor.shows("timed out", "main")
    assert "Retry all" not in visitor.text("main")
    visitor.find("#who a").click()
    visitor.shows("RELAY_OPERATOR_TOKEN", "main")


def test_an_action_goes_on_without_its_page_and_only_one_runs_at_a_time(database: str, serve: Serve) -> None:
    client = Client(serve(operator_token=OPERATOR).port or 0)
    client.sign_in(OPERATOR)
    shop.park(database, 3000, "evt-mail", "MailDue", "mailer timed out")
    with psycopg.connect(database) as blocking:
        blocking.execute("SELECT FROM outbox WHERE idempotency_key = 'evt-mail-2999' FOR UPDATE")
        job = client.post("/api/do/redrive", {"action": "retry", "type": "MailDue"}).json["job"]
        second = client.post("/api/do/redrive", {"action": "retry", "type": "MailDue"})
        assert (second.status, second.json["error"]) == (409, "occupied")
        client.post("/api/do/stop", {"number": job["number"]})

    def progress() -> Any:
        return client.post("/api/do/job", {"number": job["number"]}).json["job"]

    wait_until(lambda: progress()["state"] != "running")
    ended = progress()
    assert ended["state"] == "stopped"
    assert 0 < ended["changed"] <= 3000
    assert ask(database, "SELECT count(*) FROM outbox WHERE status = 'pending'") == ended["changed"]
    assert client.post("/api/do/job", {"number": 999}).json["error"] == "wrong"


def test_a_relay_serves_its_own_pages_and_their_charts(
    database: str, tmp_path: Any, browser: Browser
) -> None:
    with relays(tmp_path) as start:
        relay: RelayProcess = start(database)
        wait_until(lambda: "operator's pages on http://127.0.0.1:" in relay.log)
        port = re.search(r"pages on http://127.0.0.1:(\d+)", relay.log)
        assert port is not None
        browser.home = f"http://127.0.0.1:{port[1]}"
        browser.open("/")
        shop.behind(database, "order:1", 500)
        browser.shows("Completed", "main")
        browser.until(lambda: browser.find(".tile.completed .tile-number").text == "500", "all are published")
        browser.open("/workers")
        browser.shows("1,024", ".shares")
        relay.terminate()
        assert relay.wait() == 0
