"""What is written by hand is what the client reads."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame
from pika.spec import Basic, BasicProperties

from publishers.amqp_frames import FRAME_OVERHEAD, Frames, Unsendable
from relay.message import cloudevents_headers, encoder, plain_headers
from relay.testing import make_event

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAME = TEXT.filter(lambda name: len(name.encode()) <= 255)


def frames(frame_max: int = 1 << 17) -> Frames:
    return Frames(plain_headers, 7, frame_max)


def read(data: bytes) -> list[frame.Frame]:
    """As the client reads what comes from a broker."""
    found = []
    while data:
        consumed, one = frame.decode_frame(data)
        assert one is not None
        found.append(one)
        data = data[consumed:]
    return found


@given(headers=st.dictionaries(NAME, TEXT), event_id=NAME, event_type=NAME)
def test_the_client_decodes_what_was_encoded(headers: dict[str, str], event_id: str, event_type: str) -> None:
    event = make_event(headers=headers, event_id=event_id, event_type=event_type)
    decoded = BasicProperties().decode(frames().properties(event))
    assert decoded.headers == dict(plain_headers(event))
    assert (decoded.message_id, decoded.type) == (event_id, event_type)
    assert (decoded.content_type, decoded.delivery_mode) == ("application/json", 2)
    assert decoded.timestamp == int(event.created_at.timestamp())


@given(body=st.binary(max_size=40_000), exchange=NAME, routing_key=NAME)
def test_a_message_is_its_address_its_properties_and_its_body_in_frames_that_fit(
    body: bytes, exchange: str, routing_key: str
) -> None:
    event = make_event(payload=body)
    written = frames(4096)
    method, header, *bodies = read(written.message(event, exchange, routing_key))
    assert isinstance(method.method, Basic.Publish)
    assert (method.method.exchange, method.method.routing_key) == (exchange, routing_key)
    assert method.method.mandatory
    assert not method.method.immediate
    assert header.body_size == len(body)
    assert header.properties.message_id == event.event_id
    assert b"".join(each.fragment for each in bodies) == body
    assert all(0 < len(each.fragment) <= 4096 - FRAME_OVERHEAD for each in bodies)
    assert {each.channel_number for each in (method, header, *bodies)} == {7}


def test_the_frames_are_those_that_the_client_would_send() -> None:
    event = make_event(payload=b"x" * 10_000)
    properties = BasicProperties().decode(frames().properties(event))
    parts = [event.payload[:4088], event.payload[4088:8176], event.payload[8176:]]
    expected = [
        frame.Method(7, Basic.Publish(exchange="orders", routing_key="OrderPaid", mandatory=True)),
        frame.Header(7, 10_000, properties),
        *(frame.Body(7, part) for part in parts),
    ]
    written = frames(4096).message(event, "orders", "OrderPaid")
    assert written == b"".join(each.marshal() for each in expected)


def test_cloudevents_attributes_become_headers_with_their_prefix() -> None:
    event = make_event()
    encoded = Frames(encoder("cloudevents", "rabbitmq"), 1, 1 << 17).properties(event)
    decoded = BasicProperties().decode(encoded)
    assert decoded.headers == dict(cloudevents_headers(event, "cloudEvents:"))
    assert decoded.headers["cloudEvents:id"] == event.event_id
    assert decoded.content_type == "application/json"


def test_the_limit_is_the_frame_to_the_byte() -> None:
    event = make_event(position=1, event_id="evt-1", payload=b"")
    _, header = read(frames().message(event, "orders", "OrderPaid"))
    size = len(header.marshal())
    frames(size).message(event, "orders", "OrderPaid")
    with pytest.raises(Unsendable, match="one frame"):
        frames(size - 1).message(event, "orders", "OrderPaid")


def test_an_event_from_before_1970_has_the_earliest_timestamp_there_is() -> None:
    event = make_event(created_at=datetime(1969, 1, 1, tzinfo=UTC))
    assert BasicProperties().decode(frames().properties(event)).timestamp == 0
