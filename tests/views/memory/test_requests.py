"""The simulated allocator in C reserves what the one in Python does, whatever is asked of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.recordings.extension import EXTENSION
from advisor.recordings.snapshot import Segment
from advisor.views.memory import requests
from advisor.views.memory.allocator import Settings
from advisor.views.memory.requests import Found, Requests, reserved, reserved_in_python
from tests.paths import examples

MIB = 1 << 20
installed = pytest.mark.skipif(EXTENSION is None, reason="trace_advisor_native is not installed")
SIZES = [1, 512, 700, MIB // 2, MIB, MIB + 1, 2 * MIB, 9 * MIB, 10 * MIB, 15 * MIB, 19 * MIB, 33 * MIB, 70 * MIB]
SETTINGS = st.builds(Settings, st.booleans(), st.sampled_from([-1, -1, 2 * MIB, 20 * MIB, 40 * MIB]), st.sampled_from([(), (4,) * 16]))
POOLS = ((0, 0), (0, 1), (1, 0))


@st.composite
def asked(draw, expandable):
    """Requests of few sizes in a few pools, some of them in segments from the start."""
    n, events = draw(st.integers(0, 40)), draw(st.integers(1, 50))

    def column(values):
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), "i8").reshape(n)

    born, found, at, row = column(st.integers(0, events + 1)), [], draw(st.sampled_from([0, 1 << 47])), 0
    older = draw(st.integers(0, n))
    born[:older] = -1
    for _ in range(0 if expandable else draw(st.integers(0, 3))):
        start, one = at, ([], [], [])
        while row < older and draw(st.booleans()):
            at += draw(st.sampled_from([0, 512, 3 * MIB]))
            size = draw(st.sampled_from([512, MIB, 15 * MIB]))
            for values, value in zip(one, (at, size, row), strict=True):
                values.append(value)
            at, row = at + size, row + 1
        at += draw(st.sampled_from([0, 512, 20 * MIB]))
        segment = Segment(start, at - start, draw(st.integers(0, 1)), draw(st.booleans()), draw(st.sampled_from(POOLS)), False, ())
        found.append(Found(segment, *one))
        at += draw(st.sampled_from([0, MIB]))
    releases = draw(st.lists(st.integers(0, events - 1), max_size=4, unique=True).map(sorted))
    return Requests(
        events, column(st.sampled_from(SIZES)), column(st.integers(0, 1)), column(st.integers(0, 2)), POOLS, born, column(st.integers(-1, events + 1)),
        np.array(releases, "i8"), tuple(found), np.arange(older if expandable else 0),
    )  # fmt: skip


@installed
@settings(max_examples=examples(600), deadline=None)
@given(SETTINGS.flatmap(lambda chosen: st.tuples(st.just(chosen), asked(chosen.expandable))))
def test_what_is_reserved_is_the_same_in_c(case):
    chosen, wanted = case
    curve = EXTENSION.reserved(wanted.events, *requests._columns(wanted, chosen), chosen.max_split, chosen.expandable)
    assert np.frombuffer(curve, "i8").tolist() == reserved_in_python(wanted, chosen).tolist()


def of_one(**changes):
    """A request of a MiB from the first event on."""
    one = np.zeros(1, "i8")
    return Requests(2, one + MIB, one, one, POOLS, one, one - 1, one[:0], (), one[:0])._replace(**changes)


@pytest.mark.parametrize("segment", [Segment(1 << 60, MIB, 0, True, (0, 0), False, ()), Segment(-MIB, MIB, 0, True, (0, 0), False, ())])
def test_segments_that_may_meet_its_own_are_left_to_python(segment):
    wanted = of_one(found=(Found(segment, [], [], []),))
    assert reserved(wanted, Settings()).tolist() == [3 * MIB, 3 * MIB]


INT = "i8"
AT = {"releases": 1, "end_at": 2, "end_row": 3, "born_at": 4, "born_row": 5, "size": 6, "pool": 7, "first": 8, "address": 10, "length": 11, "of": 12, "index": 13, "taken": 14, "taken_size": 15, "taken_row": 16}  # fmt: skip


@installed
@pytest.mark.parametrize(
    "wrong",
    [
        {"born_row": [1]}, {"born_row": [-1]}, {"born_row": []}, {"end_row": [1], "end_at": [0]}, {"size": [0]}, {"size": [1 << 60]}, {"pool": [1]}, {"first": [1]},
        {"address": [0], "length": [MIB], "of": [1], "index": [0, 0]}, {"address": [0], "length": [MIB], "of": [0], "index": [0, 1]},
        {"address": [0], "length": [MIB], "of": [0], "index": [0, 1], "taken": [MIB], "taken_size": [1], "taken_row": [0]},
        {"address": [0], "length": [MIB], "of": [0], "index": [0, 1], "taken": [0], "taken_size": [1], "taken_row": [1]},
        {"address": [MIB, 0], "length": [MIB, MIB], "of": [0, 0], "index": [0, 0, 0]}, {"address": [0], "length": [-1], "of": [0], "index": [0, 0]},
    ],
)  # fmt: skip
def test_columns_that_are_no_requests_are_refused(wrong):
    columns = [2, *requests._columns(of_one(), Settings()), -1, False]
    assert np.frombuffer(EXTENSION.reserved(*columns), INT).tolist() == [2 * MIB, 2 * MIB]
    for name, values in wrong.items():
        columns[AT[name]] = np.array(values, INT).tobytes()
    with pytest.raises(ValueError, match=r"not requests|different lengths"):
        EXTENSION.reserved(*columns)
