"""Columns of many messages against the same messages one by one."""

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.recordings.extension import EXTENSION
from advisor.sources.jax import wire
from advisor.sources.jax.walk import Walk
from advisor.sources.protobuf import fields
from advisor.sources.stream import Stream
from tests.paths import examples
from tests.sources.jax.test_jax import field

installed = pytest.mark.skipif(EXTENSION is None, reason="trace_advisor_native is not installed")

MESSAGES = st.lists(st.lists(st.tuples(st.integers(1, 20), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=300))), max_size=6), min_size=1, max_size=20)


def signed(number):
    return number - (1 << 64) if number >> 63 else number


@settings(deadline=None)
@given(MESSAGES)
def test_fields_in_turn_are_the_fields_of_each(messages):
    bodies = [b"".join(field(number, value) for number, value in message) for message in messages]
    data = b"".join(bodies) + wire.PADDING
    stop = np.cumsum([len(body) for body in bodies])
    start = stop - [len(body) for body in bodies]
    found = [[] for _ in messages]
    for part in wire.in_turn(data, start[stop > start], stop[stop > start]):
        owners = np.flatnonzero(stop > start)[part.messages]
        for owner, number, kind, value, begin, end in zip(owners.tolist(), *(column.tolist() for column in part[1:]), strict=True):
            found[owner].append((number, value if kind == 0 else data[begin:end]))
    expected = [[(n, signed(v) if isinstance(v, int) else bytes(v)) for n, v in fields(memoryview(body))] for body in bodies]
    assert found == expected


@pytest.mark.parametrize("body", [b"\x0a\x05abc", b"\x00\x01", b"\x0b", b"\x08" + b"\xff" * 11, b"\x0a" + b"\xff" * 9 + b"\x01"])
def test_what_is_no_message_is_refused(body):
    with pytest.raises(ValueError, match="end"):
        list(wire.in_turn(body + wire.PADDING, np.array([0]), np.array([len(body)])))


def either(function, *arguments):
    """The columns that a function gives, or what it says is wrong."""
    try:
        return [column.tolist() for column in function(*arguments)]
    except ValueError as error:
        return str(error)


BYTES = st.lists(st.one_of(st.sampled_from([0x22, 0x08, 0x80, 0xFF, 0, 1, 2, 3]), st.integers(0, 255)), max_size=40).map(bytes)


@installed
@settings(max_examples=examples(1000), deadline=None)
@given(BYTES, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4))
def test_first_fields_are_the_same_in_c(body, ranges):
    ranges = np.array([sorted(min(at, len(body)) for at in one) for one in ranges], "i8").T.copy()
    arguments = body + wire.PADDING, *ranges
    assert either(wire._first_fields, *arguments) == either(wire.first_fields_in_python, *arguments)


@installed
@settings(max_examples=examples(1000), deadline=None)
@given(st.one_of(BYTES, st.lists(BYTES.map(lambda body: field(4, body))).map(b"".join)), st.integers(0, 40), st.integers(0, 400))
def test_records_are_the_same_in_c(body, at, end):
    arguments = body + wire.PADDING, min(at, len(body)), min(end, len(body)), 0x22
    assert either(wire.records, *arguments) == either(wire.records_in_python, *arguments)


@installed
@pytest.mark.parametrize(("start", "stop"), [([17], [17]), ([-1], [1]), ([0], [17]), ([0, 1], [1])])
def test_ranges_outside_of_the_data_are_not_read_in_c(start, stop):
    start, stop = (np.array(one, "i8").tobytes() for one in (start, stop))
    if len(start) == len(stop):
        assert EXTENSION.wire_fields(bytes(16), start, stop) is None
    else:
        with pytest.raises(ValueError, match="different lengths"):
            EXTENSION.wire_fields(bytes(16), start, stop)
    with pytest.raises(ValueError, match="outside"):
        EXTENSION.wire_records(bytes(16), 0, 17, 0)


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_a_walk_gives_the_records_of_a_field_whatever_its_blocks_are(block, monkeypatch):
    monkeypatch.setattr("advisor.sources.jax.walk._BLOCK", block)
    events = [bytes([i]) * (i % 200) for i in range(250)]
    body = b"".join(field(4, event) for event in events)
    walk, found = Walk(Stream(BytesIO(field(2, "line") + body))), []
    end = len(field(2, "line") + body)
    walk.pass_to(walk.field(end)[2])
    while walk.offset < end:
        data, starts, stops = walk.records(end, 4 << 3 | 2)
        found += [bytes(data[a:b]) for a, b in zip(starts, stops, strict=True)]
    assert found == events
