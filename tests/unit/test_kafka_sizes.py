"""Arithmetic of record batches; tests/conformance/test_kafka.py holds it against a broker."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publishers.kafka_topics import batch_bytes

Headers = list[tuple[str, str]]


def varint(number: int) -> bytes:
    """Protocol buffers' zigzag varint, by the book."""
    rest = (number << 1) ^ (number >> 63)
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


def sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def written_batch(key: bytes, value: bytes, headers: Headers) -> bytes:
    """A batch of one record as Kafka's protocol guide writes it."""
    body = b"\0" + varint(0) + varint(0) + sized(key) + sized(value) + varint(len(headers))
    body += b"".join(sized(name.encode()) + sized(text.encode()) for name, text in headers)
    record = sized(body)
    after_length = struct.pack(">ibIhiqqqhii", 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1) + record
    return struct.pack(">qi", 0, len(after_length)) + after_length


texts = st.text(max_size=200)


@given(st.binary(max_size=300), st.binary(max_size=70_000), st.lists(st.tuples(texts, texts), max_size=70))
def test_the_size_of_a_batch_is_that_of_its_bytes(key: bytes, value: bytes, headers: Headers) -> None:
    assert batch_bytes(key, value, headers) == len(written_batch(key, value, headers))


@pytest.mark.parametrize("length", [0, 63, 64, 8191, 8192, 1_048_575, 1_048_576])
def test_the_size_is_right_where_a_length_takes_one_more_byte(length: int) -> None:
    for value in (b"x" * max(0, length - 1), b"x" * length, b"x" * (length + 1)):
        assert batch_bytes(b"k", value, []) == len(written_batch(b"k", value, []))
