"""What `emit` refuses, and the sentence it refuses it with."""

import json
import subprocess
import sys
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay import validation
from relay.errors import InvalidEvent, RelayError
from relay.event import RESERVED_HEADERS
from relay.validation import MAX_DEPTH, attempts, due, headers_json, payload_json, text

MIB = 1_048_576
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kind(StrEnum):
    PAID = "OrderPaid"


def refusal(payload: Any) -> str:
    with pytest.raises(InvalidEvent) as refused:
        payload_json(payload, MIB)
    return str(refused.value)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.fixture
def no_digit_limit() -> Iterator[None]:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(limit)


def test_a_name_of_1_to_255_bytes_passes_unchanged() -> None:
    for name in ("a", "a" * 255, "é" * 127, "order:9182", " "):
        assert text("key", name) == name


@pytest.mark.parametrize("name", ["", "a" * 256, "é" * 128], ids=["empty", "256 letters", "256 bytes"])
def test_a_name_outside_1_to_255_bytes_is_refused_by_its_field(name: str) -> None:
    with pytest.raises(InvalidEvent, match=r"^event_type must be 1 to 255 bytes of UTF-8: '"):
        text("event_type", name)


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("a\0b", "key contains a NUL character, which PostgreSQL cannot store: remove it"),
        ("a\ud800", "key contains half of a surrogate pair, which is not valid text: remove it"),
        (9182, "key is an int: convert it to text first"),
        (b"order", "key is bytes: convert it to text first"),
        (uuid.UUID(int=0), "key is a UUID: convert it to text first"),
        (None, "key is None: convert it to text first"),
    ],
)
def test_a_name_that_is_not_storable_text_is_refused(name: object, sentence: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        text("key", name)
    assert str(refused.value) == sentence


def test_a_member_of_a_text_enum_becomes_plain_text() -> None:
    checked = text("event_type", Kind.PAID)
    assert checked == "OrderPaid"
    assert type(checked) is str


def test_a_destination_may_be_longer_than_a_name_but_not_than_2048_bytes() -> None:
    assert validation.destination("x" * 2048) == "x" * 2048
    with pytest.raises(InvalidEvent, match="destination must be 1 to 2048 bytes"):
        validation.destination("x" * 2049)


@pytest.mark.parametrize(
    "payload",
    [
        {"order_id": 9182, "lines": [{"sku": "A", "n": 2}], "paid": True, "note": None},
        [],
        {},
        (1, 2),
        "not JSON text but a JSON string",
        "\\u0000 written out",
        "😀",
        0,
        -1.5e300,
        10**4000,
        False,
        None,
        OrderedDict(a=1),
        {"kind": Kind.PAID},
        nested(MAX_DEPTH),
    ],
    ids=lambda payload: str(payload)[:20],
)
def test_any_json_value_is_a_payload(payload: Any) -> None:
    assert json.loads(payload_json(payload, MIB)) == json.loads(json.dumps(payload))


@pytest.mark.parametrize(
    "payload, sentence",
    [
        (
            {"items": [1, 2, 3, {"at": datetime.now(UTC)}]},
            "payload.items[3].at is a datetime: convert it to text first",
        ),
        ({"price": Decimal("1.50")}, "payload.price is a Decimal: convert it to text first"),
        ([b"x"], "payload[0] is bytes: convert it to text first"),
        ({"tags": {"a"}}, "payload.tags is a set: convert it to a list first"),
        (object(), "payload is an object: convert it to text first"),
        ({1: "a"}, "payload has the key 1, an int: convert it to text first"),
        ({"a": [{True: 1}]}, "payload.a[0] has the key True, a bool: convert it to text first"),
        (float("nan"), "payload is nan, which JSON does not have: send None or text"),
        ({"a": [float("-inf")]}, "payload.a[0] is -inf, which JSON does not have: send None or text"),
        (
            {"the note": "a\0b"},
            "payload['the note'] contains a NUL character, which PostgreSQL cannot store: remove it",
        ),
        (
            {"a": {"b\0": 1}},
            "a key of payload.a contains a NUL character, which PostgreSQL cannot store: remove it",
        ),
        (
            ["é", "\udfff"],
            "payload[1] contains half of a surrogate pair, which is not valid text: remove it",
        ),
        (
            {"\ud800": 1},
            "a key of payload contains half of a surrogate pair, which is not valid text: remove it",
        ),
        ({"n": 10**4300}, "payload.n is an integer with too many digits: convert it to text first"),
        (nested(MAX_DEPTH + 1), f"payload is nested deeper than {MAX_DEPTH} levels: flatten it"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_payload_that_jsonb_cannot_hold_is_refused_at_its_path(payload: Any, sentence: str) -> None:
    assert refusal(payload) == sentence


def test_a_payload_that_contains_itself_is_refused() -> None:
    order: dict[str, Any] = {"lines": []}
    order["lines"].append({"order": order})
    assert refusal(order) == (
        "payload.lines[0].order contains itself, which JSON cannot express: remove the cycle"
    )


def test_a_payload_may_contain_the_same_value_twice() -> None:
    address = {"city": "Oslo"}
    assert (
        payload_json({"from": address, "to": address}, MIB) == '{"from":{"city":"Oslo"},"to":{"city":"Oslo"}}'
    )


def test_a_payload_deeper_than_the_stack_is_refused_and_not_a_recursion_error() -> None:
    assert "nested" in refusal(nested(100_000))


@pytest.mark.usefixtures("no_digit_limit")
def test_integers_are_bounded_by_numeric_where_python_has_no_bound() -> None:
    assert payload_json(10**131_071, MIB)
    assert "too many digits" in refusal([-(10**131_072)])
    assert payload_json("1" * 131_073, MIB)


def test_the_payloads_limit_counts_the_bytes_of_its_json() -> None:
    assert payload_json("é" * 4, 10) == '"éééé"'
    with pytest.raises(InvalidEvent, match=r"^payload is 10 bytes of JSON, more than the 9 allowed: "):
        payload_json("é" * 4, 9)


def test_headers_become_an_object_of_strings() -> None:
    assert headers_json(None, None) is None
    assert headers_json({}, None) is None
    assert json.loads(headers_json({"tenant": "a", "é": ""}, None) or "") == {"tenant": "a", "é": ""}
    assert json.loads(headers_json(MappingProxyType({"tenant": "a"}), None) or "") == {"tenant": "a"}


@pytest.mark.parametrize("name", sorted(RESERVED_HEADERS))
def test_a_header_that_the_relay_writes_is_refused_in_any_case(name: str) -> None:
    for spelling in (name, name.upper(), name.title()):
        with pytest.raises(InvalidEvent) as refused:
            headers_json({spelling: "x"}, None)
        assert str(refused.value) == f"headers must not contain {spelling!r}: the relay writes it itself"


def test_traceparent_has_an_argument_of_its_own() -> None:
    with pytest.raises(InvalidEvent, match=r"'Traceparent': pass traceparent=… instead"):
        headers_json({"Traceparent": TRACEPARENT}, None)
    assert json.loads(headers_json({"a": "b"}, TRACEPARENT) or "") == {"a": "b", "traceparent": TRACEPARENT}


@pytest.mark.parametrize("traceparent", ["", "00-abc", TRACEPARENT.upper(), TRACEPARENT + "\n", 7])
def test_a_traceparent_of_another_form_is_refused(traceparent: object) -> None:
    with pytest.raises(InvalidEvent, match="traceparent is not of the W3C form"):
        headers_json(None, traceparent)


@pytest.mark.parametrize(
    "headers, sentence",
    [
        ([("a", "b")], "headers is a list: pass a mapping of text to text"),
        ("", "headers is a str: pass a mapping of text to text"),
        ({"": "x"}, "a name in headers must be 1 to 255 bytes of UTF-8: ''"),
        ({1: "x"}, "a name in headers is an int: convert it to text first"),
        ({"n": 1}, "headers.n is an int: convert it to text first"),
        ({"x-a": "\0"}, "headers['x-a'] contains a NUL character, which PostgreSQL cannot store: remove it"),
        ({"n": "\ud800"}, "headers.n contains half of a surrogate pair, which is not valid text: remove it"),
    ],
)
def test_headers_that_are_not_text_to_text_are_refused(headers: object, sentence: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        headers_json(headers, None)
    assert str(refused.value) == sentence


def test_a_time_is_written_in_utc() -> None:
    oslo = timezone(timedelta(hours=2))
    assert due(datetime(2026, 7, 1, 12, tzinfo=oslo)) == "2026-07-01T10:00:00+00:00"


@pytest.mark.parametrize(
    "available_at, sentence",
    [
        (datetime(2026, 7, 1), "available_at has no time zone"),  # noqa: DTZ001
        ("2026-07-01T12:00:00Z", "available_at is a str: pass a datetime with a time zone"),
        (datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))), "out of range in UTC"),
    ],
)
def test_a_time_that_is_not_one_moment_is_refused(available_at: object, sentence: str) -> None:
    with pytest.raises(InvalidEvent, match=sentence):
        due(available_at)


def test_max_attempts_is_a_positive_int_of_its_column() -> None:
    assert attempts(1) == 1
    assert attempts(2**31 - 1) == 2**31 - 1
    for wrong in (0, -1, 2**31, True, 1.0, "1"):
        with pytest.raises(InvalidEvent, match="max_attempts"):
            attempts(wrong)


def test_a_refusal_is_a_relay_error_and_a_value_error() -> None:
    assert issubclass(InvalidEvent, RelayError)
    assert issubclass(InvalidEvent, ValueError)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(), max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(anything)
def test_the_quick_look_at_a_payload_agrees_with_the_close_one(payload: Any) -> None:
    """What the quick look accepts has no fault; what it refuses, it refuses for a reason that it can name."""
    try:
        payload_json(payload, MIB)
        verdict = "accepted"
    except InvalidEvent as refused:
        verdict = str(refused)
    if verdict == "accepted":
        validation._look_closely(payload)
    assert "cannot be written as JSON" not in verdict


def test_importing_relay_loads_neither_the_command_line_nor_any_library_of_the_caller() -> None:
    program = (
        "import sys, relay; relay.Outbox(), relay.Inbox('billing'), relay.Event, relay.__version__\n"
        "unwanted = {'typer', 'rich', 'pydantic', 'sqlalchemy', 'django', 'opentelemetry', 'tenacity'}\n"
        "print(*(unwanted & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert loaded.stdout.split() == []
