"""low-arithmetic-intensity in training: found where micro-batches launch the same ops for a GPU that waits, quiet where they are no micro-batches."""

import pytest

from advisor.views.replay.micro_batches import MicroBatches
from tests.build import Trace
from tests.rules.test_rules import clear, found

EVERY = 20  # µs of the host for each op

OPS = 8  # forward, and as many backward


def train(parts=4, *, kernel=4, adds=True, stack=OPS, communicates=False, updates=False, reads=False, steps=5):
    """Steps of `parts` micro-batches: forward, backward, and from the second on one addition to a gradient; then an optimizer's five ops."""
    trace, at, gpu = Trace(), 0, 0

    def op(name, around="", us=kernel):
        nonlocal at, gpu
        if around:
            trace.op(f"autograd::engine::evaluate_function: {around}", at, EVERY - 1)
        gpu = max(gpu, at + 15)
        trace.op(name, at + 1, EVERY - 3, [[64, 64], [64, 64]]).launch(at + 10, gpu, gpu + us, f"{name}_kernel", dur=4)
        at, gpu = at + EVERY, gpu + us

    for number in range(steps):
        begun = at
        for part in range(parts):
            for k in range(OPS if not part else stack):
                op("c10d::allgather_", us=kernel) if communicates and not k else op("aten::mm")
            if reads:
                trace.op("aten::item", at, EVERY - 1).call("cudaStreamSynchronize", at + 5, EVERY - 10)
                at += EVERY
            for _ in range(OPS if not part else stack):
                op("aten::mm", "MmBackward0")
            if part and adds:
                op("aten::add_", "torch::autograd::AccumulateGrad")
            if updates:
                trace.note("Optimizer.step#SGD.step", at, EVERY - 1)
                op("aten::_foreach_add_")
        trace.note("Optimizer.step#AdamW.step", at, 5 * EVERY - 1)
        for _ in range(5):
            op("aten::_fused_adamw_")
        trace.step(begun, at - begun, number + 1)
    return trace


def test_micro_batches_that_wait_for_the_host_are_found():
    finding = found("low-arithmetic-intensity", train())
    # Of 4 x 16 ops, 3 additions and 5 of the optimizer, of 20 µs each, 16 and 5 are left: the host is the bound still.
    assert finding.saving.expected_us == pytest.approx(20 * (4 * 16 + 3 - 16), rel=0.05)
    assert finding.saving.low_us == 0 and finding.status == "possible" and "memory" in finding.possible_why
    assert "4 micro-batches that launch the same ops, 67 GPU ops in all" in finding.summary
    assert finding.severity == "low" and finding.saving.per == "step"


def test_kernels_of_all_micro_batches_take_as_long_in_one():
    """17 µs a kernel: 16 of them, four times over, then 5 of the optimizer, on a GPU that is busy but for the 3 µs between two kernels."""
    finding = found("low-arithmetic-intensity", train(kernel=17))
    step, left = 20 * (4 * 16 + 3 + 5), 17 * (4 * 16 + 5) + 3 * (16 + 5)
    assert finding.saving.expected_us == pytest.approx(step - left, rel=0.02)


def test_a_busy_gpu_gains_nothing():
    assert "keep the device busy" in clear("low-arithmetic-intensity", train(kernel=25))


@pytest.mark.parametrize(
    "other",
    [{"parts": 1}, {"adds": False}, {"stack": 2 * OPS}, {"updates": True}, {"communicates": True}],
    ids=["one backward pass", "nothing is added up", "another network", "an optimizer between", "a stage of a pipeline"],
)
def test_what_is_no_micro_batch_is_quiet(other):
    assert "micro-batch" not in clear("low-arithmetic-intensity", train(**other))


def test_waits_in_all_but_the_first_go_with_them():
    assert len(train(reads=True).get(MicroBatches).waits) == 3 * (5 - 1), "of the last step only the launches before its end are replayed"
    finding = found("low-arithmetic-intensity", train(reads=True))
    assert finding.saving.expected_us == pytest.approx(20 * (4 * 17 + 3 - 17), rel=0.05)
