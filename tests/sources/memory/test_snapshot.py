"""Numbers of a snapshot: those that its columns cannot hold, and a clock that is set back."""

import pytest

from advisor.errors import TraceError
from advisor.sources.memory.snapshot import from_value
from tests.memory_build import Memory, frame


def held():
    """A segment with a block, an event of each kind and a range."""
    m = Memory()
    m.alloc(1, [frame("f", "train.py", 3)])
    m.free(m.alloc(1))
    m.mark("Optimizer.step#Adam.step")
    value = m.value()
    return value, value["segments"][0], value["device_traces"][0], value["external_annotations"][0]


PLACES = {
    "segment's address": lambda value, segment, events, note: (segment, "address"),
    "segment's stream": lambda value, segment, events, note: (segment, "stream"),
    "segment's device": lambda value, segment, events, note: (segment, "device"),
    "block's address": lambda value, segment, events, note: (segment["blocks"][0], "address"),
    "event's address": lambda value, segment, events, note: (events[1], "addr"),
    "event's stream": lambda value, segment, events, note: (events[1], "stream"),
    "event's time": lambda value, segment, events, note: (events[1], "time_us"),
    "line": lambda value, segment, events, note: (events[1]["frames"][0], "line"),
    "range's time": lambda value, segment, events, note: (note, "time_us"),
}


@pytest.mark.parametrize("number", [1 << 62, -(1 << 62), (1 << 63) - 1, 10**30])
@pytest.mark.parametrize("place", PLACES)
def test_what_64_bits_do_not_hold_is_damage(place, number):
    value, *parts = held()
    holder, key = PLACES[place](value, *parts)
    holder[key] = number
    with pytest.raises(TraceError, match="damaged"):
        from_value(value, "s.pickle", 1)
    holder[key] = (1 << 62) - 1
    assert from_value(value, "s.pickle", 1).devices


def test_a_frame_of_cpp_without_a_line_has_none():
    # torch writes the -1 of a line that is not known without its sign.
    value, _, events, _ = held()
    events[1]["frames"][0]["line"] = (1 << 64) - 1
    assert 0 in {frame.line for stack in from_value(value, "s.pickle", 1).stacks for frame in stack}


def test_a_clock_that_is_set_back_stands_until_it_is_where_it_was():
    value, _, events, _ = held()
    for event, time_us in zip(events, (10, 40, 20, 30, 50, 60, 70), strict=True):
        event["time_us"] = time_us
    (device,) = from_value(value, "s.pickle", 1).devices
    assert device.events.time_us.tolist() == [10, 40, 40, 40, 50, 60, 70]
