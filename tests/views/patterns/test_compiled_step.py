"""A training step after compilation: as many launches fewer as fuse, and what each compiled part costs."""

import numpy as np
import pytest

from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.views.patterns.compiled_step import COMPILED_KERNEL_US, COMPILED_PART_US, FUSED_BY_A_PART, CompiledStep
from advisor.views.patterns.graph_capture import Capturable
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.replay import Replay
from advisor.views.replay.simulate import period_us
from tests.build import Trace

EACH, SIZE = 50, [[64, 64]]
KEPT = "torch::autograd::AccumulateGrad"


STEP = 2500
READ, BRANCH, BRANCH_ON_READ, SEND = ("aten::item",), ("aten::rand", "aten::is_nonzero"), ("aten::is_nonzero", "aten::item"), ("aten::copy_",)


def training(groups=(4,), between=(), reads_at_end=False, behind=0):
    """Three steps of groups of so many pointwise kernels and a product, launched 50 µs apart, and two products backward. between: what the host asks
    for between two groups; behind: pointwise kernels behind the backward pass and a read."""
    trace = Trace()

    def launch(t, names):
        for name in names:
            kernel = "gemm" if name == "aten::mm" else "vectorized_elementwise_kernel"
            trace.op(name, t, EACH - 2, SIZE).launch(t + EACH - 10, t + EACH - 4, t + EACH - 1, kernel, dur=4)
            t += EACH
        return t

    def ask(t, names):  # `if torch.rand([]) < 0.1:` is no wait: the device knows nothing of it
        for k, name in enumerate(names):
            trace.op(name, t + k, 20 - 2 * k)
        if "aten::item" in names:
            trace.call("cudaStreamSynchronize", t + 3, 10)
        if "aten::copy_" in names:
            trace.copy(t + 3, 5, t + 5, t + 9).call("cudaStreamSynchronize", t + 9, 2)
        return t + EACH * bool(names)

    for s in range(3):
        t = STEP * s
        trace.step(t, STEP - 1, s + 1)
        for group, asked in zip(groups, (*between, ()), strict=False):
            t = ask(launch(t, ["aten::mul"] * group + ["aten::mm"]), asked)
        for _ in range(2):
            trace.op("autograd::engine::evaluate_function: MmBackward0", t, EACH - 2).op(KEPT, t, 0.5)
            trace.op("aten::mm", t + 1, EACH - 4, SIZE).launch(t + EACH - 10, t + EACH - 4, t + EACH - 1, "gemm", dur=4)
            t += EACH
        if reads_at_end or behind:
            launch(ask(t, READ), ["aten::mul"] * behind)
    return trace


def test_what_fuses_is_launched_once_and_the_compiled_part_costs():
    trace = training()
    before, after = (trace.get(Replay).recorded, trace.get(CompiledStep).edit.apply(trace.get(Replay).recorded))
    assert after.skip_op.sum() == 3 * before.steps, "of four pointwise kernels one is left"
    gone = before.dispatch_us[before.op_call[after.skip_op]].sum() + before.call_us[before.op_call[after.skip_op]].sum()
    assert gone > 0
    host = [float(s.host_us.sum() + s.call_us.sum()) for s in (before, after)]
    assert host[1] - host[0] == pytest.approx(before.steps * (COMPILED_PART_US + 4 * COMPILED_KERNEL_US) - gone), "one kernel for the four, and three products"
    assert period_us(after) > period_us(before), "a small step is slower compiled"


ENOUGH = FUSED_BY_A_PART + 1  # kernels, of which one is left


@pytest.mark.parametrize(
    ("trace", "parts"),
    [
        (training(), 1),
        (training([ENOUGH, ENOUGH], [READ]), 2),
        (training([ENOUGH, ENOUGH - 1], [READ]), 1),  # nobody compiles what fuses so little
        (training([4, 4], [READ]), 1),  # but something is compiled
        (training(reads_at_end=True), 1),
        (training([ENOUGH, ENOUGH], [BRANCH]), 2),
        (training([ENOUGH] * 3, [BRANCH, BRANCH_ON_READ]), 3),  # the branch on a value of the device waits for it, and is that wait
        (training([ENOUGH, ENOUGH], [SEND]), 1),
        (training([ENOUGH, ENOUGH], [READ], behind=ENOUGH), 2),  # what reads and fuses behind the backward pass is no part of it
    ],
)
def test_a_value_that_the_forward_pass_goes_on_with_ends_a_compiled_part(trace, parts):
    assert trace.get(CompiledStep).parts == parts


def test_a_branch_inside_a_chain_leaves_each_side_what_fuses_there():
    trace = training([ENOUGH + FUSED_BY_A_PART])
    for s in range(3):
        trace.op("aten::is_nonzero", STEP * s + ENOUGH * EACH - 1, 0.5)
    assert trace.get(CompiledStep).parts == 2


def test_a_step_that_launches_nothing_makes_no_fewer_parts_of_the_others():
    trace = Trace()
    for s in range(4):
        trace.step(STEP * s, STEP - 1, s + 1)
        if s != 1:
            trace.op("autograd::engine::evaluate_function: MmBackward0", STEP * s, EACH).op(KEPT, STEP * s, 0.5)
            trace.op("aten::mm", STEP * s + 1, EACH - 2, SIZE).launch(STEP * s + 5, STEP * s + 10, STEP * s + 900, "gemm")
    work = trace.get(GpuWork)
    assert len(np.unique(work.step)) < work.schedule.steps
    assert trace.get(CompiledStep).parts == 1


def test_a_step_without_a_forward_pass_has_one_part():
    assert training([]).get(CompiledStep).parts == 1


def test_a_step_that_waits_is_not_captured():
    assert not trace_why(training())
    assert "waits for the GPU once per step" in trace_why(training([4, 0], [READ]))
    assert not trace_why(training(reads_at_end=True)), "behind the last kernel"
    assert len(training().get(Capturable).first) == len(np.unique(training().get(Capturable).first)) == 7


def trace_why(trace):
    return trace.get(Capturable).why_not


EDGES, NODES = [100_000, 64], [2_000, 64]


@pytest.mark.parametrize(("between", "passed"), [(EDGES, 3), (NODES, 0)])
def test_messages_of_a_graph_network_are_never_written(between, passed):
    """A gather, a product and a scatter on all edges become one kernel: gather and scatter take what their bytes need (25.6 MB of
    values and 51.2 MB of indices, at 4.27 TB/s), and what is between goes."""
    trace = Trace()
    for s in range(3):
        at = 2000 * s
        trace.step(at, 1999, s + 1)
        dims, types = [NODES, EDGES, EDGES], ["float", "long int", "float"]
        trace.op("aten::gather", at, 18, dims, types).launch(at + 5, at + 10, at + 310, "vectorized_gather_kernel")
        trace.op("aten::mul", at + 20, 18, [between, between], ["float"] * 2).launch(at + 25, at + 310, at + 410, "vectorized_elementwise_kernel")
        trace.op("aten::scatter_add_", at + 40, 18, dims, types).launch(at + 45, at + 410, at + 610, "_scatter_gather_elementwise_kernel")
    compiled, schedule = trace.get(CompiledStep), trace.get(Replay).recorded
    assert len(compiled.passed) == passed * schedule.steps
    after = compiled.beside.apply(schedule).dur_us[:3]
    assert after[[0, 2]] == pytest.approx(76.8 / 4.27, rel=0.02)
    assert after[1] == pytest.approx(SHORTEST_US if passed else 100)
    for row in trace.rows["cpu_ops"]:
        row["dims"] = row["types"] = ""
    untold = Trace()
    untold.rows = trace.rows
    assert untold.get(CompiledStep).beside.apply(schedule).dur_us[:3] == pytest.approx(schedule.dur_us[:3]), "of bytes that are not known nothing is gained"
