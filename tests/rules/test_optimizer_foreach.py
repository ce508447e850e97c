"""optimizer-foreach: found where one parameter follows the other, a note where foreach could be fused, else quiet."""

import pytest

from tests.build import Trace
from tests.rules.test_rules import clear, found, queued, repeat, skipped
from tests.views.patterns.test_parameter_loops import SHAPES, each, train

ADAM = ("lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_")
RANGE = "Optimizer.step#{}.step"


def loop(parameters=10, pattern=ADAM, every=20, name="AdamW", note=True, prefix="aten::", kernel="vectorized_elementwise_kernel<{}>"):
    """A step of one GEMM and an optimizer that launches `pattern` for each parameter."""

    def body(trace, at):
        trace.op("aten::mm", at, 18).launch(at + 8, at + 14, at + 30, "gemm")
        ops = [op for _ in range(parameters) for op in pattern]
        if note:
            trace.note(RANGE.format(name), at + 20, every * len(ops))
        for k, op in enumerate(ops):
            t = at + 20 + every * k
            trace.op(prefix + op, t, every - 2).launch(t + 9, t + 15, t + 17, kernel.format(op))

    return body


def period(parameters=10, pattern=ADAM, every=20):
    return 20 + every * parameters * len(pattern) + 5


def test_a_loop_over_parameters_is_found():
    finding = found("optimizer-foreach", repeat(period(), loop()))
    assert finding.severity == "high"
    assert "70 kernels per step for 10 parameters" in finding.summary
    assert "torch.optim.AdamW(model.parameters(), lr=lr, fused=True)" in finding.fix.code.after
    # A quarter of the optimizer's 1400 µs stays, and the 20 µs before it.
    assert finding.saving.expected_us == pytest.approx(0.75 * 1400, rel=0.05)
    assert finding.saving.low_us < finding.saving.expected_us <= finding.saving.high_us


def test_the_number_of_parameters_has_two_sides():
    assert found("optimizer-foreach", repeat(period(2), loop(2)))
    assert "2 parameters" in clear("optimizer-foreach", repeat(period(2), loop(2)), min_parameters=3)


def test_the_saving_threshold_has_two_sides():
    trace = repeat(period(), loop())
    assert found("optimizer-foreach", trace, min_saving_share=0.5)
    assert "threshold 99%" in clear("optimizer-foreach", trace, min_saving_share=0.99)


def test_the_longest_pattern_of_a_parameter_has_two_sides():
    """Adafactor of transformers launches 24 kernels for each; without its range a run of so many is nothing that is known."""
    once = [f"op_{k}" for k in range(26)]
    long, longer = (*ADAM, *once[:17]), (*ADAM, *once)
    finding = found("optimizer-foreach", repeat(period(10, long), loop(10, long, name="Adafactor")))
    assert (
        "240 kernels per step for 10 parameters" in finding.summary
        and "torch.optim.Adafactor(model.parameters(), lr=lr, foreach=True)" in finding.fix.code.after
    )
    assert "in no pattern" in clear("optimizer-foreach", repeat(period(10, longer), loop(10, longer, name="Adafactor")))
    assert "no optimizer step" in clear("optimizer-foreach", repeat(period(10, once[:17]), loop(10, once[:17], note=False)))


def test_sgd_is_counted_by_its_own_pattern():
    finding = found("optimizer-foreach", repeat(period(10, ("mul_", "add_", "add_")), loop(10, ("mul_", "add_", "add_"), name="SGD")))
    assert "SGD launches 30 kernels per step for 10 parameters" in finding.summary


def test_an_optimizer_without_a_fused_form_is_sent_to_foreach():
    finding = found("optimizer-foreach", repeat(period(), loop(name="RMSprop")))
    assert "fused=True" not in str(finding.fix) and "torch.optim.RMSprop(model.parameters(), lr=lr, foreach=True)" in finding.fix.code.after
    own = found("optimizer-foreach", repeat(period(), loop(name="Lion")))
    assert "_foreach_" in own.fix.code.after
    # Its kernels still read and write everything, so it gains less than a fused one.
    fused = found("optimizer-foreach", repeat(period(), loop(name="AdamW")))
    assert own.saving.expected_us <= fused.saving.expected_us


def test_fused_and_compiled_optimizers_are_quiet():
    fused = loop(2, ("_fused_adamw_",), kernel="multi_tensor_apply_kernel<FusedAdamMathFunctor>")
    assert "already fused" in clear("optimizer-foreach", repeat(100, fused))
    inductor = loop(20, ("triton_for_fused_0",), prefix="", kernel="triton_for_fused_0")
    clear("optimizer-foreach", repeat(period(20, "x"), inductor))


def test_foreach_is_a_note_at_most():
    many = loop(6, ("_foreach_lerp_", "_foreach_mul_", "_foreach_addcmul_", "_foreach_sqrt", "_foreach_div_", "_foreach_addcdiv_"))
    finding = found("optimizer-foreach", repeat(period(6, "123456"), many))
    assert finding.severity == "low" and "fused=True" in finding.fix.code.after
    assert not any("foreach=False" in step or "next best" in step for step in finding.fix.steps), "foreach it is already"
    assert "remove foreach=False" in found("optimizer-foreach", repeat(period(), loop())).fix.steps[0]
    own = loop(6, ("_foreach_lerp_", "_foreach_mul_"), name="Lion")
    assert "no fused form" in clear("optimizer-foreach", repeat(period(6, "12"), own))


def test_an_optimizer_behind_a_busy_gpu_saves_its_kernels_only():
    def body(trace, host, gpu):
        trace.op("aten::mm", host, 18).launch(host + 4, gpu, gpu + 7000, "gemm")
        trace.note(RANGE.format("AdamW"), host + 20, 700)
        for k in range(70):
            t = host + 20 + 10 * k
            trace.op(f"aten::{ADAM[k % 7]}", t, 8).launch(t + 2, gpu + 7000 + 2 * k, gpu + 7002 + 2 * k, "elementwise")

    clear("optimizer-foreach", queued(body, host=800, gpu=7200))


def test_adam_is_known_by_its_kernels_where_nothing_marks_it():
    trace = repeat(period(), loop(note=False, kernel="vectorized_elementwise_kernel<{}_cuda_kernel>"))
    assert "10 parameters" in found("optimizer-foreach", trace).summary


def test_without_the_hosts_calls_nothing_is_said_of_an_optimizer():
    trace = repeat(period(), loop(note=False, kernel="vectorized_elementwise_kernel<{}_cuda_kernel>"))
    for table in ("api_calls", "cpu_ops"):
        del trace.rows[table]
    for rule in ("optimizer-foreach", "grad-zeroing"):
        assert "no calls that launch GPU work" in skipped(rule, trace)


def test_an_exponential_average_outside_an_optimizer_is_none():
    average = loop(20, ("mul_", "add_"), note=False)
    assert "no optimizer" in clear("optimizer-foreach", repeat(period(20, "12"), average))
    assert "no optimizer" in clear("optimizer-foreach", repeat(100, lambda t, at: Trace.launch(t, at, at + 5, at + 90)))


def test_a_loop_outside_the_optimizer_is_found_beside_it():
    trace = train(each())
    finding = found("optimizer-foreach", trace)
    assert "20 kernels and copies per step loop over 10 parameters" in finding.summary and "_foreach_lerp_" in finding.fix.code.after
    # The loop takes 385 µs of the host's time, from its first launch to its last; three quarters of it go.
    assert finding.saving.expected_us == pytest.approx(0.75 * 385, rel=0.02)
    assert "threshold 50%" in clear("optimizer-foreach", trace, min_saving_share=0.5)
    assert "no optimizer" in clear("optimizer-foreach", trace, min_parameters=11)
    assert found("optimizer-foreach", train(each(SHAPES[:8]), SHAPES[:8]), min_saving_share=0)
    assert "no optimizer" in clear("optimizer-foreach", train(each(SHAPES[:7]), SHAPES[:7]), min_saving_share=0), "too few to be the parameters' loop"


def test_waits_in_a_loop_go_with_it():
    def waits(trace, t):
        trace.call("cudaStreamSynchronize", t, 1.5)

    plain, waiting = (found("optimizer-foreach", train(each(between=between))) for between in (None, waits))
    assert "waits for the GPU 10 times" in waiting.summary and "waits" not in plain.summary
    assert waiting.saving.expected_us >= plain.saving.expected_us


def test_a_loop_that_only_shapes_would_tell_is_no_clear_answer():
    trace = train(each())
    for row in trace.rows["cpu_ops"]:
        row["dims"] = row["types"] = ""
    assert "20 elementwise kernels per step follow the backward pass" in skipped("optimizer-foreach", trace)


def test_what_a_closure_launches_inside_the_step_is_no_loop_over_parameters():
    """Lightning gives every optimizer a closure: forward and backward pass run inside the range of its step."""

    def body(trace, at):
        trace.note(RANGE.format("Adam"), at, 700)
        for k, op in enumerate(ADAM * 4):
            trace.op("aten::" + op, at + 20 * k, 18).launch(at + 20 * k + 9, at + 20 * k + 15, at + 20 * k + 17, f"vectorized_elementwise_kernel<{op}>")
        trace.op("autograd::engine::evaluate_function: AddmmBackward0", at + 570, 80)
        trace.op("aten::_fused_adam_", at + 655, 30).launch(at + 660, at + 666, at + 690, "multi_tensor_apply_kernel<FusedAdamMathFunctor>")

    assert "fused" in clear("optimizer-foreach", repeat(720, body))
