"""dtype-casts: weights under autocast, stretches in FP32, operands of sums; quiet on other copies."""

import pytest

from advisor.knowledge.interval_margins import interval_margins
from advisor.rules.fixes.casts import cast_less as _fix
from advisor.views.patterns.casts import Purpose
from tests.rules.test_rules import clear, found, queued, repeat, skipped

BF16, FP32 = "c10::BFloat16", "float"
W, X = [4096, 4096], [16, 4096]
PRODUCT, CAST = "nvjet_sm90_tst_64x16_64x16", "void at::native::vectorized_elementwise_kernel<8, bfloat16_copy_kernel_cuda>"
STEP = 140.0
BELOW = interval_margins("dtype-casts")[0] * STEP
"""By how much the engine moves the low end of what a step gains."""


def strides(dims):
    return [dims[1], 1] if len(dims) == 2 else [1]


class Writer:
    """Ops of one step, one after the other on the host and on the GPU."""

    def __init__(self, trace, host, gpu):
        self.trace, self.host, self.gpu = trace, host, gpu

    def kernel(self, us, name=CAST, kind="kernel", tid=1):
        self.trace.launch(self.host + 0.2, self.gpu, self.gpu + us, name, dur=0.1, kind=kind, tid=tid)
        self.gpu += us
        self.host += 0.4

    def cast(self, us, source, target, dims, around=(), layout=None, tid=1, sequence=-1, kind="kernel"):
        for k, name in enumerate((*around, "aten::to", "aten::_to_copy")):
            self.trace.op(name, self.host + 0.01 * k, 1.0 - 0.02 * k, [dims], [source], tid=tid, sequence=sequence)
        self.trace.op("aten::copy_", self.host + 0.1, 0.8, [dims, dims, []], [target, source, "Scalar"], tid=tid)
        self.trace.rows["cpu_ops"][-1]["strides"] = str([layout or strides(dims), strides(dims), []])
        self.kernel(us, kind=kind, tid=tid)
        self.host += 0.6

    def op(self, name, us, dims, types=None):
        self.trace.op(f"aten::{name}", self.host, 1.0, dims, types)
        self.kernel(us, PRODUCT if name in ("mm", "addmm") else "elementwise_kernel")
        self.host += 0.6


def steps(body, gpu=STEP, host=50):
    return queued(lambda trace, at, on: body(Writer(trace, at, on)), host=host, gpu=gpu)


def weights(cast=40.0, product=99.0, dims=W, source=FP32, target=BF16, layout=None, kind="kernel"):
    def body(w):
        w.trace.op("aten::linear", w.host, 3.0, [X, dims, [4096]], [target, source, source])
        w.cast(cast, source, target, dims, layout=layout, kind=kind)
        w.op("addmm", product, [[4096], X, W], [target] * 3)

    return steps(body)


def test_weights_that_autocast_casts_are_found():
    finding = found("dtype-casts", weights())
    assert finding.saving.low_us == pytest.approx(40 - BELOW, abs=2) and finding.saving.expected_us == pytest.approx(40, abs=2)
    assert finding.evidence[0].label == "FP32 → BF16 weight [4096, 4096]" and finding.severity == "high"
    assert "model.to(torch.bfloat16)" in finding.fix.code.after and "weights" in finding.summary


ROWS = [512, 4096]


@pytest.mark.parametrize(
    ("name", "dims", "types", "spared"),
    [
        ("gelu", [ROWS], [FP32], 0.5),  # 4 bytes read and 4 written for each, then 2 and 2
        ("add", [ROWS, ROWS], [FP32, BF16], 0.4),  # 4, 2 and 4, then 2, 2 and 2
        ("gelu", [ROWS], [BF16], 0.0),  # in 16 bits already
        ("gelu", [[16, 4096]], [FP32], 0.0),  # too small to be bound by what it reads
    ],
)
def test_what_autocast_leaves_in_fp32_between_products_is_narrower_too(name, dims, types, spared):
    """30 µs of a kernel beside a cast of 20: half of what 16 bits spare is expected, all of it at most; products of 89 µs, and the kernel if nothing is
    spared, stay whole."""

    def body(w):
        w.trace.op("aten::linear", w.host, 3.0, [X, W, [4096]], [BF16, FP32, FP32])
        w.cast(20, FP32, BF16, W)
        w.op("addmm", 39, [[4096], X, W], [BF16] * 3)
        w.op(name, 30, dims, types)
        w.op("mm", 50, [X, W], [BF16] * 2)

    finding = found("dtype-casts", steps(body))
    assert finding.saving.expected_us == pytest.approx(20 + 0.5 * 30 * spared, abs=1.5)
    left_us = 89 + (30 * (1 - spared) / 2 if spared else 30)
    assert finding.saving.high_us == pytest.approx(min(20 + 30 * spared + interval_margins("dtype-casts")[1] * STEP, STEP - left_us), abs=1)


def autocast(*between, after=(), training=False):
    """A weight that is cast, 20 µs, and two products; FP32 work of 30 µs each, or what casts there and back, between them or after them; 16 bits fill the step."""

    def body(w):
        end = w.gpu + 139
        w.trace.op("aten::linear", w.host, 1.95, [X, W, [4096]], [BF16, FP32, FP32])
        w.cast(20, FP32, BF16, W)
        w.op("addmm", 19, [[4096], X, W], [BF16] * 3)
        for stretch in between:
            stretch(w)
        w.op("mm", 10, [X, W], [BF16] * 2)
        for stretch in after:
            stretch(w)
        if training:
            w.trace.op("autograd::engine::evaluate_function: MmBackward0", w.host, 2.0)
            w.op("mm", 10, [X, W], [BF16] * 2)
        w.op("relu", end - w.gpu, [ROWS], [BF16])

    return steps(body)


def wide(w):
    w.op("gelu", 30, [ROWS], [FP32])


def test_casts_between_fp64_and_fp32_are_told_of_no_other_type():
    finding = found("dtype-casts", weights(source="double", target=FP32))
    said = " ".join((finding.fix.title, *finding.fix.steps, finding.fix.code.before, finding.fix.code.after, finding.fix.risk))
    assert "FP64" in said and not any(other in said for other in ("16", "autocast", "BF"))


def test_trained_weights_stay_in_fp32():
    """Their casts are there on purpose, so that nothing says that activations would be narrower."""
    assert "no fix is known" in clear("dtype-casts", autocast(wide, training=True))


@pytest.mark.parametrize("training", [True, False])
def test_a_model_in_16_bits_is_no_advice_in_training(training):
    """The optimizer would round what it adds, and GradScaler refuses to unscale FP16 gradients."""
    (step,) = _fix((Purpose.INPUT,), training, (), "float16").steps
    assert ("a model in FP16" in step) is not training and "torch.compile fuses the cast" in step


def test_both_thresholds_have_two_sides():
    trace = weights()  # 40 of 139 µs busy, of 140 a step
    assert found("dtype-casts", trace, min_cast_share=0.27)
    assert "threshold 30%" in clear("dtype-casts", trace, min_cast_share=0.30)
    assert found("dtype-casts", trace, min_saving_share=0.27)
    assert "threshold 31%" in clear("dtype-casts", trace, min_saving_share=0.31)


def test_of_two_shapes_alike_the_first_cast_is_the_weight():
    def body(w):
        w.trace.op("aten::linear", w.host, 4.0, [W, W], [FP32, FP32])
        w.cast(30, FP32, BF16, W)
        w.cast(20, FP32, BF16, W)
        w.op("mm", 89, [W, W], [BF16] * 2)

    finding = found("dtype-casts", steps(body))
    assert [e.label for e in finding.evidence] == [f"FP32 → BF16 {what} {W}" for what in ("weight", "input of a GEMM or convolution")]
    assert finding.saving.low_us == pytest.approx(30 - BELOW, abs=2) and finding.saving.expected_us == pytest.approx(50, abs=2)


def test_weights_that_are_trained_in_fp32_are_so_on_purpose():
    """A step casts the weight, multiplies, and casts the gradient back."""

    def body(w):
        w.trace.op("aten::linear", w.host, 1.9, [X, W], [FP32, FP32])
        w.cast(30, FP32, BF16, W, sequence=7)
        w.op("mm", 89, [X, W], [BF16] * 2)
        w.op("ones_like", 0.1, [[]])
        w.cast(20, BF16, FP32, W, around=("autograd::engine::evaluate_function: ToCopyBackward0", "ToCopyBackward0"), tid=2, sequence=7)

    assert "no fix is known" in clear("dtype-casts", steps(body))


def island(between=("gelu", "mul"), back=True, cast=20.0):
    def body(w):
        w.op("mm", 60, [X, W], [BF16] * 2)
        w.cast(cast, BF16, FP32, X)
        for name in between:
            w.op(name, 10, [X], [FP32])
        if back:
            w.cast(cast, FP32, BF16, X)
        w.op("mm", 139 - 60 - 10 * len(between) - cast * (1 + back), [X, W], [BF16] * 2)

    return steps(body)


def test_a_stretch_in_fp32_says_which_ops_it_holds():
    finding = found("dtype-casts", island())
    assert finding.saving.low_us == 0 and finding.saving.expected_us == pytest.approx(40, abs=2)
    assert finding.evidence[0].label == "BF16 → FP32 [16, 4096] around gelu → mul" and "gelu → mul" in finding.fix.steps[0]
    assert finding.fix.steps[0].startswith("Compile these ops")
    assert found("dtype-casts", island(("pow", "mean", "mul"))).fix.steps[0].startswith("Compile")


def test_products_between_two_casts_want_their_type():
    def body(w):
        w.cast(20, FP32, BF16, X)
        w.op("mm", 99, [X, W], [BF16] * 2)
        w.cast(20, BF16, FP32, X)

    assert "no fix is known" in clear("dtype-casts", steps(body))


def test_a_way_back_in_the_next_step_is_none():
    def body(w):
        w.op("gelu", 10, [X], [BF16])
        w.cast(20, FP32, BF16, X)
        w.op("mm", 89, [X, W], [BF16] * 2)
        w.op("gelu", 10, [X], [BF16])
        w.cast(10, BF16, FP32, X)

    assert "no fix is known" in clear("dtype-casts", steps(body))


def test_a_cast_without_a_way_back_may_be_wanted():
    assert "no fix is known" in clear("dtype-casts", island(back=False))


def test_fp32_up_to_the_loss_is_wanted():
    def body(w):
        w.op("mm", 60, [X, W], [BF16] * 2)
        w.cast(20, BF16, FP32, X, sequence=3)
        w.op("nll_loss_forward", 10, [X], [FP32])
        names = ("autograd::engine::evaluate_function: ToCopyBackward0", "ToCopyBackward0")
        w.cast(20, FP32, BF16, X, around=names, tid=2, sequence=3)
        w.op("mm", 29, [X, W], [BF16] * 2)

    assert "no fix is known" in clear("dtype-casts", steps(body))


def test_a_way_back_of_another_size_is_none():
    def body(w):
        w.cast(20, BF16, FP32, X)
        w.op("mean", 10, [X], [FP32])
        w.cast(10, FP32, BF16, [16, 1])
        w.op("mm", 99, [X, W], [BF16] * 2)

    assert "no fix is known" in clear("dtype-casts", steps(body))


def test_other_copies_are_quiet():
    clear("dtype-casts", weights(source=FP32, target=FP32))
    clear("dtype-casts", weights(source="unsigned char"))  # images become numbers
    clear("dtype-casts", weights(layout=[1, 4096]))  # turned as well
    clear("dtype-casts", weights(kind="memcpy"))


@pytest.mark.parametrize("nested", [False, True])
def test_a_cast_on_the_way_to_the_host_is_memcpys(nested):
    def body(w):
        if nested:
            w.trace.op("aten::copy_", w.host, 3.0, [W, W, []], [BF16, FP32, "Scalar"])
            w.trace.launch(w.host + 2.0, w.gpu + 40, w.gpu + 60, "Memcpy DtoH (Device -> Pinned)", dur=0.1, kind="memcpy")
        w.cast(40, FP32, BF16, W)
        w.host -= 0.6
        if nested:
            w.gpu += 20
        else:  # the transfer is launched by the same op
            w.kernel(20, "Memcpy DtoH (Device -> Pinned)", kind="memcpy")
        w.host += 3
        w.op("mm", 79, [X, W], [BF16] * 2)

    assert "take 0%" in clear("dtype-casts", steps(body))


def test_casts_behind_a_slow_host_gain_nothing():
    def body(w):
        w.trace.op("aten::linear", w.host, 3.0, [X, W], [BF16, FP32])
        w.cast(5, FP32, BF16, W)
        w.op("addmm", 20, [[4096], X, W], [BF16] * 3)

    assert "threshold 3%" in clear("dtype-casts", repeat(400, lambda trace, at: body(Writer(trace, at, at + 5))))


def test_without_types_it_is_skipped():
    assert "input shapes" in skipped("dtype-casts", queued(lambda t, h, g: t.launch(h, g, g + 100, CAST), gpu=101))


@pytest.mark.parametrize(
    ("op", "operands", "weight"),
    [
        ("mm", [[32, 128], [128, 4096]], True),
        ("addmm", [[4096], [32, 128], [128, 4096]], True),
        ("addmm", [[1024], [4096, 128], [128, 1024]], False),
        ("addmm", [[128], [4096, 128], [128, 128]], False),
    ],
)
def test_a_matrix_that_is_cast_by_hand_for_each_product_is_a_weight(op, operands, weight):
    """Inputs come anew, so that a cast of one is there on purpose."""

    def body(w):
        w.cast(40, FP32, BF16, [4096, 128])
        w.op(op, 99, operands, [BF16] * len(operands))

    if not weight:
        assert "no fix is known" in clear("dtype-casts", steps(body))
        return
    finding = found("dtype-casts", steps(body))
    assert finding.evidence[0].label == "FP32 → BF16 weight [4096, 128]"
    assert finding.saving.low_us == pytest.approx(40 - BELOW, abs=2) and finding.saving.expected_us == pytest.approx(40, abs=2)
