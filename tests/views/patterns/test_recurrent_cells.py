"""A loop over a recurrent cell as one call of the library: fewer launches, half of the kernels' time; a loop with more in it stays."""

import pytest

from advisor.views.patterns.recurrent_cells import KERNELS_A_CELL, LAUNCH_US, OF_THE_TIME, RecurrentLoop
from advisor.views.replay.replay import Replay
from tests.build import Trace
from tests.rules.test_rules import found

PASSES, EACH, KERNEL = 20, 100, 10
PERIOD = (PASSES + 1) * EACH


def loop(other=0, head=0, activated=0, pause=0):
    """Three steps of a cell called every 100 µs: two products and a pointwise kernel of 10 µs each; then a head. other: softmaxes beside each.
    head: what a product beside each makes of its state; activated: how wide the sigmoid behind it is. pause: convolutions in the middle of each step."""
    trace = Trace()
    for s in range(4):
        trace.step(PERIOD * s, PERIOD - 1, s + 1)
        for k in range(PASSES):
            at = PERIOD * s + EACH * k
            trace.op("aten::lstm_cell", at, 60)
            for i, (name, kernel) in enumerate((("aten::mm", "gemm"), ("aten::mm", "gemm"), ("aten::_thnn_fused_lstm_cell", "lstm_cell_forward"))):
                t = at + 1 + 19 * i
                trace.op(name, t, 18, [[8, 64], [64, 64]], ["float"] * 2).launch(t + 5, t + 8, t + 8 + KERNEL, kernel, dur=4)
            for i in range(other):
                t = at + 62 + 10 * i
                trace.op("aten::_softmax", t, 9, [[8, 64]]).launch(t + 2, t + 5, t + 8, "softmax_warp_forward", dur=4)
            if head:
                t = at + 62
                trace.op("aten::addmm", t, 9, [[head], [8, 64], [64, head]], ["float"] * 3).launch(t + 2, t + 5, t + 8, "gemm", dur=4)
            if activated:
                t = at + 72
                trace.op("aten::sigmoid", t, 9, [[8, activated]], ["float"]).launch(t + 2, t + 5, t + 8, "vectorized_elementwise_kernel", dur=4)
            for i in range(pause if k == PASSES // 2 - 1 else 0):
                t = at + 62 + 3 * i
                trace.op("aten::conv1d", t, 3, [[8, 64, 9]]).launch(t + 1, t + 2, t + 3, "implicit_convolve_sgemm", dur=1)
        t = PERIOD * s + EACH * PASSES
        trace.op("aten::addmm", t, 20, [[8], [8, 64], [64, 8]]).launch(t + 5, t + 10, t + 20, "gemm", dur=4)
    return trace


def test_all_passes_become_one_call():
    trace = loop()
    recurrent, before = trace.get(RecurrentLoop), trace.get(Replay).recorded
    assert recurrent.cells == PASSES
    after = recurrent.edit.apply(before)
    launched = (~after.skip_op).sum() / before.steps
    assert launched == KERNELS_A_CELL * PASSES + 1, "the library's, and the head"
    assert after.dur_us[~after.skip_op].sum() / before.steps == pytest.approx(OF_THE_TIME * 3 * PASSES * KERNEL + KERNEL)
    # The loop launches from 6 to 1944 µs; what the host does before and after stays, and each launch left is a call of 4.
    outside = PERIOD - (1944 - 6) - 4
    host_us = float(after.host_us.sum() + after.call_us.sum()) / before.steps
    assert host_us == pytest.approx(KERNELS_A_CELL * PASSES * (LAUNCH_US + 4) + outside + 4, abs=5)
    finding = found("launch-gap", trace)
    assert "nn.LSTM" in finding.fix.title and "20 calls a step" in finding.fix.steps[0]


def test_a_loop_with_more_in_it_is_no_recurrence_of_the_librarys():
    trace = loop(other=1)
    assert trace.get(RecurrentLoop).cells == 0
    assert "nn.LSTM" not in found("launch-gap", trace).fix.title


def test_a_head_that_no_cell_takes_in_can_wait_until_the_loop_is_over():
    assert loop(head=1).get(RecurrentLoop).cells == PASSES
    assert loop(head=64).get(RecurrentLoop).cells == 0, "what is as wide as a cell's input may be the next one's"


def test_its_activation_waits_with_it():
    assert loop(head=1, activated=1).get(RecurrentLoop).cells == PASSES
    assert loop(head=1, activated=64).get(RecurrentLoop).cells == 0, "of the state, which the next cell takes in"


def test_loops_of_one_pass_are_told_apart_by_what_stands_between():
    trace = loop(pause=10)
    recurrent, before = trace.get(RecurrentLoop), trace.get(Replay).recorded
    assert recurrent.cells == PASSES
    left = (~recurrent.edit.apply(before).skip_op).sum() / before.steps
    assert left == KERNELS_A_CELL * PASSES + 10 + 1, "the convolutions stay"


@pytest.mark.parametrize("layers", [1, 4, 5, 9])
def test_layers_of_a_pass_with_more_behind_them_are_no_loops_of_their_own(layers):
    """A decoder that looks at what was read before, behind each pass of its cells."""
    trace, pass_us = Trace(), 40 * layers + 100
    for s in range(4):
        trace.step(PASSES * pass_us * s, PASSES * pass_us - 1, s + 1)
        for k in range(PASSES * layers):
            t = PASSES * pass_us * s + 40 * k + 100 * (k // layers)
            trace.op("aten::lstm_cell", t, 30).op("aten::_thnn_fused_lstm_cell", t + 1, 28).launch(t + 5, t + 9, t + 19, "lstm_cell_forward", dur=4)
            for i in range(10 * ((k + 1) % layers == 0)):
                at = t + 41 + 9 * i
                trace.op("aten::_softmax", at, 8, [[8, 64]]).launch(at + 2, at + 5, at + 8, "softmax_warp_forward", dur=2)
    assert trace.get(RecurrentLoop).cells == 0


def test_a_step_that_accumulates_gradients_has_a_loop_for_each_batch():
    """Forward and backward of two batches, with 6 ms of the program's own between: those stay."""
    trace = Trace()
    period, pause = 16_000, 6_000
    for s in range(4):
        trace.step(period * s, period - 1, s + 1)
        for batch in range(2):
            begin = period * s + batch * 8_000
            for k in range(PASSES):
                t = begin + 40 * k
                trace.op("aten::lstm_cell", t, 30).op("aten::_thnn_fused_lstm_cell", t + 1, 28).launch(t + 5, t + 9, t + 19, "lstm_cell_forward", dur=4)
            for k in range(PASSES):
                t = begin + 40 * (PASSES + k)
                trace.op("autograd::engine::evaluate_function: ThnnFusedLstmCellBackward0", t, 34)
                trace.op("aten::_thnn_fused_lstm_cell_backward", t + 1, 30).launch(t + 5, t + 9, t + 19, "lstm_cell_backward", dur=4)
    recurrent, before = trace.get(RecurrentLoop), trace.get(Replay).recorded
    assert recurrent.cells == 2 * PASSES
    after = recurrent.edit.apply(before)
    assert float(after.host_us.sum()) / before.steps > 2 * pause
