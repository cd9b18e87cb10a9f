"""Who gets in, over HTTP: tokens, sessions, CSRF, names of the host, the policy; what stays open to all."""

import re

import psycopg
import pytest

from relay.web.access import FREE_TRIES
from tests.integration.store_kit import insert
from tests.web.client import OPERATOR, VIEWER, Client
from tests.web.conftest import Serve

DATA: tuple[str, ...] = (
    "/api/live",
    "/api/workers",
    "/api/waiting",
    "/api/events",
    "/api/count",
    "/api/event?id=x",
)
DATA += ("/api/dead-letters", "/api/pauses", "/api/audit", "/api/doctor")
ACTIONS = ("redrive", "preview", "pause", "held", "resume", "job", "stop")


def client(serve: Serve, **settings: object) -> Client:
    return Client(serve(**settings).port or 0)


def test_on_loopback_everybody_may_look_and_nobody_may_act(serve: Serve) -> None:
    visitor = client(serve)
    for path in DATA:
        assert visitor.get(path).status == 200, path
    for action in ACTIONS:
        answer = visitor.post(f"/api/do/{action}", {"scope": "all"})
        assert (answer.status, answer.json["error"]) == (403, "operator"), action
    assert visitor.sign_in("").status == 401
    session = visitor.get("/api/session").json
    assert (session["may_look"], session["can_operate"], session["csrf"]) == (True, False, None)


def test_a_token_that_is_set_is_demanded_for_all_data(serve: Serve) -> None:
    stranger = client(serve, http_token=VIEWER)
    for path in DATA:
        answer = stranger.get(path)
        assert (answer.status, answer.json["error"]) == (401, "token"), path
    session = stranger.get("/api/session").json
    assert session["may_look"] is False
    assert session["table"] is None
    assert session["version"] is None


def test_on_another_address_pages_without_a_token_are_closed(serve: Serve) -> None:
    stranger = client(serve, http="0.0.0.0:0")
    for path in DATA:
        assert (stranger.get(path).status, stranger.get(path).json["error"]) == (403, "closed"), path
    assert "http_token" in stranger.get("/api/events").json["message"]
    for path in ("/metrics", "/livez", "/readyz"):
        assert stranger.get(path).status == 200


def test_probes_and_metrics_need_no_token_and_answer_to_any_name(serve: Serve) -> None:
    for visitor in (client(serve, http_token=VIEWER), client(serve)):
        for path in ("/metrics", "/livez", "/readyz"):
            assert visitor.get(path, Host="prometheus.example").status == 200, path


def test_a_reader_may_look_and_not_act(serve: Serve) -> None:
    reader = client(serve, http_token=VIEWER, operator_token=OPERATOR)
    assert reader.sign_in(VIEWER).json == {"role": "viewer"}
    assert reader.get("/api/events").status == 200
    assert reader.csrf == ""
    assert reader.post("/api/do/pause", {"scope": "all"}).json["error"] == "operator"


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(serve: Serve) -> None:
    visitor = client(serve, operator_token=OPERATOR)
    cookie = visitor.sign_in(OPERATOR).headers["set-cookie"]
    attributes = {part.strip().lower().partition("=")[0]: part for part in cookie.split(";")[1:]}
    assert "httponly" in attributes
    assert attributes["samesite"].strip().lower() == "samesite=strict"
    assert "secure" not in attributes, "the relay itself speaks plain HTTP"
    assert OPERATOR not in cookie
    behind_tls = visitor.post(
        "/api/sign-in", {"token": OPERATOR}, Origin="https://relay.example", Host="relay.example"
    )
    assert behind_tls.status == 421, "open pages answer to this machine's names alone"
    named = client(serve, operator_token=OPERATOR, http_token=VIEWER)
    answer = named.post(
        "/api/sign-in", {"token": OPERATOR}, Origin="https://relay.example", Host="relay.example"
    )
    assert "secure" in answer.headers["set-cookie"].lower()


def test_signing_out_takes_the_cookie_back(serve: Serve) -> None:
    operator = client(serve, operator_token=OPERATOR)
    operator.sign_in(OPERATOR)
    cookie = operator.post("/api/sign-out").headers["set-cookie"]
    assert re.search("max-age=0|expires=Thu, 01 Jan 1970", cookie, re.IGNORECASE)


FOREIGN: list[tuple[dict[str, str], str]] = [
    ({"Origin": "http://evil.example"}, "origin"),
    ({"Origin": ""}, "origin"),
    ({"Origin": "null"}, "origin"),
    ({"X_Relay_CSRF": ""}, "csrf"),
    ({"X_Relay_CSRF": "0" * 64}, "csrf"),
    ({"Content_Type": "application/x-www-form-urlencoded"}, "wrong"),
    ({"Content_Type": "text/plain"}, "wrong"),
]


def test_an_action_that_another_site_sends_is_refused(serve: Serve, database: str) -> None:
    operator = client(serve, operator_token=OPERATOR)
    operator.sign_in(OPERATOR)
    for headers, error in FOREIGN:
        answer = operator.post("/api/do/pause", {"scope": "all"}, **headers)
        assert answer.json["error"] == error, headers
    with psycopg.connect(database) as conn:
        assert conn.execute("SELECT count(*) FROM outbox_pauses").fetchone() == (0,)
    assert operator.post("/api/do/pause", {"scope": "all"}).status == 200


def test_another_sites_page_cannot_sign_anybody_in(serve: Serve) -> None:
    visitor = client(serve, operator_token=OPERATOR)
    assert visitor.post("/api/sign-in", {"token": OPERATOR}, Origin="http://evil.example").status == 403


def test_the_csrf_token_of_another_session_does_not_count(serve: Serve) -> None:
    operator = client(serve, operator_token=OPERATOR)
    operator.sign_in(OPERATOR)
    first = operator.csrf
    operator.sign_in(OPERATOR)
    assert operator.post("/api/do/pause", {"scope": "all"}, X_Relay_CSRF=first).json["error"] == "csrf"


def test_open_pages_do_not_answer_to_the_name_of_another_site(serve: Serve) -> None:
    visitor = client(serve)
    for path in ("/", "/events", "/api/events", "/api/session", "/static/app.js"):
        assert visitor.get(path, Host="evil.example").status == 421, path
        assert visitor.get(path, Host="localhost:1").status == 200, path


def test_wrong_tokens_are_throttled_even_if_the_right_one_comes_then(serve: Serve) -> None:
    guesser = client(serve, operator_token=OPERATOR)
    for _ in range(FREE_TRIES):
        assert guesser.sign_in("a-wrong-guess-of-it").status == 401
    answer = guesser.sign_in(OPERATOR)
    assert (answer.status, answer.json["error"]) == (429, "throttled")
    assert int(answer.headers["retry-after"]) >= 1


def test_every_answer_carries_the_policy(serve: Serve) -> None:
    visitor = client(serve)
    for path in ("/", "/events?key=x", "/static/app.js", "/api/events", "/nowhere", "/api/nowhere", "/livez"):
        headers = visitor.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "script-src 'self'" in policy
        assert "style-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_data_is_never_cached_and_files_are_asked_for_again(serve: Serve) -> None:
    visitor = client(serve)
    assert visitor.get("/api/events").headers["cache-control"] == "no-store"
    script = visitor.get("/static/app.js")
    assert script.headers["cache-control"] == "no-cache"
    assert visitor.get("/static/app.js", If_None_Match=script.headers["etag"]).status == 304


def test_nothing_else_is_served(serve: Serve) -> None:
    visitor = client(serve)
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/nothing.js",
        "/event/x",
        "//evil.example",
    ):
        assert visitor.get(path).status == 404, path


def test_a_body_that_is_no_object_is_refused(serve: Serve) -> None:
    operator = client(serve, operator_token=OPERATOR)
    operator.sign_in(OPERATOR)
    for body in (b" ", b"[]", b"{", b'"x"', b"x" * 100_000, b"\xff\xfe"):
        assert operator.post("/api/do/pause", body).json["error"] == "wrong", body[:10]


def test_hidden_payloads_do_not_leave_the_relay(serve: Serve, database: str) -> None:
    secret = "iban-PT50000201231234567890154"
    with psycopg.connect(database, autocommit=True) as conn:
        insert(
            conn,
            "order:1",
            idempotency_key="evt-1",
            payload=f'{{"iban": "{secret}"}}',
            headers=f'{{"who": "{secret}"}}',
        )
    open_pages, hiding = client(serve), client(serve, hide_payloads=True)
    assert secret in open_pages.get("/api/event?id=evt-1").json["event"]["payload"]
    answer = hiding.get("/api/event?id=evt-1")
    assert secret not in answer.text
    assert answer.json["event"]["payload_hidden"] is True
    assert answer.json["event"]["headers"] == {"who": None}
    assert all(secret not in hiding.get(path).text for path in DATA)


def test_urls_of_webhooks_are_shown_by_their_host_alone(serve: Serve, database: str) -> None:
    url = "https://user:pass@hooks.example.com/T000/secret-path?key=secret"
    with psycopg.connect(database, autocommit=True) as conn:
        insert(conn, "order:1", idempotency_key="evt-1", destination=url)
        conn.execute(
            "INSERT INTO outbox_pauses (scope, value, origin, reason, paused_by)"
            " VALUES ('destination', %s, 'operator', 'x', 'y')",
            [url],
        )
    operator = client(serve, operator_token=OPERATOR)
    operator.sign_in(OPERATOR)
    for path in ("/api/event?id=evt-1", "/api/pauses", "/api/waiting"):
        text = operator.get(path).text
        assert "hooks.example.com" in text
        assert "secret" not in text
        assert "pass@" not in text
    reference = operator.get("/api/pauses").json["pauses"][0]["reference"]
    assert operator.post("/api/do/resume", {"reference": reference}).status == 200
    assert operator.get("/api/pauses").json["pauses"] == []


def test_wrong_requests_are_told_in_a_sentence(serve: Serve) -> None:
    visitor = client(serve)
    for query in ("status=gone", "since=soon", "before=x", "key=%00"):
        answer = visitor.get(f"/api/events?{query}")
        assert (answer.status, answer.json["error"]) == (400, "wrong"), query
    assert visitor.get("/api/events?before=5").status == 200


PLACES = (
    "/api/audit?before=x",
    "/api/audit?before=infinity%205",
    "/api/audit?before=2026-07-01%2012:00:00%2B00%205",
    "/api/audit?before=9223372036854775808",
    "/api/waiting?after=x",
    "/api/waiting?after=5",
    "/api/live?after=x",
    "/api/live?after=%C2%B2",
    f"/api/live?after={'9' * 5000}",
    "/api/events?before=2026-07-01%2012:00:00%2B00%205",
    "/api/events?status=pending&key=order:1&before=2026-07-01%2012:00:00%2B00%205",
    "/api/events?status=dead_letter&before=5",
    "/api/events?status=dead_letter&before=infinity%205",
)


@pytest.mark.parametrize("path", PLACES)
def test_a_page_that_begins_nowhere_is_a_wrong_request(serve: Serve, path: str) -> None:
    answer = client(serve).get(path)
    assert (answer.status, answer.json["error"]) == (400, "wrong")
    assert "the one before" in answer.json["message"]


UNREADABLE = (
    b'{"token": "\\ud800", "name": "ana"}',
    b'{"token": "' + OPERATOR.encode() + b'", "name": "\\udfff"}',
    b'{"token": "\xed\xa0\x80"}',
    b'{"token": ' + b"[" * 30_000,
    b'{"token": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    b'{"token": ' + b"9" * 5000 + b"}",
)


@pytest.mark.parametrize("body", UNREADABLE)
def test_what_no_text_can_hold_signs_nobody_in_and_is_no_error_of_the_relay(
    serve: Serve, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client(serve, operator_token=OPERATOR).post("/api/sign-in", body)
    assert (answer.status, answer.json["error"]) == (400, "wrong")
    assert "set-cookie" not in answer.headers
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_token_that_is_no_text_is_a_wrong_one(serve: Serve) -> None:
    guesser = client(serve, operator_token=OPERATOR)
    for token in (None, 17, [OPERATOR], {"token": OPERATOR}):
        assert guesser.post("/api/sign-in", {"token": token}).status == 401


NONSENSE: tuple[tuple[str, bytes], ...] = (
    ("preview", b'{"action": "retry", "key": "\\ud800"}'),
    ("preview", b'{"action": "retry", "ids": ["\\ud800"]}'),
    ("redrive", b'{"action": "retry", "key": "\\ud800"}'),
    ("pause", b'{"scope": "key", "value": "\\ud800"}'),
    ("pause", b'{"scope": ["key"], "value": "order:1"}'),
    ("pause", b'{"scope": "all", "reason": "\\ud800"}'),
    ("pause", b'{"scope": "all", "reason": ' + b"[" * 30_000 + b"]" * 30_000 + b"}"),
)


@pytest.mark.parametrize("action, body", NONSENSE)
def test_an_action_on_what_cannot_be_is_a_wrong_request(serve: Serve, action: str, body: bytes) -> None:
    operator = client(serve, operator_token=OPERATOR)
    operator.sign_in(OPERATOR)
    answer = operator.post(f"/api/do/{action}", body)
    assert (answer.status, answer.json["error"]) == (400, "wrong")
