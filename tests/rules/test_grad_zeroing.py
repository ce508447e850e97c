"""grad-zeroing: found where zero_grad launches fills, quiet where it drops gradients or something else fills."""

import pytest

from tests.rules.test_rules import clear, found, queued, repeat, skipped
from tests.views.patterns.test_parameter_loops import SHAPES, ZERO, each
from tests.views.patterns.test_parameter_loops import train as trained

FILL = "vectorized_elementwise_kernel<FillFunctor<float>>"


def train(fills=5, note=True, name="aten::fill_", adds=False, frame=False):
    def body(trace, at):
        if note:
            trace.note("Optimizer.zero_grad#SGD.zero_grad", at, 20 * fills + 5)
        if frame:
            trace.python("torch/nn/modules/module.py(2880): zero_grad", at, 20 * fills + 5)
        for k in range(fills):
            t = at + 20 * k
            trace.op(name, t, 18).launch(t + 9, t + 15, t + 17, FILL)
        t = at + 20 * fills + 10
        trace.op("aten::mm", t, 18).launch(t + 8, t + 14, t + 214, "gemm")
        if adds:
            for k in range(fills):
                t = at + 20 * fills + 40 + 40 * k
                trace.op("torch::autograd::AccumulateGrad", t, 38).op("aten::add_", t + 1, 36).launch(t + 20, t + 220, t + 225, "add")

    return body


def period(fills=5):
    return 20 * fills + 240


def test_fills_in_zero_grad_are_found():
    finding = found("grad-zeroing", repeat(period(), train()))
    assert "5 fills per step" in finding.summary and "set_to_none=True" in finding.fix.code.after
    assert 50 < finding.saving.expected_us < 115
    assert found("grad-zeroing", repeat(period(), train(note=False, frame=True)))


@pytest.mark.parametrize(("note", "owner"), [(True, "optimizer"), (False, "model")])
def test_without_an_optimizer_the_model_drops_its_gradients(note, owner):
    fix = found("grad-zeroing", repeat(period(), train(note=note, frame=True))).fix
    assert (fix.code.before, fix.code.after) == (f"{owner}.zero_grad(set_to_none=False)", f"{owner}.zero_grad(set_to_none=True)")


def test_additions_to_the_zeros_go_too():
    without, with_them = (found("grad-zeroing", repeat(600, train(adds=adds))) for adds in (False, True))
    # Each of 5 additions takes 36 µs of the host's time, which the GPU waits for.
    assert with_them.saving.expected_us - without.saving.expected_us == pytest.approx(5 * 36, rel=0.25)


def test_several_additions_to_each_gradient_stay():
    trace = trained(each(**ZERO), passes=3)
    once, several = (found("grad-zeroing", t) for t in (trained(each(**ZERO)), trace))
    assert several.saving.expected_us < once.saving.expected_us


def test_a_loop_over_the_gradients_is_found():
    finding = found("grad-zeroing", trained(each(**ZERO)))
    assert "A loop over the gradients launches 10 fills per step" in finding.summary and "p.grad.zero_()" in finding.fix.code.before
    clear("grad-zeroing", trained(each(SHAPES[:8], **ZERO)))


def test_the_saving_threshold_has_two_sides():
    trace = repeat(period(), train())
    assert found("grad-zeroing", trace, min_saving_share=0.1)
    assert "threshold 50%" in clear("grad-zeroing", trace, min_saving_share=0.5)


def test_dropping_gradients_is_quiet():
    clear("grad-zeroing", repeat(period(), train(fills=0)))
    # What else stands in the range is no fill.
    assert clear(
        "grad-zeroing",
        repeat(
            period(),
            lambda t, at: t.note("Optimizer.zero_grad#SGD.zero_grad", at, 30) and t.op("aten::mm", at, 18).launch(at + 8, at + 14, at + 300, "gemm"),
        ),
    )


def test_fills_elsewhere_are_not_gradients():
    clear("grad-zeroing", repeat(period(), train(note=False)))


def test_fills_that_the_gpu_hides_cost_their_own_time():
    def body(trace, host, gpu):
        trace.note("Optimizer.zero_grad#SGD.zero_grad", host, 30).op("aten::fill_", host, 20).launch(host + 5, gpu, gpu + 2, FILL)
        trace.op("aten::mm", host + 31, 10).launch(host + 33, gpu + 2, gpu + 990, "gemm")

    clear("grad-zeroing", queued(body, host=50, gpu=1000))


def test_without_ops_and_ranges_it_is_skipped():
    trace = repeat(period(), train(note=False))
    del trace.rows["annotations"]
    clear("grad-zeroing", trace)  # ranges would have been recorded with the ops
    del trace.rows["cpu_ops"]
    skipped("grad-zeroing", trace)
