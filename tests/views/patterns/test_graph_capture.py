"""Which steps one graph could replay."""

from advisor.views.patterns.graph_capture import Capturable
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.replay import MAX_CALLS
from tests.build import Trace


def steps_of(kernels, count, odd=-1):
    """Steps of as many small kernels each; one of them may end with another kernel."""
    trace = Trace()
    for s in range(count):
        start = 20.0 * (kernels + 1) * s
        trace.step(start, 20 * (kernels + 1) - 1, s + 1)
        for k in range(kernels):
            at = start + 20 * k
            trace.launch(at, at + 10, at + 14, "another" if s == odd and k == kernels - 1 else "kernel")
    return trace


def test_a_window_too_long_to_be_replayed_is_compared_whole():
    kernels = MAX_CALLS // 3
    trace = steps_of(kernels, 5)
    same = trace.get(Capturable)
    assert trace.get(GpuWork).schedule.steps < 4 and not same.why_not and len(same.first) == kernels
    assert "different kernels" in steps_of(kernels, 5, odd=1).get(Capturable).why_not


def test_a_window_of_one_step_is_compared_with_the_step_that_closes_it():
    assert not steps_of(10, 2).get(Capturable).why_not
    assert "different kernels" in steps_of(10, 2, odd=1).get(Capturable).why_not
    cut = steps_of(10, 2)
    cut.rows["gpu_ops"] = cut.rows["gpu_ops"][:-1]
    assert "no two steps" in cut.get(Capturable).why_not, "it was not recorded as far"


def test_steps_of_other_sizes_are_told_from_steps_of_other_ops():
    def steps(name, size, first="aten::mul"):
        trace = Trace()
        for s in range(4):
            trace.step(100 * s, 99, s + 1).op(first, 100 * s, 20, [[size(s), 8]]).launch(100 * s + 5, 100 * s + 9, 100 * s + 15)
            trace.op(name(s), 100 * s + 30, 20, [[8, 8]]).launch(100 * s + 35, 100 * s + 39, 100 * s + 45)
        return trace.get(Capturable)

    assert steps(lambda s: "aten::add", lambda s: 8 + s).resized
    assert not steps(lambda s: "aten::add", lambda s: 8).resized
    assert not steps(lambda s: ("aten::add", "aten::sub")[s % 2], lambda s: 8 + s).resized
    assert not steps(lambda s: "aten::add", lambda s: 8 + s, first="aten::nonzero").resized, "sizes that are asked for are the program's own finding"


def test_results_that_are_read_one_by_one_make_no_loop_of_a_network():
    """Ten reads behind one kernel each: a loop beside twenty kernels of something else, none beside two hundred."""

    def step(network):
        trace = Trace()
        for s in range(3):
            start = 20.0 * (network + 21) * s
            trace.step(start, 20.0 * (network + 21) - 1, s + 1)
            for k in range(network + 10):
                at = start + 20 * k + 20 * max(k - network, 0)
                trace.launch(at, at + 10, at + 14)
                if k >= network:
                    trace.call("cudaStreamSynchronize", at + 16, 8)
        return trace.get(Capturable)

    assert step(20).in_passes and not step(200).in_passes
