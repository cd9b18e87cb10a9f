"""What is written by hand is what the client reads."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import BasicProperties

from publishers.amqp_properties import FRAME_OVERHEAD, Unsendable, properties_encoder
from relay.message import cloudevents_headers, encoder, plain_headers
from relay.testing import make_event

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAME = TEXT.filter(lambda name: len(name.encode()) <= 255)


@given(headers=st.dictionaries(NAME, TEXT), event_id=NAME, event_type=NAME)
def test_the_client_decodes_what_was_encoded(headers: dict[str, str], event_id: str, event_type: str) -> None:
    event = make_event(headers=headers, event_id=event_id, event_type=event_type)
    encoded = b"".join(properties_encoder(plain_headers)(event, 1 << 20).encode())
    decoded = BasicProperties().decode(encoded)
    assert decoded.headers == dict(plain_headers(event))
    assert (decoded.message_id, decoded.type) == (event_id, event_type)
    assert (decoded.content_type, decoded.delivery_mode) == ("application/json", 2)
    assert decoded.timestamp == int(event.created_at.timestamp())


def test_cloudevents_attributes_become_headers_with_their_prefix() -> None:
    event = make_event()
    encoded = b"".join(properties_encoder(encoder("cloudevents", "rabbitmq"))(event, 1 << 20).encode())
    decoded = BasicProperties().decode(encoded)
    assert decoded.headers == dict(cloudevents_headers(event, "cloudEvents:"))
    assert decoded.headers["cloudEvents:id"] == event.event_id
    assert decoded.content_type == "application/json"


def test_the_limit_is_the_frame_to_the_byte() -> None:
    encode = properties_encoder(plain_headers)
    event = make_event(position=1, event_id="evt-1")
    size = len(encode(event, 1 << 20).encode()[0]) + FRAME_OVERHEAD
    encode(event, size)
    with pytest.raises(Unsendable, match="one frame"):
        encode(event, size - 1)


def test_an_event_from_before_1970_has_the_earliest_timestamp_there_is() -> None:
    event = make_event(created_at=datetime(1969, 1, 1, tzinfo=UTC))
    encoded = b"".join(properties_encoder(plain_headers)(event, 1 << 20).encode())
    assert BasicProperties().decode(encoded).timestamp == 0
