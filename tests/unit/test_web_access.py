"""Who may look at the operator's pages and who may act, without a server."""

import pytest

from relay.settings import Settings
from relay.web.access import (
    FREE_TRIES,
    LONGEST_LOCK,
    NAME_CHARACTERS,
    SESSION_SECONDS,
    Access,
    Throttle,
    is_loopback,
    same_origin,
)

VIEWER = "a-token-to-look-with"
OPERATOR = "a-token-to-act-with"


def access(http: str = "127.0.0.1:9108", **tokens: str) -> Access:
    return Access(Settings(database_url="postgresql://nobody@127.0.0.1:1/none", http=http, **tokens))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "http, tokens, open_to_all, closed",
    [
        ("127.0.0.1:9108", {}, True, False),
        ("localhost:9108", {}, True, False),
        ("[::1]:9108", {}, True, False),
        ("0.0.0.0:9108", {}, False, True),
        ("[::]:9108", {}, False, True),
        ("10.1.2.3:9108", {}, False, True),
        ("0.0.0.0:9108", {"http_token": VIEWER}, False, False),
        ("0.0.0.0:9108", {"operator_token": OPERATOR}, False, False),
        ("127.0.0.1:9108", {"http_token": VIEWER}, False, False),
        ("127.0.0.1:9108", {"operator_token": OPERATOR}, True, False),
    ],
)
def test_only_loopback_without_a_token_is_open(
    http: str, tokens: dict[str, str], open_to_all: bool, closed: bool
) -> None:
    found = access(http, **tokens)
    assert (found.open_to_all, found.closed) == (open_to_all, closed)


def test_a_token_gives_its_role_and_any_other_gives_none() -> None:
    found = access(http_token=VIEWER, operator_token=OPERATOR)
    assert found.role_of(VIEWER) == "viewer"
    assert found.role_of(OPERATOR) == "operator"
    assert found.role_of("") is None
    assert found.role_of(VIEWER + " ") is None
    assert access().role_of("") is None
    assert access().role_of("None") is None


def test_a_session_is_read_back_on_every_relay_with_the_same_tokens() -> None:
    cookie = access(operator_token=OPERATOR).begin("operator", "ana" * 100)
    other = access("0.0.0.0:80", operator_token=OPERATOR)
    session = other.read(cookie)
    assert session is not None
    assert session.role == "operator"
    assert len(session.name) == NAME_CHARACTERS
    assert other.csrf_is_right(session, access(operator_token=OPERATOR).csrf(session))


def test_a_changed_token_ends_all_sessions() -> None:
    cookie = access(http_token=VIEWER, operator_token=OPERATOR).begin("viewer")
    assert access(http_token=VIEWER, operator_token="another-token-to-act").read(cookie) is None
    assert access(http_token="another-token-to-look", operator_token=OPERATOR).read(cookie) is None


def test_a_cookie_that_was_touched_is_no_session() -> None:
    ours = access(operator_token=OPERATOR)
    text, _, signature = ours.begin("viewer").partition(".")
    forged = ours.begin("operator").partition(".")[0]
    for cookie in (
        None,
        "",
        ".",
        "x.y",
        text,
        f"{text}.",
        f"{forged}.{signature}",
        f"{text}.{signature[:-1]}",
        "é.é",
    ):
        assert ours.read(cookie) is None


def test_a_session_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = access(operator_token=OPERATOR)
    monkeypatch.setattr("relay.web.access.time", lambda: 1000.0)
    cookie = ours.begin("operator")
    monkeypatch.setattr("relay.web.access.time", lambda: 1000.0 + SESSION_SECONDS - 1)
    assert ours.read(cookie) is not None
    monkeypatch.setattr("relay.web.access.time", lambda: 1000.0 + SESSION_SECONDS + 1)
    assert ours.read(cookie) is None


def test_the_csrf_token_is_that_of_the_session_and_not_its_signature() -> None:
    ours = access(operator_token=OPERATOR)
    one, two = ours.read(ours.begin("operator")), ours.read(ours.begin("operator"))
    assert one is not None
    assert two is not None
    assert ours.csrf_is_right(one, ours.csrf(one))
    assert not ours.csrf_is_right(one, ours.csrf(two))
    assert not ours.csrf_is_right(one, "")
    assert not ours.csrf_is_right(one, "é")


@pytest.mark.parametrize("host", ["localhost:9108", "127.0.0.1", "127.9.9.9:1", "[::1]:9108", "LOCALHOST"])
def test_the_open_pages_answer_to_names_of_this_machine(host: str) -> None:
    assert access().host_is_ours(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example:9108", "127.0.0.1.evil.example", "10.0.0.1:9108", "localhost.evil.example"]
)
def test_a_name_of_somebody_else_is_refused_where_everybody_may_look(host: str) -> None:
    assert not access().host_is_ours(host)
    assert access(http_token=VIEWER).host_is_ours(host), "a token keeps others out, whatever the name"


def test_a_request_is_of_these_pages_only_if_it_says_so() -> None:
    assert same_origin("http://127.0.0.1:9108", "127.0.0.1:9108")
    assert same_origin("https://relay.example", "relay.example")
    for origin in (
        None,
        "null",
        "",
        "http://evil.example",
        "http://127.0.0.1:9109",
        "http://127.0.0.1:9108.evil.example",
    ):
        assert not same_origin(origin, "127.0.0.1:9108")


def test_wrong_tokens_cost_ever_more_time_and_a_right_one_forgives() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    for _ in range(FREE_TRIES - 1):
        throttle.wrong("10.0.0.1")
    assert throttle.wait("10.0.0.1") == 0
    waits = []
    for _ in range(12):
        throttle.wrong("10.0.0.1")
        waits.append(throttle.wait("10.0.0.1"))
        now[0] += waits[-1]
        assert throttle.wait("10.0.0.1") == 0
    assert waits[:4] == [2, 4, 8, 16]
    assert waits[-1] == LONGEST_LOCK
    assert throttle.wait("10.0.0.2") == 0, "others are not held up"
    throttle.wrong("10.0.0.1")
    throttle.right("10.0.0.1")
    assert throttle.wait("10.0.0.1") == 0


def test_a_network_of_ipv6_is_one_guesser() -> None:
    throttle = Throttle(lambda: 0.0)
    for number in range(FREE_TRIES):
        throttle.wrong(f"2001:db8::{number}")
    assert throttle.wait("2001:db8::ffff") > 0
    assert throttle.wait("2001:db8:0:1::1") == 0


def test_guessers_without_number_do_not_fill_the_memory() -> None:
    throttle = Throttle(lambda: 0.0)
    for number in range(3000):
        throttle.wrong(f"10.0.{number // 256}.{number % 256}")
    assert len(throttle._wrong) == 1000


def test_names_that_only_look_like_loopback_are_not() -> None:
    assert not is_loopback("127.0.0.1.example")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("")
