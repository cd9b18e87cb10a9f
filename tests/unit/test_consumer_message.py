"""What consumers read is what relays write, in both formats; everything else is malformed, never an error."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.consumers.message import Malformed, Raw, decode, lane_key, text_of, texts
from relay.message import CLOUDEVENTS_PREFIX, Format, encoder
from relay.testing import make_event

EVENT = make_event(
    "order:9182",
    event_id="evt-1",
    headers={"tenant": "acme", "X-Odd": "ä", "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"},
    generation=2**40,
    attempt=2,
    created_at=datetime(2026, 7, 1, 12, 0, 0, 5, tzinfo=UTC),
)


@pytest.mark.parametrize("transport", CLOUDEVENTS_PREFIX)
@pytest.mark.parametrize("format", ["plain", "cloudevents"])
def test_a_message_says_what_the_event_said(transport: str, format: Format) -> None:  # noqa: A002
    headers = [(name, value.encode()) for name, value in encoder(format, transport)(EVENT)]
    raw = Raw(EVENT.payload, texts(headers), "orders[0]@1", transport=transport)
    message = decode(raw)
    assert (message.event_id, message.event_type, message.key) == ("evt-1", "OrderPaid", "order:9182")
    assert (message.position, message.lease_generation, message.attempt) == (EVENT.position, 2**40, 2)
    assert (message.headers, message.created_at) == (EVENT.headers, EVENT.created_at)
    assert message.value == EVENT.payload
    assert lane_key(raw) == "order:9182"


_POSING = st.builds(
    "{}{}".format,
    st.sampled_from(["", "ce_", "ce-", "CE_", "cloudEvents:", "cloudEvents_"]),
    st.sampled_from(["specversion", "id", "partitionkey", "type", "replayid", "event_id", "partition_key"]),
)


@pytest.mark.parametrize("transport", CLOUDEVENTS_PREFIX)
@pytest.mark.parametrize("format", ["plain", "cloudevents"])
@given(own=st.dictionaries(st.one_of(_POSING, st.text(min_size=1)), st.text(), max_size=12))
@example(own={"ce_specversion": "1.0", "ce_id": "upstream-7", "ce_partitionkey": "zzz"})
@example(own={"cloudEvents:specversion": "1.0", "cloudEvents:id": "upstream-7"})
def test_no_header_of_a_row_replaces_what_the_relay_says_of_it(
    transport: str,
    format: Format,  # noqa: A002
    own: dict[str, str],
) -> None:
    headers = encoder(format, transport)(EVENT._replace(headers=own))
    raw = Raw(EVENT.payload, texts(headers), "", transport=transport)
    message = decode(raw)
    assert (message.event_id, message.event_type, message.key) == ("evt-1", "OrderPaid", "order:9182")
    assert (message.position, message.lease_generation, message.attempt) == (EVENT.position, 2**40, 2)
    assert (message.replay_id, message.redriven_at) == (None, None)
    assert lane_key(raw) == "order:9182"


def test_the_other_prefix_of_the_amqp_binding_is_known() -> None:
    headers = {"cloudEvents_specversion": "1.0", "cloudEvents_id": "e", "cloudEvents_replayid": "r"}
    message = decode(Raw(b"null", headers, ""))
    assert (message.event_id, message.replay_id, message.payload) == ("e", "r", None)


def test_a_header_that_only_looks_like_an_attribute_is_the_rows_own() -> None:
    message = decode(Raw(b"{}", {"event_id": "evt-1", "ce_id": "other"}, ""))
    assert (message.event_id, message.headers) == ("evt-1", {"ce_id": "other"})
    message = decode(Raw(b"{}", {"ce_specversion": "1.0", "ce_type": "T"}, "", event_id="evt-1"))
    assert (message.event_id, message.event_type) == ("evt-1", "")


def test_the_brokers_own_properties_stand_in_for_missing_headers() -> None:
    message = decode(Raw(b"{}", {}, "", event_id="evt-1", event_type="OrderPaid"))
    assert (message.event_id, message.event_type, message.key) == ("evt-1", "OrderPaid", "evt-1")


def test_facts_that_are_no_facts_are_none() -> None:
    facts = {"position": "first", "lease_generation": str(2**64), "attempt": "", "created_at": "yesterday"}
    message = decode(Raw(b"{}", {"event_id": "e"} | facts, ""))
    assert (message.position, message.lease_generation, message.attempt, message.created_at) == (None,) * 4
    assert message.headers == {}


@pytest.mark.parametrize(
    "value, headers, said, event_id",
    [
        (b"{}", {}, "has no event_id", None),
        (b"{}", {"event_id": ""}, "has no event_id", None),
        (b"{}", {"event_id": "x" * 256}, "1 to 255 bytes", None),
        (b"{}", {"event_id": "a\0"}, "NUL", None),
        (b"{", {"event_id": "e"}, "is not JSON", "e"),
        (b"\xff", {"event_id": "e"}, "is not JSON", "e"),
        (b"[" * 100_000, {"event_id": "e"}, "is not JSON", "e"),
        (None, {"event_id": "e"}, "has no value", "e"),
        (b"{}", {"event_id": "e", "replay_id": "r" * 256}, "replay_id", "e"),
    ],
)
def test_what_cannot_be_handled_is_malformed_and_says_why(
    value: bytes | None, headers: dict[str, str], said: str, event_id: str | None
) -> None:
    with pytest.raises(Malformed, match=said) as malformed:
        decode(Raw(value, headers, ""))
    assert malformed.value.event_id == event_id


def test_of_a_header_that_comes_twice_the_relays_counts() -> None:
    assert texts([("event_id", b"evt-1"), ("event_id", b"forged"), ("n", 7), ("none", None)]) == {
        "event_id": "evt-1",
        "n": "7",
        "none": "",
    }
    assert texts(None) == {}


def test_text_that_is_no_utf8_is_text() -> None:
    assert texts([(b"\xffodd", b"\xfe"), ("x", "y")]) == {"\ufffdodd": "\ufffd", "x": "y"}
    assert (text_of(b"evt-\xff"), text_of("evt-1"), text_of(None)) == ("evt-\ufffd", "evt-1", None)


_NAMES = st.one_of(
    st.sampled_from(["event_id", "position", "ce_specversion", "ce_id", "ce_time", "replay_id", "x"]),
    st.binary(),
)


@given(
    st.one_of(st.none(), st.binary()),
    st.lists(st.tuples(_NAMES, st.one_of(st.none(), st.binary(), st.text(), st.integers())), max_size=8),
    st.one_of(st.none(), st.binary(), st.text()),
)
def test_no_message_is_an_error(
    value: bytes | None, headers: list[tuple[Any, Any]], message_id: bytes | str | None
) -> None:
    raw = Raw(value, texts(headers), "", text_of(message_id))
    lane_key(raw)
    with suppress(Malformed):
        decode(raw)
