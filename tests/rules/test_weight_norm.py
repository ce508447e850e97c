"""weight-norm: found where a program that trains nothing norms weights, quiet where they are trained or the GPU hides it."""

import pytest

from tests.rules.test_rules import clear, found, queued, repeat, skipped

NORM, PERIOD = "weight_norm_fwd_first_dim_kernel<float, float>", 200


def speak(norms=3, trained=False, prefix="aten::_weight_norm"):
    """Each norm is issued in 20 µs, of which 2 µs are its kernel's; a convolution follows."""

    def body(trace, at):
        for k in range(norms):
            t = at + 30 * k
            trace.op(prefix, t, 20).op(f"{prefix}_interface", t + 2, 16).launch(t + 10, t + 16, t + 18, NORM)
        t = at + 30 * norms
        trace.op("aten::conv1d", t, 20).launch(t + 10, t + 16, t + 50, "implicit_convolve_sgemm")
        if trained:
            trace.op("torch::autograd::WeightNormInterfaceBackward0", t + 25, 20).launch(t + 30, t + 51, t + 53, "weight_norm_bwd_first_dim_kernel")

    return body


def test_norms_of_what_is_not_trained_are_found():
    finding = found("weight-norm", repeat(PERIOD, speak()))
    assert finding.summary.startswith("3 weights per step are normalised although nothing is trained: 6.00 µs of GPU time")
    assert "remove_parametrizations" in finding.fix.code.after
    # The GPU waits for the host: three times 30 µs go, but for what is the loop's own.
    assert finding.saving.low_us < finding.saving.expected_us == pytest.approx(90, rel=0.25)


def test_what_is_launched_inside_goes_too_and_counts_as_one_weight():
    """Norms along other axes are written out inside, and a weight in another order is copied first."""

    def body(trace, at):
        trace.op("aten::_weight_norm", at, 60)
        for k, name in enumerate(("copy_", "linalg_vector_norm", "div", "mul")):
            trace.op(f"aten::{name}", at + 2 + 14 * k, 12).launch(at + 6 + 14 * k, at + 12 + 14 * k, at + 15 + 14 * k, name)
        trace.op("aten::conv1d", at + 70, 20).launch(at + 80, at + 84, at + 120, "implicit_convolve_sgemm")

    assert found("weight-norm", repeat(PERIOD, body)).summary.startswith("1 weight per step is normalised although nothing is trained: 12.0 µs of GPU time")


def test_trained_weights_are_quiet():
    assert "change from step to step" in clear("weight-norm", repeat(PERIOD, speak(trained=True)))


def test_other_norms_are_quiet():
    assert clear("weight-norm", repeat(PERIOD, speak(prefix="aten::layer_norm"))) == "no weights are normalised"


def test_norms_that_the_gpu_hides_gain_nothing():
    def body(trace, host, gpu):
        trace.op("aten::_weight_norm", host, 20).launch(host + 5, gpu, gpu + 2, NORM)
        trace.op("aten::conv1d", host + 25, 20).launch(host + 30, gpu + 2, gpu + 990, "implicit_convolve_sgemm")

    assert "The fix would gain" in clear("weight-norm", queued(body, host=50, gpu=1000))


def test_the_saving_threshold_has_two_sides():
    assert found("weight-norm", repeat(PERIOD, speak()), min_saving_share=0.2)
    assert "threshold 90%" in clear("weight-norm", repeat(PERIOD, speak()), min_saving_share=0.9)


def test_without_ops_it_is_skipped():
    trace = repeat(PERIOD, speak())
    del trace.rows["cpu_ops"]
    skipped("weight-norm", trace)
