"""Messages parse back to the same event with the CloudEvents SDK, on every transport."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import unquote

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import amqp, http, kafka
from cloudevents.core.formats.json import JSONFormat

from publishers.http_headers import from_text, request_headers
from relay.event import Event
from relay.message import encoder, plain_headers
from relay.testing import make_event

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACESTATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE%"
TRANSPORTS = ["kafka", "rabbitmq", "webhook"]

EVENT = make_event(
    'kunde:grüße "日本" 100%',
    event_id="evt-ž-1",
    event_type="Größe geändert",
    destination="https://user:pw@example.com/hook?token=t0p",
    payload='{"text": "žluťoučký 🐎", "n": 1.10}'.encode(),
    created_at=datetime(2026, 7, 1, 14, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2))),
)


def parse(event: Event, transport: str) -> BaseCloudEvent:
    """The event as a consumer that uses the SDK sees it."""
    headers = dict(encoder("cloudevents", transport)(event))
    match transport:
        case "kafka":
            encoded = {name: value.encode() for name, value in headers.items()}
            return kafka.from_kafka(kafka.KafkaMessage(encoded, None, event.payload), JSONFormat())
        case "rabbitmq":
            message = amqp.AMQPMessage({"content-type": "application/json"}, headers, event.payload)
            return amqp.from_amqp(message, JSONFormat())
        case _:
            sent = dict(http_headers(event, "cloudevents"))
            return http.from_http(http.HTTPMessage(sent, event.payload), JSONFormat())


def http_headers(event: Event, wanted: Any) -> list[tuple[str, str]]:
    headers = request_headers(event, wanted, "example.com", None, None)
    return [(name.decode("ascii"), value.decode("ascii")) for name, value in headers]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_sdk_reads_the_event_back(transport: str) -> None:
    parsed = parse(EVENT, transport)
    assert parsed.get_specversion() == "1.0"
    assert parsed.get_id() == EVENT.event_id
    assert parsed.get_type() == EVENT.event_type
    assert parsed.get_subject() == EVENT.key
    assert parsed.get_time() == EVENT.created_at
    assert parsed.get_datacontenttype() == "application/json"
    assert parsed.get_data() == {"text": "žluťoučký 🐎", "n": 1.10}
    assert parsed.get_extension("partitionkey") == EVENT.key
    assert parsed.get_extension("position") == str(EVENT.position)
    assert parsed.get_extension("leasegeneration") == "1"
    assert parsed.get_extension("attempt") == "1"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_trace_context_goes_as_attributes_and_as_headers(transport: str) -> None:
    event = EVENT._replace(headers={"traceparent": TRACEPARENT, "tracestate": TRACESTATE})
    parsed = parse(event, transport)
    assert parsed.get_extension("traceparent") == TRACEPARENT
    assert parsed.get_extension("tracestate") == TRACESTATE
    for wanted in ("plain", "cloudevents"):
        headers = encoder(wanted, transport)(event)
        sent = dict(http_headers(event, wanted)) if transport == "webhook" else dict(headers)
        assert (sent["traceparent"], sent["tracestate"]) == (TRACEPARENT, TRACESTATE)


@pytest.mark.parametrize(
    "transport,prefix", [("kafka", "ce_"), ("rabbitmq", "cloudEvents:"), ("webhook", "ce-")]
)
def test_attributes_have_the_prefix_of_their_binding(transport: str, prefix: str) -> None:
    headers = dict(encoder("cloudevents", transport)(EVENT))
    assert headers[f"{prefix}id"] == EVENT.event_id
    assert headers[f"{prefix}time"] == "2026-07-01T12:00:00.123456Z"


def test_only_kafka_has_the_content_type_among_its_headers() -> None:
    assert dict(encoder("cloudevents", "kafka")(EVENT))["content-type"] == "application/json"
    for transport in ("rabbitmq", "webhook"):
        assert "content-type" not in dict(encoder("cloudevents", transport)(EVENT))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rows_headers_become_extensions_where_the_name_allows_and_go_beside_where_not(
    transport: str,
) -> None:
    own = {
        "tenant": "a č",
        "Tenant": "upper",
        "tenant-id": "hyphen",
        "tenant_id": "underscore",
        "größe": "xl",
        "data": "reserved by the specification",
        "subject": "not the key",
        "id": "not the event's",
        "multi": "two\nlines",
    }
    event = EVENT._replace(headers=own)
    parsed = parse(event, transport)
    assert parsed.get_extension("tenant") == "a č"
    assert (parsed.get_subject(), parsed.get_id()) == (event.key, event.event_id)
    beside = dict(encoder("cloudevents", transport)(event))
    assert {name: beside[name] for name in own if name != "tenant"} == {
        name: value for name, value in own.items() if name != "tenant"
    }


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_header_of_a_row_poses_as_an_attribute_or_as_the_content(transport: str) -> None:
    prefixes = ("ce_", "CE_", "ce-", "Ce-", "cloudEvents:", "cloudevents:")
    own = {f"{prefix}id": "forged" for prefix in prefixes} | {"Content-Type": "text/html"}
    event = EVENT._replace(headers=own)
    parsed = parse(event, transport)
    assert (parsed.get_id(), parsed.get_datacontenttype()) == (event.event_id, "application/json")


@pytest.mark.parametrize("wanted", ["plain", "cloudevents"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_reserved_header_of_a_raw_row_gives_way_to_the_relays(transport: str, wanted: Any) -> None:
    event = EVENT._replace(headers={"event_id": "forged", "position": "0", "kept": "yes"})
    values = [value for _, value in encoder(wanted, transport)(event)]
    assert "forged" not in values
    assert "yes" in values


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_row_may_name_its_own_source_and_schema(transport: str) -> None:
    own = {"source": "https://shop.example/orders", "dataschema": "https://shop.example/paid.json"}
    parsed = parse(EVENT._replace(headers=own), transport)
    assert (parsed.get_source(), parsed.get_dataschema()) == (own["source"], own["dataschema"])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_source_that_is_no_uri_is_not_taken_for_one(transport: str) -> None:
    event = EVENT._replace(headers={"source": "mobile app", "dataschema": ""}, destination="my exchange/ž")
    parsed = parse(event, transport)
    assert parsed.get_source() == (
        "outbox:example.com" if transport == "webhook" else "outbox:my%20exchange/%C5%BE"
    )
    assert parsed.get_dataschema() is None


def test_a_webhooks_source_does_not_repeat_its_url() -> None:
    sent = http_headers(EVENT, "cloudevents")
    assert dict(sent)["ce-source"] == "outbox:example.com"
    assert not any("t0p" in value or "pw" in value for _, value in sent)


def test_cloudevents_values_are_percent_encoded_as_the_http_binding_says() -> None:
    event = make_event('Euro € 😀 "x" 50%', headers={"a": "!#$&'()*+,-./:;<=>?@[]^_`{|}~\\"})
    sent = dict(http_headers(event, "cloudevents"))
    assert sent["ce-subject"] == "Euro%20%E2%82%AC%20%F0%9F%98%80%20%22x%22%2050%25"
    assert sent["ce-a"] == "!#$&'()*+,-./:;<=>?@[]^_`{|}~\\"


VALUES = [
    "",
    "plain",
    "two words",
    " lead",
    "trail ",
    "ač",
    "tab\tin",
    "cr\r\nInjected: 1",
    "UTF-8''x",
    "50%",
    "\x00\x7f",
]


@pytest.mark.parametrize("value", VALUES)
def test_a_plain_value_is_safe_on_http_and_reads_back(value: str) -> None:
    sent = dict(http_headers(make_event(headers={"own": value}), "plain"))["own"]
    assert sent.isascii()
    assert sent.isprintable()
    assert sent == sent.strip()
    assert from_text(sent) == value


def test_ordinary_text_is_sent_as_it_is() -> None:
    baggage = "userId=al%20ice, x=1"
    assert dict(http_headers(make_event(headers={"baggage": baggage}), "plain"))["baggage"] == baggage


def test_the_relays_headers_go_twice_because_servers_drop_underscores() -> None:
    sent = dict(http_headers(EVENT, "plain"))
    for name, value in plain_headers(EVENT):
        assert from_text(sent[name]) == value
        assert from_text(sent[f"X-Outbox-{name.replace('_', '-').title()}"]) == value


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "content-length",
        "Content_Length",
        "Transfer-Encoding",
        "connection",
        "Content-Type",
        "Idempotency-Key",
        "X-Signature",
        "x_signature",
        "X-Outbox-Event-Id",
        "x_outbox_event_id",
        "Event-Id",
        "EVENT_ID",
        "Proxy-Authorization",
        "ce-id",
        "CE_ID",
    ],
)
@pytest.mark.parametrize("wanted", ["plain", "cloudevents"])
def test_a_row_cannot_change_how_a_request_is_framed_or_who_it_is_from(name: str, wanted: Any) -> None:
    sent = http_headers(make_event(headers={name: "forged"}), wanted)
    # An extension of that name is no more than an extension.
    assert {name for name, value in sent if value == "forged"} <= {"ce-connection"}


def test_a_name_that_http_does_not_allow_is_percent_encoded() -> None:
    sent = http_headers(make_event(headers={"größe x:y\r\n": "xl"}), "plain")
    assert sent[-1] == ("gr%C3%B6%C3%9Fe%20x%3Ay%0D%0A", "xl")
    assert unquote(sent[-1][0]) == "größe x:y\r\n"


def test_credentials_of_the_url_win_over_a_rows() -> None:
    event = make_event(headers={"authorization": "Bearer row"})
    sent = request_headers(event, "plain", "example.com", ("user", "p:w"), None)
    assert [value for name, value in sent if name.lower() == b"authorization"] == [b"Basic dXNlcjpwOnc="]


def test_the_same_moment_is_the_same_text_whatever_the_sessions_time_zone() -> None:
    here = EVENT.created_at
    times = {
        dict(encoder("cloudevents", "kafka")(EVENT._replace(created_at=moment)))["ce_time"]
        for moment in (here, here.astimezone(UTC), here.astimezone(timezone(timedelta(hours=-5))))
    }
    assert len(times) == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_marks_of_the_relay_are_headers_and_a_row_cannot_set_them(transport: str) -> None:
    forged = {"redriven_at": "forged", "replay_id": "forged", "replayed_at": "forged", "own": "kept"}
    plain, marked = EVENT._replace(headers=forged), EVENT._replace(headers=forged, marks={"replay_id": "r-1"})
    assert dict(plain_headers(marked)) == dict(plain_headers(plain)) | {"replay_id": "r-1"}
    encode = encoder("cloudevents", transport)
    extension = {"kafka": "ce_", "rabbitmq": "cloudEvents:", "webhook": "ce-"}[transport] + "replayid"
    assert dict(encode(marked)) == dict(encode(plain)) | {extension: "r-1"}
    assert "forged" not in [*dict(plain_headers(plain)).values(), *dict(encode(plain)).values()]
