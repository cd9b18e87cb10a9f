"""What is particular to webhooks: servers that misbehave, addresses that lie, secrets that must not show."""

import asyncio
import logging
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from publishers import signing, webhook
from publishers.addresses import is_public
from publishers.http_network import Network
from publishers.webhook import CLOSED, CONNECTIONS, NO_THREAD, WebhookPublisher
from publishers.webhook_target import target_of
from relay.errors import SettingsError
from relay.event import Event
from relay.outcome import HELD_UP, Delivered, Outcome, Refused, Unconfirmed
from relay.testing import make_event
from tests.servers.web import Request, WebServer, Writer, answer, disconnect, hang

DOCS = Path(__file__).parents[2] / "docs" / "publishers" / "webhook.md"
PATIENCE = 20.0


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer() as running:
        yield running


@pytest.fixture
def make() -> Iterator[Callable[..., WebhookPublisher]]:
    """Publishers that are closed when the test ends, and leave no thread."""
    before = set(threading.enumerate())
    made: list[WebhookPublisher] = []

    def factory(**options: Any) -> WebhookPublisher:
        resolver = {"getaddrinfo": options.pop("getaddrinfo")} if "getaddrinfo" in options else {}
        made.append(WebhookPublisher({"allow_private": True} | options, **resolver))
        return made[-1]

    yield factory
    for publisher in made:
        publisher.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "webhook"]


def publish(publisher: WebhookPublisher, *events: Event, seconds: float = PATIENCE) -> list[Outcome]:
    started = monotonic()
    outcomes = list(publisher.publish(events, started + seconds))
    assert monotonic() - started < seconds + 1, "the call outlived its deadline"
    return outcomes


def publish_one(publisher: WebhookPublisher, destination: str, seconds: float = PATIENCE) -> Outcome:
    (outcome,) = publish(publisher, make_event(destination=destination), seconds=seconds)
    return outcome


def reason(outcome: Outcome, scope: str = "destination") -> str:
    assert isinstance(outcome, Unconfirmed)
    assert outcome.scope == scope
    return outcome.reason


# What is sent


def test_the_receipt_is_the_status(server: WebServer, make: Any) -> None:
    server.behave = answer(202)
    assert publish_one(make(), server.url()) == Delivered("202")


def test_the_request_carries_the_url_and_the_event_id(server: WebServer, make: Any) -> None:
    event = make_event(event_id="evt-1", destination=server.url("/a b/ü?x=1&y=%20#part"))
    publish(make(), event)
    (request,) = server.requests
    assert request.target == "/a%20b/%C3%BC?x=1&y=%20"
    assert request.header("Host") == server.host
    assert request.header("Idempotency-Key") == "evt-1"
    assert request.header("Content-Type") == "application/json"
    assert request.header("X-Signature") is None
    assert request.body == event.payload


def test_credentials_of_the_url_become_basic_authorization(server: WebServer, make: Any) -> None:
    assert isinstance(publish_one(make(), f"http://user:p%40ss@{server.host}/"), Delivered)
    assert server.requests[0].header("Authorization") == "Basic dXNlcjpwQHNz"


def test_cloudevents_are_sent_in_binary_mode(server: WebServer, make: Any) -> None:
    publish(make(format="cloudevents"), make_event("order:ž", event_id="evt-9", destination=server.url()))
    (request,) = server.requests
    assert request.header("ce-id") == "evt-9"
    assert request.header("ce-subject") == "order:%C5%BE"
    assert request.header("ce-source") == f"outbox:{server.host}"
    assert request.header("event_id") is None


def test_requests_of_a_key_share_a_connection(server: WebServer, make: Any) -> None:
    publish(make(), *(make_event(destination=server.url()) for _ in range(20)))
    assert {request.connection for request in server.requests} == {1}


# Signatures


def documented(name: str) -> Any:
    """The function of that name from the page's snippets, run as they stand."""
    snippets = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (snippet,) = [snippet for snippet in snippets if f"def {name}(" in snippet]
    namespace: dict[str, Any] = {}
    exec(snippet, namespace)
    return namespace[name]


@pytest.mark.parametrize("verify", [documented("verify"), signing.verify], ids=["page", "package"])
def test_a_signature_is_verified_as_the_page_says(verify: Any, server: WebServer, make: Any) -> None:
    publish(make(secret="s3cret"), make_event(destination=server.url()))
    (request,) = server.requests
    header = request.header("X-Signature")
    assert header is not None
    assert verify("s3cret", header, request.body)
    assert not verify("other", header, request.body)
    assert not verify("s3cret", header, request.body + b" ")
    assert not verify("s3cret", header.replace("t=", "t=1"), request.body)


@pytest.mark.parametrize("verify", [documented("verify"), signing.verify], ids=["page", "package"])
def test_an_old_signature_is_refused(verify: Any) -> None:
    now = int(datetime.now(UTC).timestamp())
    assert verify("s", signing.sign("s", b"{}", now - 250), b"{}")
    assert not verify("s", signing.sign("s", b"{}", now - 400), b"{}")
    assert not verify("s", signing.sign("s", b"{}", now + 400), b"{}")


@pytest.mark.parametrize("verify", [documented("verify"), signing.verify], ids=["page", "package"])
def test_one_good_signature_of_several_is_enough(verify: Any) -> None:
    good = signing.sign("s", b"{}")
    assert verify("s", good.replace(",v1=", ",v1=00,v1="), b"{}")
    assert verify("s", good + ",v1=00,v2=x", b"{}")


@pytest.mark.parametrize("verify", [documented("verify"), signing.verify], ids=["page", "package"])
@given(header=st.text(st.characters()))
@example(header="\udcff")  # a byte that is not UTF-8, decoded with surrogateescape
def test_what_is_no_signature_is_refused_without_an_error(verify: Any, header: str) -> None:
    now = int(datetime.now(UTC).timestamp())
    for text in (
        "",
        "t=,v1=",
        "t=²,v1=a",
        f"t={'9' * 5000},v1=a",
        header,
        f"t={now},v1={header}",
        f"t={now}",
        f"{header},v1=00",
    ):
        assert not verify("s", text, b"{}")


def test_the_signature_has_the_documented_form() -> None:
    # printf '1700000000.{"a": 1}' | openssl dgst -sha256 -hmac key
    digest = "17e36a190ee125a4782d21867ffdf5712238dc71b452ba98254537bfdb4f3a77"
    assert signing.sign("key", b'{"a": 1}', 1_700_000_000) == f"t=1700000000,v1={digest}"


def test_each_host_has_its_own_secret(make: Any) -> None:
    with WebServer() as one, WebServer() as two, WebServer() as three:
        publisher = make(secret={one.host: "first", two.host: "second"})
        publish(
            publisher,
            *(make_event(f"k{n}", destination=s.url()) for n, s in enumerate((one, two, three))),
        )
        signatures = [(s.requests[0].header("X-Signature"), s.requests[0].body) for s in (one, two, three)]
    assert signing.verify("first", signatures[0][0] or "", signatures[0][1])
    assert signing.verify("second", signatures[1][0] or "", signatures[1][1])
    assert signatures[2][0] is None


def test_a_secret_without_a_port_is_for_every_port_of_the_host(server: WebServer, make: Any) -> None:
    secret = SimpleNamespace(get_secret_value=lambda: "hidden")
    publish(make(secret={"127.0.0.1": secret}), make_event(destination=server.url()))
    assert signing.verify("hidden", server.requests[0].header("X-Signature") or "", server.requests[0].body)


@pytest.mark.parametrize("secret", ["", {"example.com": ""}, 7, {"https://example.com/x": "s"}, {"": "s"}])
def test_a_secret_that_cannot_sign_is_a_settings_error_that_does_not_show_it(secret: Any) -> None:
    with pytest.raises(SettingsError, match="secret"):
        WebhookPublisher({"secret": secret})


# What servers answer


@pytest.mark.parametrize(
    "status,holds",
    [
        (301, "destination"),
        (401, "destination"),
        (404, "destination"),
        (410, "destination"),
        (429, "host"),
        (500, "host"),
        (503, "host"),
    ],
)
def test_an_answer_that_may_change_leaves_the_event_unconfirmed(
    status: int, holds: str, server: WebServer, make: Any
) -> None:
    server.behave = answer(status)
    outcome = publish_one(make(), server.url())
    assert reason(outcome).startswith(f"{server.host} answered {status}")
    assert isinstance(outcome, Unconfirmed)
    assert outcome.holds == holds
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [409, 423])
def test_an_answer_that_may_mean_in_progress_is_tried_again_and_counts_as_an_attempt(
    status: int, server: WebServer, make: Any
) -> None:
    server.behave = answer(status, Retry_After="7")
    publisher = make()
    first, other = (
        make_event("order:1", destination=server.url()),
        make_event("order:2", destination=server.url()),
    )
    for outcome in publish(publisher, first, other):
        assert reason(outcome, "event").startswith(f"{server.host} answered {status}")
        assert isinstance(outcome, Unconfirmed)
        assert outcome.retry_after == 7
    assert len(server.requests) == 2, "a wait that one event asks for holds up no other"


@pytest.mark.parametrize("status", [400, 413, 422, 499])
def test_an_answer_that_is_about_the_event_refuses_it(status: int, server: WebServer, make: Any) -> None:
    server.behave = answer(status)
    outcome = publish_one(make(), server.url())
    assert isinstance(outcome, Refused)
    assert outcome.reason.startswith(f"{server.host} answered {status}")


def test_a_redirect_is_not_followed(server: WebServer, make: Any) -> None:
    with WebServer() as elsewhere:
        server.behave = answer(307, Location=elsewhere.url())
        assert "redirects are not followed" in reason(publish_one(make(), server.url()))
        assert elsewhere.connections == 0
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "value,expected",
    [
        ("7", 7.0),
        ("0", 0.0),
        ("99999999999", 3600.0),
        ("9" * 400, 3600.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0),
        ("Fri, 99 Dec 9999 23:59:59 GMT", None),
    ],
)
def test_retry_after_is_honoured_within_reason(
    value: str, expected: float | None, server: WebServer, make: Any
) -> None:
    server.behave = answer(503, Retry_After=value)
    outcome = publish_one(make(), server.url())
    assert isinstance(outcome, Unconfirmed)
    assert outcome.retry_after == expected


def test_retry_after_may_be_a_date(server: WebServer, make: Any) -> None:
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    server.behave = answer(429, Retry_After=when)
    outcome = publish_one(make(), server.url())
    assert isinstance(outcome, Unconfirmed)
    assert outcome.retry_after == pytest.approx(100, abs=5)


def test_a_host_that_asks_for_time_is_left_alone_for_the_rest_of_the_call(
    server: WebServer, make: Any
) -> None:
    server.behave = answer(429, Retry_After="30")
    events = [make_event(f"k{number}", destination=server.url()) for number in range(CONNECTIONS * 5)]
    outcomes = publish(make(), *events)
    assert {outcome.retry_after for outcome in outcomes if isinstance(outcome, Unconfirmed)} == {30.0}
    assert len(outcomes) == len(events)
    assert len(server.requests) <= CONNECTIONS * 2


def test_one_failure_does_not_hold_up_the_host(server: WebServer, make: Any) -> None:
    async def behave(request: Request, writer: Writer) -> None:
        await answer(500 if request.header("event_id") == "poison" else 200)(request, writer)

    server.behave = behave
    events = [make_event(f"k{number}", destination=server.url()) for number in range(100)]
    outcomes = publish(make(), make_event("k", event_id="poison", destination=server.url()), *events)
    assert [isinstance(outcome, Delivered) for outcome in outcomes] == [False] + [True] * 100


def test_behind_an_event_that_is_not_delivered_nothing_of_its_key_is_sent(
    server: WebServer, make: Any
) -> None:
    async def behave(request: Request, writer: Writer) -> None:
        await answer(422 if request.header("event_id") == "bad" else 200)(request, writer)

    server.behave = behave
    events = [make_event(key, destination=server.url()) for key in ("a", "b", "a", "b", "a", "b")]
    events[2] = events[2]._replace(event_id="bad")
    outcomes = publish(make(), *events)
    assert [type(outcome) for outcome in outcomes] == [
        Delivered,
        Delivered,
        Refused,
        Delivered,
        Unconfirmed,
        Delivered,
    ]
    assert outcomes[4] == HELD_UP
    assert events[4].event_id not in {request.header("event_id") for request in server.requests}


# Servers that misbehave


async def drip_headers(request: Request, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


def test_a_server_that_drips_its_answer_is_given_no_more_than_the_timeout(
    server: WebServer, make: Any
) -> None:
    server.behave = drip_headers
    started = monotonic()
    assert "did not answer within 0.3 s" in reason(publish_one(make(timeout_seconds=0.3), server.url()))
    assert monotonic() - started < 3


def test_a_server_that_drips_informational_answers_is_given_no_more_than_the_timeout(
    server: WebServer, make: Any
) -> None:
    async def behave(request: Request, writer: Writer) -> None:
        while not writer.is_closing():
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    server.behave = behave
    assert "did not answer" in reason(publish_one(make(timeout_seconds=0.3), server.url()))


def test_the_deadline_of_the_call_ends_a_request_before_its_own_timeout(server: WebServer, make: Any) -> None:
    server.behave = drip_headers
    assert "did not answer" in reason(publish_one(make(timeout_seconds=60), server.url(), seconds=1))
    for thread in threading.enumerate():
        if thread.name == "webhook":
            thread.join(5)
            assert not thread.is_alive(), "the request outlives the call"


def test_a_dripping_body_does_not_hold_up_a_delivered_event(
    server: WebServer, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "BODY_SECONDS", 0.2)

    async def behave(request: Request, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    server.behave = behave
    events = [make_event("a", destination=server.url()) for _ in range(2)]
    started = monotonic()
    assert publish(make(), *events) == [Delivered("200")] * 2
    assert monotonic() - started < 10
    assert [request.connection for request in server.requests] == [1, 2]


def test_a_huge_answer_is_not_read(server: WebServer, make: Any) -> None:
    written = 0

    async def behave(request: Request, writer: Writer) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing() and written < 1 << 30:
            writer.write(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
            written += 0x100000
            await writer.drain()

    server.behave = behave
    assert publish_one(make(), server.url()) == Delivered("200")
    # What fits into the buffers of the two sockets, not what the server had to give.
    assert written < 64 << 20


def test_a_server_that_does_not_read_is_given_no_more_than_the_timeout(make: Any) -> None:
    with WebServer(reads=False) as server:
        event = make_event(destination=server.url(), payload=b'"' + b"x" * (32 << 20) + b'"')
        (outcome,) = publish(make(timeout_seconds=0.3), event)
    assert "did not answer within 0.3 s" in reason(outcome)


def test_headers_without_end_are_no_answer(server: WebServer, make: Any) -> None:
    server.behave = answer(200, X_Large="x" * (1 << 20))
    assert "not HTTP" in reason(publish_one(make(), server.url()))


def test_an_answer_that_is_not_http_is_the_hosts_trouble(server: WebServer, make: Any) -> None:
    async def behave(request: Request, writer: Writer) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")

    server.behave = behave
    assert "not HTTP" in reason(publish_one(make(), server.url()))


def test_a_server_that_hangs_up_is_asked_once(server: WebServer, make: Any) -> None:
    server.behave = disconnect
    assert "closed the connection" in reason(publish_one(make(), server.url()))
    assert len(server.requests) == 1


def test_a_kept_connection_that_dies_costs_nothing_but_another(server: WebServer, make: Any) -> None:
    async def behave(request: Request, writer: Writer) -> None:
        already = sum(other.connection == request.connection for other in server.requests) > 1
        await (disconnect if already else answer(200))(request, writer)

    server.behave = behave
    events = [make_event("a", destination=server.url()) for _ in range(3)]
    assert publish(make(), *events) == [Delivered("200")] * 3
    assert [request.connection for request in server.requests] == [1, 1, 2, 2, 3]


def test_nobody_listening_is_the_hosts_trouble(make: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        assert publish_one(make(), f"http://{host}/") == Unconfirmed(
            f"the connection to {host} failed: Connection refused", "destination", holds="host"
        )


def test_a_host_that_hangs_leaves_threads_to_the_others(server: WebServer, make: Any) -> None:
    with WebServer(behave=hang) as hung:
        stuck = [make_event(f"stuck{n}", destination=hung.url()) for n in range(CONNECTIONS * 2)]
        fine = [make_event(f"fine{n}", destination=server.url()) for n in range(CONNECTIONS * 2)]
        outcomes = publish(make(timeout_seconds=60), *stuck, *fine, seconds=4)
        assert hung.connections > 0
    assert all(isinstance(outcome, Unconfirmed) for outcome in outcomes[: len(stuck)])
    assert outcomes[len(stuck) :] == [Delivered("200")] * len(fine)


def test_a_call_past_its_deadline_sends_nothing(server: WebServer, make: Any) -> None:
    (outcome,) = make().publish([make_event(destination=server.url())], monotonic() - 1)
    assert "not sent" in reason(outcome)
    assert outcome.holds is None, "nobody is to blame"
    assert server.connections == 0


def test_a_request_whose_time_is_up_before_it_begins_is_the_hosts_timeout(
    server: WebServer, make: Any
) -> None:
    assert publish_one(make(timeout_seconds=1e-9), server.url()) == Unconfirmed(
        f"{server.host} did not answer within 1e-09 s", "destination", holds="host"
    )


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost, with its key."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = f"""
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2
        -subj /CN=localhost -addext subjectAltName=DNS:localhost
        -out {path} -keyout {path.with_name("key.pem")}
    """
    subprocess.run(command.split(), check=True, capture_output=True)
    return path


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[WebServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    with WebServer(tls=context) as running:
        yield running


def test_a_certificate_that_is_not_trusted_is_the_hosts_trouble(tls_server: WebServer, make: Any) -> None:
    outcome = publish_one(make(), tls_server.url(host="localhost"))
    assert f"the certificate of localhost:{tls_server.port} is not trusted" in reason(outcome)
    assert tls_server.requests == []


def test_a_trusted_certificate_must_be_the_hosts(
    tls_server: WebServer, certificate: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    publisher = make()
    assert "is not trusted" in reason(publish_one(publisher, tls_server.url(host="127.0.0.1")))
    assert tls_server.requests == []
    assert publish_one(publisher, tls_server.url(host="localhost")) == Delivered("200")
    assert tls_server.requests[0].header("Host") == f"localhost:{tls_server.port}"


def test_a_server_that_does_not_speak_tls_is_the_hosts_trouble(server: WebServer, make: Any) -> None:
    outcome = publish_one(make(timeout_seconds=0.5), server.url().replace("http:", "https:"))
    assert server.host in reason(outcome)


# Addresses


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "10.0.0.1",
        "169.254.169.254",
        "[fe80::1]",
    ],
)
def test_a_private_address_is_refused_however_it_is_written(host: str, server: WebServer, make: Any) -> None:
    outcome = publish_one(make(allow_private=False), server.url(host=host), seconds=5)
    assert "allow_private" in reason(outcome)
    assert server.connections == 0


@pytest.mark.parametrize(
    "address,public",
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::5db8:d822", True),
        ("127.8.9.10", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("192.0.0.9", False),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("0.0.0.0", False),
        ("::", False),
        ("::1", False),
        ("::ffff:10.0.0.1", False),
        ("::10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b:1::1", False),
        ("2002:a00:1::1", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
        ("fc00::1", False),
        ("fd00:ec2::254", False),
        ("fe80::1%2", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("2001:db8::1", False),
        ("no address", False),
    ],
)
def test_an_address_is_public_or_not(address: str, public: bool) -> None:
    assert is_public(address) is public


class Names:
    """A resolver that gives one answer after the other, and a network that notes where it would connect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []
        self.connected_to: list[str] = []
        monkeypatch.setattr(Network, "_connect", self._connect)

    def __call__(self, host: str, port: int, **kwargs: Any) -> list[Any]:
        self.asked.append(host)
        family = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*family, (address, port)) for address in self._answers.pop(0)]

    def _connect(self, addresses: list[Any]) -> socket.socket:
        self.connected_to += [address.sockaddr[0] for address in addresses]
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_name_is_resolved_once_and_the_checked_address_is_the_one_connected_to(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(monkeypatch, ["93.184.216.34"], ["127.0.0.1"])
    publisher = make(allow_private=False, getaddrinfo=names)
    assert "refused" in reason(publish_one(publisher, "http://rebinding.example/"))
    assert (names.asked, names.connected_to) == (["rebinding.example"], ["93.184.216.34"])
    assert "is at 127.0.0.1" in reason(publish_one(publisher, "http://rebinding.example/"))
    assert names.connected_to == ["93.184.216.34"]


def test_the_connection_goes_to_the_address_that_was_checked_not_to_the_name(make: Any) -> None:
    def names(host: str, port: int, **kwargs: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.3", port))]

    with WebServer(address="127.0.0.3") as elsewhere:
        assert publish_one(make(getaddrinfo=names), elsewhere.url(host="localhost")) == Delivered("200")
        assert elsewhere.requests[0].header("Host") == f"localhost:{elsewhere.port}"


def test_of_several_addresses_only_the_public_ones_are_tried(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(monkeypatch, ["10.0.0.1", "93.184.216.34", "127.0.0.1", "93.184.216.34"])
    publish_one(make(allow_private=False, getaddrinfo=names), "http://mixed.example/")
    assert names.connected_to == ["93.184.216.34"]


def test_an_address_that_does_not_answer_is_followed_by_the_next(server: WebServer, make: Any) -> None:
    def names(host: str, port: int, **kwargs: Any) -> list[Any]:
        # Nothing listens on the port at the first: these are different addresses of this machine.
        family = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*family, (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

    assert publish_one(make(getaddrinfo=names), server.url(host="two.example")) == Delivered("200")
    assert server.requests[0].header("Host") == f"two.example:{server.port}"


@pytest.mark.parametrize("name", ["no-such-name.invalid", "x" * 70 + ".example", "a..b"])
def test_a_name_without_an_address_is_the_hosts_trouble(name: str, make: Any) -> None:
    def names(host: str, port: int, **kwargs: Any) -> list[Any]:
        host.encode("idna")
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    outcome = publish_one(make(getaddrinfo=names), f"http://{name}/")
    assert "could not be resolved" in reason(outcome)


class StuckResolver:
    def __init__(self) -> None:
        self.release = threading.Event()
        self.returned = threading.Semaphore(0)
        self.asked = threading.Semaphore(0)

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        self.asked.release()
        assert self.release.wait(60)
        self.returned.release()
        return socket.getaddrinfo(*args, **kwargs)


def test_a_resolver_that_hangs_holds_neither_the_call_nor_the_close_nor_sends_later(
    server: WebServer, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "CLOSE_SECONDS", 0.2)
    resolver = StuckResolver()
    publisher = make(getaddrinfo=resolver)
    assert "did not answer before" in reason(publish_one(publisher, server.url(), seconds=1.5))
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "webhook"]
    started = monotonic()
    publisher.close()
    assert monotonic() - started < 5
    resolver.release.set()
    thread.join(10)
    assert not thread.is_alive()
    assert server.connections == 0


def test_threads_that_wait_for_the_resolver_are_bounded(server: WebServer, make: Any) -> None:
    resolver = StuckResolver()
    publisher = make(getaddrinfo=resolver)
    events = [make_event(f"k{number}", destination=server.url()) for number in range(CONNECTIONS * 2)]
    try:
        while publish(publisher, *events, seconds=0.5) != [NO_THREAD] * len(events):
            pass
        assert sum(thread.name == "webhook" for thread in threading.enumerate()) == CONNECTIONS
    finally:
        resolver.release.set()


# Destinations that are none


@pytest.mark.parametrize(
    "destination",
    [
        "outbox.events",
        "ftp://example.com/",
        "http://",
        "http:///x",
        "//example.com",
        "http://a:99999/",
        "http://a:0/",
        "\x00",
    ],
)
def test_a_row_whose_destination_is_no_http_url_is_refused_alone(
    destination: str, server: WebServer, make: Any
) -> None:
    events = [make_event("a", destination=destination), make_event("b", destination=server.url())]
    outcomes = publish(make(), *events)
    assert isinstance(outcomes[0], Refused)
    assert "is no http or https URL" in outcomes[0].reason
    assert outcomes[1] == Delivered("200")


@pytest.mark.parametrize("destination", ["outbox.events", "ftp://example.com/", "//example.com"])
def test_a_setting_that_is_no_http_url_is_told_at_the_start(destination: str) -> None:
    with pytest.raises(SettingsError, match="RELAY_DESTINATION"):
        WebhookPublisher({"destination": destination})


@given(st.text())
def test_no_text_is_more_than_no_target(destination: str) -> None:
    for text in (destination, f"http://{destination}", f"https://example.com/{destination}"):
        target_of(text)


# Secrets


SECRETS = ("t0ken", "pa55word", "hush", "pr1vate")


async def echo(request: Request, writer: Writer) -> None:
    writer.write(request.target.encode() + b"\r\n\r\n")


def test_nothing_secret_is_told(
    server: WebServer, tls_server: WebServer, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "publishers")
    behaviours = [
        answer(200),
        answer(301, Location=server.url("/pr1vate?token=t0ken")),
        answer(422, b"t0ken"),
        answer(503, X_Echo="/pr1vate?token=t0ken"),
        disconnect,
        drip_headers,
        echo,
    ]
    rest = "/pr1vate?token=t0ken"
    told: list[object] = []
    publisher = make(secret="hush", timeout_seconds=1)
    for behaviour in behaviours:
        server.behave = behaviour
        told += publish(publisher, make_event(destination=f"http://me:pa55word@{server.host}{rest}"))
    told += publish(
        publisher,
        make_event("a", destination=f"https://me:pa55word@{tls_server.host}{rest}"),
        make_event("b", destination=f"https://me:pa55word@{server.host}{rest}"),
        make_event("c", destination=f"htps://me:pa55word@example.com{rest}"),
        make_event("d", destination=f"http://me:pa55word@example.com:99999{rest}"),
        make_event("e", destination=f"http://me:pa55word@no-such-name.invalid{rest}"),
        make_event("f", destination="pr1vate/t0ken"),
    )
    told += publish(make(allow_private=False), make_event(destination=f"http://127.0.0.1{rest}"))
    told += [repr(publisher)]
    assert len(server.requests) >= len(behaviours)
    text = "\n".join(map(str, told)) + caplog.text
    assert not [secret for secret in SECRETS if secret in text]
    assert server.host in text


def test_an_error_of_our_own_is_told_without_its_text(
    server: WebServer, make: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://example.com/?token=t0ken"

    def broken(*args: object) -> None:
        raise ZeroDivisionError(url)

    monkeypatch.setattr(webhook, "request_headers", broken)
    outcome = publish_one(make(), server.url())
    assert reason(outcome, "event") == f"posting to {server.host} failed: ZeroDivisionError"
    assert "test_webhook.py" in caplog.text
    assert "t0ken" not in caplog.text


# The end


def test_close_ends_requests_under_way(server: WebServer, make: Any) -> None:
    server.behave = hang
    publisher = make(timeout_seconds=60)
    events = [make_event(f"k{number}", destination=server.url()) for number in range(5)]
    outcomes: list[Outcome] = []
    publishing = threading.Thread(target=lambda: outcomes.extend(publish(publisher, *events, seconds=60)))
    publishing.start()
    server.wait_for(requests=5)
    started = monotonic()
    publisher.close()
    publishing.join(10)
    assert monotonic() - started < 5
    assert outcomes == [CLOSED] * 5


def test_close_ends_a_tls_handshake_under_way(make: Any) -> None:
    with WebServer(reads=False) as silent:
        publisher = make(timeout_seconds=60)
        outcomes: list[Outcome] = []
        event = make_event(destination=silent.url().replace("http:", "https:"))
        publishing = threading.Thread(target=lambda: outcomes.extend(publish(publisher, event, seconds=60)))
        publishing.start()
        silent.wait_for(connections=1)
        publisher.close()
        publishing.join(10)
    assert outcomes == [CLOSED]


def test_a_closed_publisher_publishes_nothing(server: WebServer, make: Any) -> None:
    publisher = make()
    publisher.close()
    assert publish_one(publisher, server.url()) == CLOSED
    assert server.connections == 0


def test_a_timeout_must_be_positive() -> None:
    with pytest.raises(SettingsError, match="timeout_seconds"):
        WebhookPublisher({"timeout_seconds": 0})
