"""What recording is taken to cost: by who recorded, and by what the trace itself shows."""

import pytest

from advisor.knowledge import recording_cost
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import Source

KINETO = Source("t", "kineto", 0, 0)


def test_a_python_call_costs_what_one_that_does_nothing_takes_in_the_trace():
    slow, fast = recording_cost.added(KINETO, 1.65), recording_cost.added(KINETO, 0.25)
    assert slow and fast
    # Less the 0.05 µs that such a call takes when nobody records.
    assert slow.python_call_us == pytest.approx(8 * fast.python_call_us)
    assert recording_cost.added(KINETO, 0.01) == replace(slow, python_call_us=0.0)


def test_a_trace_without_such_calls_is_taken_for_a_usual_one():
    usual = recording_cost.added(KINETO, None)
    assert usual and 0.2 < usual.python_call_us < 2


def test_nsys_records_no_ops_so_what_the_host_needs_cannot_be_told_from_them():
    nsys = replace(KINETO, format="nsys")
    added = recording_cost.added(nsys, None)
    assert added and added.op_us == 0 < added.api_call_us
    assert recording_cost.needed(nsys) is None


def test_ranges_around_ops_cost_what_one_around_a_view_takes():
    nsys = replace(KINETO, format="nsys")
    added = recording_cost.added(nsys, None, 10.5)
    # Less the 0.5 µs of the view itself.
    assert added and added.op_us == pytest.approx(10.0) and recording_cost.ranges_tell(nsys)
    assert not recording_cost.ranges_tell(KINETO), "what its ops cost was measured"


def test_a_producer_whose_cost_nobody_measured_is_taken_as_it_is():
    unheard = replace(KINETO, format="unheard of")
    assert recording_cost.added(unheard, 1.0) is None and recording_cost.needed(unheard) is None


@pytest.mark.parametrize(
    ("name", "nothing"),
    [
        ("<built-in function isinstance>", True),
        ("<built-in method append of list object at 0x0>", True),
        ("<built-in function len>", True),
        ("<built-in method linear of type object at 0x0>", False),
        ("<built-in function length_of>", False),
        ("torch/nn/modules/module.py(1768): __getattr__", False),
    ],
)
def test_calls_that_do_nothing_are_known_by_name(name, nothing):
    assert bool(recording_cost.DOES_NOTHING.match(name)) is nothing
