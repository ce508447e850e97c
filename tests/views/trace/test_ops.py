"""The op tree, where it is not a tree: ops that outlive their parents, other threads, kernels without ops."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.views.trace.ops import Ops
from tests.build import Trace
from tests.paths import examples


def chains(trace):
    ops = trace.get(Ops)
    return [ops.chain(int(o)) for o in ops.of_gpu]


def test_nothing_is_lost_of_an_op_that_outlives_its_parent():
    # TraceLens drops events that end 1 µs or more after the op around them. Both ops and both kernels stay.
    trace = Trace().op("aten::linear", 0, 20).op("aten::addmm", 5, 17).launch(7, 30, 40).launch(21, 40, 50)
    trace.op("aten::relu", 25, 10).launch(27, 50, 60)
    assert chains(trace) == [["aten::addmm", "aten::linear"], [], ["aten::relu"]]
    ops = trace.get(Ops)
    assert ops.parent.tolist() == [-1, 0, -1], "and it is no parent of what comes after its own parent"


def test_the_launch_in_the_part_that_bleeds_out_belongs_to_no_op_that_has_ended():
    trace = Trace().op("aten::linear", 0, 20).op("aten::addmm", 5, 30).op("aten::relu", 24, 8).launch(26, 40, 50)
    assert chains(trace) == [["aten::relu"]]


def test_ops_of_another_thread_are_around_nothing_here():
    trace = Trace().op("backward", 0, 100, tid=2).op("aten::mm", 10, 20).launch(15, 30, 40).launch(50, 60, 70, tid=2)
    assert chains(trace) == [["aten::mm"], ["backward"]]


def test_the_same_thread_number_in_another_process_is_another_thread():
    trace = Trace().op("aten::mm", 0, 100)
    trace.launch(15, 30, 40)
    trace.rows["api_calls"][0]["pid"] = 99
    assert chains(trace) == [[]]


def test_a_driver_call_within_a_runtime_call_belongs_to_the_op_around_both():
    trace = Trace().op("aten::mm", 0, 50).call("cudaLaunchKernelExC", 10, 8, 5).call("cuLaunchKernelEx", 12, 4, 5).gpu(20, 30, correlation=5)
    assert chains(trace) == [["aten::mm"]]


def test_of_equal_ops_the_one_recorded_first_is_outside():
    trace = Trace().op("outer", 0, 50).op("inner", 0, 50).launch(10, 20, 30)
    assert chains(trace) == [["inner", "outer"]]


def test_a_kernel_launched_just_as_an_op_ends_is_not_its():
    trace = Trace().op("aten::mm", 0, 10).launch(10, 20, 30)
    assert chains(trace) == [[]]


def test_roots_and_the_outermost_of_a_kind():
    trace = Trace().op("aten::to", 0, 50).op("aten::_to_copy", 1, 48).op("aten::copy_", 2, 46).op("aten::to", 60, 5)
    ops = trace.get(Ops)
    assert ops.outermost.tolist() == [0, 0, 0, 3]
    copies = [n in ("aten::_to_copy", "aten::copy_") for n in (ops.name(i) for i in range(4))]
    assert ops.outermost_where(np.array(copies)).tolist() == [-1, 1, 1, -1]


def test_without_ops_every_kernel_stands_alone():
    ops = Trace().launch(1, 5, 10).gpu(20, 30).get(Ops)
    assert ops.of_gpu.tolist() == [-1, -1] and ops.name(-1) == "" and ops.chain(-1) == []


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25), st.integers(1, 2)), max_size=12)


@settings(max_examples=examples(60), deadline=None)
@given(spans, st.integers(0, 80), st.integers(1, 2))
def test_an_op_around_a_launch_was_running_then_on_its_thread(rows, at, tid):
    trace = Trace()
    for k, (start, dur, thread) in enumerate(rows):
        trace.op(f"op{k}", start, dur, tid=thread)
    trace.launch(at, 100, 110, tid=tid)
    table, ops = trace.timeline().cpu_ops, trace.get(Ops)
    found = int(ops.of_gpu[0])
    # An op that began inside another one is cut at that one's end, so a running op may have none around it; never a wrong one.
    if found >= 0:
        assert table["tid"][found] == tid and table["start_us"][found] <= at < table["start_us"][found] + table["dur_us"][found]
    else:
        mine = [(s, s + d) for s, d, thread in rows if thread == tid and d]
        roots = [(s, e) for s, e in mine if not any(a <= s < b for a, b in mine if (a, b) != (s, e))]
        assert not [1 for s, e in roots if s <= at < e], "an op that began inside no other one was running"
    for op, parent in enumerate(ops.parent):
        if parent >= 0:
            start, end = table["start_us"], table["start_us"] + table["dur_us"]
            assert table["tid"][op] == table["tid"][parent] and start[parent] <= start[op] < end[parent]
