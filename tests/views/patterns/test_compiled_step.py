"""A training step after compilation: as many launches fewer as fuse, and what each compiled part costs."""

import numpy as np
import pytest

from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.views.patterns.compiled_step import COMPILED_DISPATCH, COMPILED_KERNEL_US, COMPILED_PART_US, CompiledStep
from advisor.views.patterns.graph_capture import Capturable
from advisor.views.replay.replay import Replay
from advisor.views.replay.simulate import period_us
from tests.build import Trace

EACH, SIZE = 50, [[64, 64]]
KEPT = "torch::autograd::AccumulateGrad"


STEP = 2500


def training(groups=(4,), reads_at=()):
    """Three steps of groups of so many pointwise kernels and a product, launched 50 µs apart, and two products backward. reads_at: behind which of the
    groups, or the backward pass, the host reads a value."""
    trace = Trace()

    def launch(t, names):
        for name in names:
            kernel = "gemm" if name == "aten::mm" else "vectorized_elementwise_kernel"
            trace.op(name, t, EACH - 2, SIZE).launch(t + EACH - 10, t + EACH - 4, t + EACH - 1, kernel, dur=4)
            t += EACH
        return t

    def read(t):
        trace.op("aten::item", t, 20).call("cudaStreamSynchronize", t + 3, 10)
        return t + EACH

    for s in range(3):
        t = STEP * s
        trace.step(t, STEP - 1, s + 1)
        for at, group in enumerate(groups):
            t = launch(t, ["aten::mul"] * group + ["aten::mm"])
            if at in reads_at:
                t = read(t)
        for _ in range(2):
            trace.op("autograd::engine::evaluate_function: MmBackward0", t, EACH - 2).op(KEPT, t, 0.5)
            trace.op("aten::mm", t + 1, EACH - 4, SIZE).launch(t + EACH - 10, t + EACH - 4, t + EACH - 1, "gemm", dur=4)
            t += EACH
        if len(groups) in reads_at:
            read(t)
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


def pointwise(kernel, call="cudaLaunchKernel"):
    """Two steps of two kernels of that name."""
    trace = Trace().step(0, 199, 1).step(200, 199, 2)
    for at in (0, 50, 200, 250):
        trace.op("aten::mul", at, EACH - 2, SIZE).launch(at + EACH - 10, at + EACH - 4, at + EACH - 1, kernel, dur=4, api=call)
    return trace


def without_ops(trace):
    trace.rows["cpu_ops"].clear()
    return trace


NATIVE = "void at::native::vectorized_elementwise_kernel"


@pytest.mark.parametrize(
    ("trace", "spared"),
    [
        (pointwise("vectorized_elementwise_kernel"), True),
        (training(), False),
        (pointwise("triton_poi_fused_mul_0"), False),
        (pointwise(NATIVE, "cudaGraphLaunch"), False),
        (without_ops(pointwise(NATIVE)), False),
    ],
    ids=["inference", "training", "compiled", "replayed", "unknown"],
)
def test_compiling_may_spare_the_host_more_than_launches_in_eager_inference(trace, spared):
    compiled, before = trace.get(CompiledStep), trace.get(Replay).recorded
    assert bool(compiled.spared) == spared
    if spared:
        after = compiled.spared.apply(before)
        assert after.dispatch_us == pytest.approx(COMPILED_DISPATCH * before.dispatch_us)
        assert (before.host_us - after.host_us) == pytest.approx(before.dispatch_us - after.dispatch_us), "what is the program's own stays"


def test_a_step_that_waits_is_not_captured():
    assert not trace_why(training())
    assert "waits for the GPU once per step" in trace_why(training([4, 0], [0]))
    assert not trace_why(training(reads_at=[1])), "behind the last kernel"
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
