"""The suite against a real node, and what is particular to RabbitMQ."""

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pika
import pytest
from pydantic import SecretStr

from publishers.rabbitmq import RabbitPublisher
from relay.errors import SettingsError
from relay.outcome import Delivered, Refused, Unconfirmed
from relay.testing import PublisherConformance, make_event
from tests.servers.rabbit_rig import RabbitRig, publish


@pytest.fixture
def rig(rabbitmq: str) -> RabbitRig:
    return RabbitRig(rabbitmq)


class TestRabbitMQ(PublisherConformance):
    @pytest.fixture
    def rig(self, rabbitmq: str) -> RabbitRig:
        return RabbitRig(rabbitmq)


class TestRabbitMQWithoutABound(PublisherConformance):
    @pytest.fixture
    def rig(self, rabbitmq: str) -> RabbitRig:
        return RabbitRig(rabbitmq, options={"max_unconfirmed_per_key": 0})


@pytest.fixture
def publisher(rig: RabbitRig) -> Iterator[RabbitPublisher]:
    with rig.publisher() as publisher:
        yield publisher


def test_a_message_is_persistent_and_carries_the_event_in_its_properties(
    rig: RabbitRig, publisher: RabbitPublisher
) -> None:
    event = rig.event(event_type="OrderPaid")
    assert publish(publisher, event) == [Delivered(f"{rig.destination}/OrderPaid")]
    ((method, properties, body),) = rig.messages(1)
    assert (method.exchange, method.routing_key) == (rig.destination, "OrderPaid")
    assert (properties.message_id, properties.type) == (event.event_id, "OrderPaid")
    assert (properties.content_type, properties.delivery_mode) == ("application/json", 2)
    assert properties.timestamp == int(event.created_at.timestamp())
    assert body == event.payload


def test_the_routing_key_may_name_the_type_of_the_event_and_of_its_key(rig: RabbitRig) -> None:
    publisher = rig.make(routing_key="{key_type}.{event_type}")
    outcomes = publish(
        publisher, rig.event("order:9182:a", event_type="{key_type}"), rig.event("lonely", event_type="Paid")
    )
    publisher.close()
    assert outcomes == [
        Delivered(f"{rig.destination}/order.{{key_type}}"),
        Delivered(f"{rig.destination}/lonely.Paid"),
    ]


def test_amq_default_is_the_default_exchange_where_the_routing_key_names_the_queue(rig: RabbitRig) -> None:
    publisher = rig.make(routing_key=rig.queue)
    event = rig.event(destination="amq.default")
    assert publish(publisher, event) == [Delivered(f"amq.default/{rig.queue}")]
    publisher.close()
    assert [message.event_id for message in rig.received(1)] == [event.event_id]


@pytest.mark.parametrize(
    "flaw",
    [
        {"destination": ""},
        {"destination": "x" * 256},
        {"event_type": "é" * 128},
        {"headers": {"x" * 256: "1"}},
        {"headers": {"huge": "x" * 140_000}},
        {"headers": {"lone": "\ud800"}},
        {"headers": {"number": 1.5}},
    ],
    ids=[
        "no exchange",
        "long exchange",
        "long routing key",
        "long name of a header",
        "more than a frame",
        "no text",
        "no string",
    ],
)
def test_an_event_that_amqp_cannot_carry_is_refused_alone(
    rig: RabbitRig, publisher: RabbitPublisher, flaw: dict[str, Any]
) -> None:
    first, bad = rig.event("order:1"), rig.event("order:1", **flaw)
    behind, other = rig.event("order:1"), rig.event("order:2")
    outcomes = publish(publisher, first, bad, behind, other)
    assert [type(outcome) for outcome in outcomes] == [Delivered, Refused, Unconfirmed, Delivered]
    assert {message.event_id for message in rig.received(2)} == {first.event_id, other.event_id}


def test_headers_that_just_fit_a_frame_are_delivered(rig: RabbitRig, publisher: RabbitPublisher) -> None:
    """One byte more is refused: the measure is exact."""
    size = 130_000
    while isinstance(publish(publisher, rig.event(headers={"h": "x" * (size + 100)}))[0], Delivered):
        size += 100
    while isinstance(publish(publisher, rig.event(headers={"h": "x" * (size + 1)}))[0], Delivered):
        size += 1
    assert 130_000 < size < 131_072
    (outcome,) = publish(publisher, rig.event(headers={"h": "x" * (size + 1)}))
    assert isinstance(outcome, Refused)
    assert "one frame" in outcome.reason


def test_declare_makes_a_durable_exchange_with_a_queue_that_takes_everything(rabbitmq: str) -> None:
    name = f"declared-{uuid4().hex}"
    publisher = RabbitPublisher({"url": rabbitmq, "declare": True})
    outcomes = [
        *publish(publisher, make_event(destination=name)),
        *publish(publisher, make_event(destination=name)),
    ]
    publisher.close()
    assert outcomes == [Delivered(f"{name}/OrderPaid")] * 2
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq))
    channel = connection.channel()
    channel.exchange_declare(name, "topic", durable=True)
    assert channel.queue_declare(name, passive=True).method.message_count == 2
    channel.queue_delete(name)
    connection.close()


def test_what_cannot_be_declared_is_the_destinations_trouble_and_others_go_out(rig: RabbitRig) -> None:
    other_kind = f"fanout-{uuid4().hex}"
    with rig.channel() as channel:
        channel.exchange_declare(other_kind, "fanout", durable=True)
    publisher = rig.make(declare=True)
    refused, delivered = publish(
        publisher,
        rig.event("order:1", destination=other_kind),
        rig.event("order:2", destination=f"new-{uuid4().hex}"),
    )
    publisher.close()
    assert isinstance(refused, Unconfirmed)
    assert refused.scope == "destination"
    assert "PRECONDITION_FAILED" in refused.reason
    assert isinstance(delivered, Delivered)


def test_the_url_may_be_a_secret(rig: RabbitRig) -> None:
    publisher = RabbitPublisher({"url": SecretStr(rig.url)})
    assert isinstance(publish(publisher, rig.event())[0], Delivered)
    publisher.close()


def test_a_missing_address_is_a_sentence_that_says_what_to_set() -> None:
    with pytest.raises(SettingsError, match="RELAY_RABBITMQ__URL"):
        RabbitPublisher({"url": None})


@pytest.mark.parametrize("url", ["localhost", "http://u:hush@h/", "amqp://u:hush@h:port/", "amqp://user@h/"])
def test_an_address_that_is_none_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(SettingsError, match=r"\[rabbitmq\] url") as raised:
        RabbitPublisher({"url": url})
    assert "hush" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_certificates_that_cannot_be_read_are_told_before_anything_is_published() -> None:
    with pytest.raises(SettingsError, match="No such file"):
        RabbitPublisher({"url": "amqps://u:hush@h/?ssl_options={'ca_certs':'/nowhere/ca.pem'}"})


@pytest.mark.parametrize("what", ["password", "virtual host", "plain port for TLS"])
def test_a_wrong_setting_is_told_as_such_and_never_shows_the_password(
    rig: RabbitRig, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    right = urlsplit(rig.url)
    address = f"{right.hostname}:{right.port}"
    wrong = {
        "password": right._replace(netloc=f"{right.username}:hush-hush@{address}"),
        "virtual host": right._replace(path="/nowhere"),
        "plain port for TLS": right._replace(scheme="amqps", netloc=f"{right.username}:hush-hush@{address}"),
    }[what]
    with rig.publisher(url=wrong.geturl()) as publisher:
        outcomes = publish(publisher, rig.event("order:1"), rig.event("order:2"))
    assert {outcome.scope for outcome in outcomes} == {"settings"}
    assert "hush-hush" not in outcomes[0].reason + caplog.text
    assert f"RabbitMQ at {address}" in outcomes[0].reason


def test_a_certificate_that_nobody_vouches_for_is_the_settings_trouble(
    rig: RabbitRig, tmp_path: Path
) -> None:
    pem = tmp_path / "server.pem"
    pem.write_text(SELF_SIGNED)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    refusals: list[str] = []

    def serve(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        try:
            context.wrap_socket(accepted, server_side=True)
        except ssl.SSLError as error:
            refusals.append(error.reason)
        finally:
            accepted.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve, listener)
        url = f"amqps://guest:guest@localhost:{listener.getsockname()[1]}/"
        with rig.publisher(url=url) as publisher:
            (outcome,) = publish(publisher, rig.event())
        serving.result()
    assert refusals == ["TLSV1_ALERT_UNKNOWN_CA"]
    assert outcome.scope == "settings"
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.reason


# Of localhost, vouched for by itself; the key guards nothing.
SELF_SIGNED = """\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIBmmZBsZ66bnqjiQNVdVWHMJY//1eimKrnDwO7ebUK0OoAoGCCqGSM49
AwEHoUQDQgAEWsJ2VrwxofEtBa8n56O/8zDRzE/N6Vg8ZZHCtXulOppRcZ2wZqUT
9urzkbiVbYG180IUbfXZx1qxnQ/ZXHBsIw==
-----END EC PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUUF6TOmg5kVWJgCDc/vfN+Knp+MswCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNjA0MDQxMVoYDzIxMjYxMDIz
MDQwNDExWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARawnZWvDGh8S0Fryfno7/zMNHMT83pWDxlkcK1e6U6mlFxnbBmpRP2
6vORuJVtgbXzQhRt9dnHWrGdD9lccGwjo1MwUTAdBgNVHQ4EFgQUyQ5JvhAXvOQR
aGmUwHP53+RnLZIwHwYDVR0jBBgwFoAUyQ5JvhAXvOQRaGmUwHP53+RnLZIwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiAguH1rucIN7exBJejPuiDt
yxcYk9+cU5TzlTlSCHDTbwIhALCdEk2HD84moICNRXfJKFYiNIdUKCXItW3qzTYi
zRe0
-----END CERTIFICATE-----
"""
