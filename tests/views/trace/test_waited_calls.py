"""What a call that waits is of, from a trace of a few lines."""

import numpy as np

from advisor.views.trace.waited_calls import WaitedCalls
from tests.build import Trace


def synchronisations(trace):
    view = trace.get(WaitedCalls)
    calls = view.timeline.api_calls
    return view, [int(row) for row in np.flatnonzero(calls["name"] == "cudaStreamSynchronize")]


def read(trace, at, *ops):
    """A value that ops, the outer first, bring to the host: 20 µs."""
    for depth, op in enumerate(ops):
        trace.op(op, at + depth, 20 - 2 * depth)
    return trace.copy(at + 8, 2, at + 11, at + 12, "Pinned", 4, kind="DtoH").call("cudaStreamSynchronize", at + 11, 1)


def test_a_read_inside_an_op_is_of_that_op():
    view, (call,) = synchronisations(read(Trace(), 0, "aten::repeat_interleave", "aten::item", "aten::_local_scalar_dense"))
    seen = view.waited(call)
    assert seen.ops == ("aten::repeat_interleave", "aten::item", "aten::_local_scalar_dense") and (seen.copy, seen.memory, seen.bytes) == (
        "to-host",
        "pinned",
        4,
    )
    assert view.row_of(call).call == "repeat_interleave(x, tensor)"


def test_the_ops_beside_it_are_those_of_its_thread_and_depth():
    trace = (
        Trace().op("Torch-Compiled Region: 0/0", 0, 100).op("aten::eq", 1, 10).op("aten::fill_", 3, 2).op("aten::_is_all_true", 12, 10).op("aten::all", 14, 2)
    )
    read(trace, 30, "aten::is_nonzero", "aten::item").op("aten::add", 60, 5).op("aten::mul", 31, 1, tid=2).op("aten::sub", 120, 5)
    view, (call,) = synchronisations(trace)
    seen = view.waited(call)
    assert (seen.before, seen.then) == (("aten::eq", "aten::_is_all_true"), ("aten::add",)) and seen.ops[0] == "aten::is_nonzero"
    assert "validate_args=False" in view.row_of(call).instead


def test_frames_reach_to_the_users_line():
    trace = Trace().python("train.py(9): main", 0, 200).python("train.py(12): step", 1, 150)
    trace.python("torch/distributions/distribution.py(46): __init__", 2, 100).python("<built-in method item of Tensor object at 0x7f>", 9, 60)
    view, (call,) = synchronisations(read(trace, 10, "aten::item"))
    seen = view.waited(call)
    assert seen.frames[-1] == "train.py(12): step" and len(seen.frames) == 3 and (seen.direct, seen.library) == (False, True)


def test_without_functions_of_c_among_the_frames_nobody_knows_whether_python_made_the_call():
    view, (call,) = synchronisations(read(Trace().python("train.py(12): step", 0, 150), 10, "aten::item"))
    assert view.waited(call).direct is None and view.row_of(call).call == ".item(), float(loss)"


def test_of_many_calls_of_one_kind_some_are_looked_at():
    trace = Trace()
    for n in range(200):
        read(trace, 100 * n, "aten::bincount" if n % 2 else "aten::one_hot", "aten::item")
    view, calls = synchronisations(trace)
    found = view.rows_of(np.array(calls), ["bincount" if n % 2 else "one_hot" for n in range(200)])
    assert [row.ops[0] for row in found] == ["aten::bincount" if n % 2 else "aten::one_hot" for n in range(200)]


def test_a_read_in_the_range_of_an_optimizers_step_names_the_optimizer():
    trace = Trace().note("Optimizer.step#LBFGS.step", 0, 60).note("Optimizer.step#SGD.step", 0, 200, tid=2)
    view, calls = synchronisations(read(read(trace, 10, "aten::item"), 100, "aten::item"))
    assert [view.row_of(call).call for call in calls] == ["LBFGS.step", ".item(), float(loss)"]
