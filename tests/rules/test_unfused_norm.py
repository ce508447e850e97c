"""unfused-norm: a written-out norm or softmax, its backward pass with it; quiet on other reductions."""

import pytest

from advisor.views.patterns.norms import rows_of as _rows
from advisor.views.trace.shapes import Shapes
from tests.paths import MANY_SAMPLES, sampled
from tests.rules.test_rules import clear, found, queued

X, ROW = [8, 4096, 2048], [8, 4096, 1]
KERNELS = {
    "copy_": "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>",
    "pow": "vectorized_elementwise_kernel<pow_tensor_scalar_kernel_impl>",
    "square": "vectorized_elementwise_kernel<pow_tensor_scalar_kernel_impl>",
    "mean": "void at::native::reduce_kernel<512, 1, ReduceOp<float, MeanOps<float>>>",
    "sum": "void at::native::reduce_kernel<512, 1, ReduceOp<float, func_wrapper_t<float, sum_functor<float>>>>",
    "var": "void at::native::reduce_kernel<512, 1, ReduceOp<float, WelfordOps<float>>>",
    "amax": "void at::native::reduce_kernel<512, 1, ReduceOp<float, MaxOps<float>>>",
    "rsqrt": "vectorized_elementwise_kernel<rsqrt_kernel_cuda>",
    "sqrt": "vectorized_elementwise_kernel<sqrt_kernel_cuda>",
    "linalg_vector_norm": "void at::native::reduce_kernel<512, 1, ReduceOp<float, NormTwoOps<float, float, float>>>",
    "clamp_min": "vectorized_elementwise_kernel<launch_clamp_scalar>",
    "exp": "vectorized_elementwise_kernel<exp_kernel_cuda>",
    "exp2": "vectorized_elementwise_kernel<exp2_kernel_cuda>",
    "log": "vectorized_elementwise_kernel<log_kernel_cuda>",
    "_softmax": "cunn_SoftMaxForward<4>",
    "mm": "nvjet_sm90_tst_256x128",
}
BIG, SMALL = 150.0, 2.0

RMS = (("pow", X), ("mean", X), ("add", ROW), ("rsqrt", ROW), ("mul", X, ROW), ("mul", X, [2048]))
LAYER = (
    ("mean", X), ("sub", X, ROW), ("pow", X), ("mean", X), ("add", ROW), ("sqrt", ROW), ("div", X, ROW), ("mul", X, [2048]), ("add", X, [2048]),
)  # fmt: skip
SOFTMAX = (("amax", X), ("sub", X, ROW), ("exp", X), ("sum", X), ("div", X, ROW))


def chain(ops, dtype="float", shapes=True, named=True, rest=200.0, around=None, backward=(), types=None):
    """The ops one after the other, each a kernel, and a product of `rest` µs. types: those of an op's tensors by its place, where they are not `dtype`."""

    def body(trace, host, gpu):
        if around:
            trace.op(around, host, 2 * len(ops))
        for k, (name, *dims) in enumerate(ops):
            dur = SMALL if dims[0] == ROW else BIG
            if named:
                trace.op(f"aten::{name}", host + 2 * k, 1.8, dims if shapes else None, (types or {}).get(k, [dtype] * len(dims)), sequence=k)
            kernel = KERNELS.get(name, f"vectorized_elementwise_kernel<{name}>")
            trace.launch(host + 2 * k + 0.2, gpu, gpu + dur, kernel, dur=1)
            gpu += dur
        if named:
            trace.op("aten::mm", host + 40, 4, [[2048, 2048]] * 2 if shapes else None)
        trace.launch(host + 41, gpu, gpu + rest, KERNELS["mm"])
        gpu += rest
        for k, (sequence, count) in enumerate(backward):
            at = host + 50 + 10 * k
            trace.op("autograd::engine::evaluate_function: MulBackward0", at, 9, sequence=sequence, tid=2)
            for i in range(count):
                trace.op("aten::mul", at + 2 * i, 1.8, [X, X], tid=2)
                trace.launch(at + 2 * i + 0.2, gpu, gpu + BIG, "vectorized_elementwise_kernel<mul>", tid=2)
                gpu += BIG

    total = sum(SMALL if o[1] == ROW else BIG for o in ops) + rest + BIG * sum(count for _, count in backward)
    return queued(body, host=100, gpu=total + 1)


# 67 M elements of 4 bytes, read and written at 4.27 TB/s and 1.8 times that: 226 µs.
FUSED_US = 226


def of_rows(rows):
    """The same norm of as many elements in a few long rows, each op of it 150 µs."""
    shapes = {tuple(X): [rows, 67_108_864 // rows // 2048, 2048], tuple(ROW): [rows, 1, 1]}
    return chain([(name, *(shapes.get(tuple(dims), dims) for dims in all_dims)) for name, *all_dims in LAYER])


def test_one_op_has_a_block_a_row_and_few_of_them_reach_little_of_the_bandwidth():
    # Of 132 multiprocessors 64 rows keep 64 / 66 of the bandwidth, 32 half of that.
    for rows, us in ((64, FUSED_US * 66 / 64), (32, FUSED_US * 66 / 32)):
        assert found("unfused-norm", of_rows(rows)).saving.expected_us == pytest.approx(len(LAYER) * BIG - us, rel=0.02)
    assert "take" in clear("unfused-norm", of_rows(8)), "226 µs by 66 / 8 are more than the nine kernels take"


def test_a_scale_of_one_value_is_no_statistic_of_a_single_row():
    shapes = chain((("mul", X, [1, 1, 1]), *RMS)).get(Shapes)
    assert _rows(shapes, [0]) == 1 and _rows(shapes, range(1 + len(RMS))) == 8 * 4096


def test_what_is_done_to_a_weight_tells_no_rows_and_a_softmax_has_some():
    weighted = chain((("copy_", X, X), *RMS[:-1], ("mul", X, [16])))
    plain = chain((("copy_", X, X), *RMS[:-1], ("mul", X, [2048])))
    savings = [found("unfused-norm", trace).saving.expected_us for trace in (weighted, plain)]
    assert savings[0] == pytest.approx(savings[1])
    few = {tuple(X): [8, 4096 * 2048], tuple(ROW): [8, 1]}
    clear("unfused-norm", chain([(name, *(few[tuple(dims)] for dims in all_dims)) for name, *all_dims in SOFTMAX]))


@pytest.mark.parametrize(
    ("ops", "kind", "call"),
    [(RMS, "RMSNorm", "rms_norm"), (LAYER, "LayerNorm", "layer_norm"), (SOFTMAX, "softmax", "torch.softmax")],
)
def test_written_out_ops_are_found(ops, kind, call):
    finding = found("unfused-norm", chain(ops))
    assert finding.title.startswith(kind) and call in finding.fix.code.after
    spent = sum(SMALL if o[1] == ROW else BIG for o in ops)
    assert finding.saving.expected_us == pytest.approx(spent - FUSED_US, rel=0.05)
    assert finding.evidence[0].label.startswith(f"{kind}: {ops[0][0]} → ") and "[8, 4096, 2048]" in finding.evidence[0].label


@pytest.mark.parametrize(
    "ops",
    [
        (("copy_", X, X), *RMS[:-1], ("copy_", X, X), RMS[-1]),  # Llama's: FP32 inside
        (("mean", X), ("var", X), ("sub", X, ROW), ("add", ROW), ("sqrt", ROW), ("div", X, ROW)),
        (
            ("mean", X),
            ("sub", X, ROW),
            ("pow", X),
            ("mean", X),
            ("sub", X, ROW),
            ("mul", X, [2048]),
            ("add", ROW),
            ("sqrt", ROW),
            ("div", X, ROW),
        ),
        (("mean", X), ("std", X), ("sub", X, ROW), ("mul", X, [2048]), ("add", ROW), ("div", X, ROW), ("add", X, [2048])),
        (("exp", X), ("sum", X), ("div", X, ROW)),
        (("amax", X), ("sub", X, ROW), ("exp", X), ("sum", X), ("log", ROW), ("sub", X, ROW)),
        (("_softmax", X), ("log", X)),
    ],
)
def test_other_spellings_are_found(ops):
    assert found("unfused-norm", chain(ops, rest=50), min_saving_share=0.01)


@pytest.mark.parametrize(("x", "statistic", "is_norm"), [([1, 1, 2048], [1, 1, 1], True), ([1, 16, 2048], [1, 1, 1], False), ([2048], [1], False)])
def test_the_norm_of_one_decoded_word(x, statistic, is_norm):
    """One row has one statistic, with as many axes; one for all rows, or for a vector of anything, is no norm of rows."""
    ops = tuple((name, *({tuple(X): x, tuple(ROW): statistic}.get(tuple(dims), dims) for dims in shapes)) for name, *shapes in RMS)
    (found if is_norm else clear)("unfused-norm", chain(ops))


W = [2048]
SQUARES = (("pow", X), ("mean", X))
FURTHER = {
    "RMSNorm": {
        "scaled before": (("mul", W, X), *SQUARES, ("add", ROW), ("sqrt", ROW), ("div", X, ROW)),
        "a power of -0.5": (*SQUARES, ("add", ROW), ("pow", ROW), ("mul", X, ROW), ("mul", X, W)),
        "epsilon after the root": (*SQUARES, ("sqrt", ROW), ("add", ROW), ("div", X, ROW), ("mul", X, W)),
        "clamped": (*SQUARES, ("clamp_min", ROW), ("rsqrt", ROW), ("mul", X, ROW), ("mul", X, W)),
        "by the norm": (("linalg_vector_norm", X), ("mul", ROW), ("add", ROW), ("div", X, ROW), ("mul", X, W)),
        "the norm over a root": (("linalg_vector_norm", X), ("div", ROW), ("div", X, ROW), ("mul", X, W)),
        "F.normalize and scales": (("linalg_vector_norm", X), ("clamp_min", ROW), ("div", X, ROW), ("mul", X), ("mul", X, W)),
        "a sum over the number": (("mul", X, X), ("sum", X), ("div", ROW), ("add", ROW), ("rsqrt", ROW), ("mul", X, ROW), ("mul", X, W)),
        "one and a weight": (("copy_", X, X), *RMS[:5], ("copy_", W, W), ("add", W), ("mul", X, W), ("copy_", X, X)),
        "a reciprocal root": (*SQUARES, ("add", ROW), ("sqrt", ROW), ("reciprocal", ROW), ("mul", X, ROW), ("mul", X, W)),
    },
    "LayerNorm": {
        "annotated": (("mean", X), ("sub", X, ROW), ("mul", W, X), ("std", X), ("add", ROW), ("div", X, ROW), ("add", X, W)),
        "addcmul": (*LAYER[:5], ("rsqrt", ROW), ("mul", X, ROW), ("addcmul", W, X, W)),
        "the mean of squares": (("mean", X), *SQUARES, ("pow", ROW), ("sub", ROW), ("sub", X, ROW), ("add", ROW), ("sqrt", ROW), ("div", X, ROW)),
        "a power": (("mean", X), ("var", X), ("sub", X, ROW), ("add", ROW), ("pow", ROW), ("mul", X, ROW)),
        "the variance first": (("var", X), ("mean", X), ("sub", X, ROW), ("add", ROW), ("rsqrt", ROW), ("mul", X, ROW), ("mul", X, W), ("add", X, W)),
    },
    "softmax": {
        "powers of two": (("amax", X), ("sub", X, ROW), ("mul", X), ("exp2", X), ("sum", X), ("div", X, ROW)),
        "a reciprocal": (("amax", X), ("sub", X, ROW), ("exp", X), ("sum", X), ("reciprocal", ROW), ("mul", X, ROW)),
        "an epsilon": (("exp", X), ("sum", X), ("add", ROW), ("div", X, ROW)),
        "a temperature": (("amax", X), ("sub", X, ROW), ("div", X), ("exp", X), ("sum", X), ("div", X, ROW)),
        "a mask of factors": (("amax", X), ("sub", X, ROW), ("exp", X), ("mul", X, X), ("sum", X), ("div", X, ROW)),
        "exp called twice": (("exp", X), ("exp", X), ("sum", X), ("div", X, ROW)),
    },
    "log-softmax": {
        "an epsilon": (("_softmax", X), ("add", X), ("log", X)),
        "clamped": (("_softmax", X), ("clamp", X), ("log", X)),
        "the largest added again": (("amax", X), ("sub", X, ROW), ("exp", X), ("sum", X), ("log", ROW), ("add", ROW), ("sub", X, ROW)),
    },
}


@pytest.mark.parametrize(
    ("kind", "spelling"), sampled([(kind, spelling) for kind, spellings in FURTHER.items() for spelling in spellings], 1 if MANY_SAMPLES else 4)
)
def test_further_spellings_are_seen_whole(kind, spelling):
    ops = FURTHER[kind][spelling]
    finding = found("unfused-norm", chain(ops, rest=50), min_saving_share=0.01)
    label = finding.evidence[0].label
    assert label.startswith(f"{kind}: ") and label.count("→") + 1 == len(ops)


def test_a_gate_before_a_norm_is_none_of_it():
    finding = found("unfused-norm", chain((("mul", X, X), *RMS)))
    assert finding.evidence[0].label.startswith("RMSNorm: pow → ")


def test_the_threshold_has_two_sides():
    trace = chain(RMS)  # gains 378 of 804 µs
    assert found("unfused-norm", trace, min_saving_share=0.45)
    assert "threshold 48%" in clear("unfused-norm", trace, min_saving_share=0.48)


def test_the_backward_pass_belongs_to_it():
    finding = found("unfused-norm", chain(RMS, backward=((4, 3), (0, 3), (77, 2))))
    assert any(e.label == "RMSNorm, backward: 6 kernels" for e in finding.evidence)
    # Six kernels of 150 µs become one of five passes: 1.8 * 5 * 63 µs.
    assert finding.saving.expected_us == pytest.approx(604 - FUSED_US + 900 - 2.5 * FUSED_US, rel=0.05)


@pytest.mark.parametrize(
    "ops",
    [
        (("pow", X), ("sum", X), ("sqrt", ROW), ("div", X, ROW)),  # x / |x|: no fused op
        (("linalg_vector_norm", X), ("div", X, ROW)),
        (("linalg_vector_norm", X), ("clamp_min", ROW), ("div", X, ROW)),  # F.normalize
        (("pow", X), ("mean", X), ("add", [1]), ("rsqrt", [1]), ("mul", X, [1])),  # one value for all
        (("pow", X), ("mean", X), ("add", [2048]), ("rsqrt", [2048]), ("mul", X, [2048])),  # over the batch
        (("sub", X, X), ("pow", X), ("mean", X)),  # a loss
        (("mul", X), ("add", X), ("mul", X)),  # pointwise: unfused-elementwise
        (("exp", X), ("mul", X), ("sum", X)),
    ],
)
def test_other_reductions_are_quiet(ops):
    clear("unfused-norm", chain(ops))


def test_short_rows_are_quiet():
    short = [8, 4096, 8]
    ops = (("pow", short), ("mean", short), ("add", ROW), ("rsqrt", ROW), ("mul", short, ROW))
    clear("unfused-norm", chain(ops))


def test_statistics_that_are_kept_are_no_norm():
    """A batch norm by hand, its shapes not recorded: what follows the mean and the variance are their averages over time."""
    kept = (("mul", ROW), ("mul", ROW), ("add", ROW))
    ops = (("mean", X), ("var", X), *kept, *kept, ("sub", X, ROW), ("add", ROW), ("sqrt", ROW), ("div", X, ROW), ("mul", X), ("add", X))
    clear("unfused-norm", chain(ops, shapes=False))


def test_what_pytorch_writes_out_itself_is_quiet():
    clear("unfused-norm", chain(LAYER, around="aten::layer_norm"))


MIXED = (("copy_", X, X), *RMS[:-1], ("copy_", X, X), RMS[-1])
BF16 = "c10::BFloat16"
OF_MIXED = {0: ["float", BF16], 6: [BF16, "float"], 7: [BF16, "float"]}


def test_a_weight_of_another_type_leaves_the_casts_or_has_to_be_cast():
    finding = found("unfused-norm", chain(MIXED, types=OF_MIXED))
    assert "weight.to(x.dtype)" in finding.fix.code.after
    # The cast into FP32 stays, and what is FP32 is read and written: 5 kernels and two short ones become one.
    assert finding.saving.expected_us == pytest.approx(5 * BIG + 2 * SMALL - FUSED_US, rel=0.05)
    # In bf16 all six become one that reads 2 bytes and writes 4 an element, at the bandwidth of large copies.
    assert finding.saving.high_us == pytest.approx(6 * BIG + 2 * SMALL - 94 + 0.08 * 1000, rel=0.1)
    assert "7 kernels" in finding.summary, "of those that go"
    assert "weight.to" not in found("unfused-norm", chain(MIXED, dtype=BF16)).fix.code.after


@pytest.mark.parametrize(("types", "after"), [(OF_MIXED, "weight.to(x.dtype)"), ({}, "@torch.compile")], ids=["two types", "one type, so that PyTorch is old"])
def test_rms_norm_without_a_kernel_of_its_own_is_written_out_inside(types, after):
    """Its backward pass is found by the sequence numbers of the ops inside."""
    finding = found("unfused-norm", chain(MIXED, types=types, around="aten::rms_norm", backward=((0, 4), (5, 2))))
    assert finding.fix.code.before.startswith("y = torch.nn.functional.rms_norm(") and after in finding.fix.code.after
    assert not any("Replace the unfused" in step for step in finding.fix.steps)
    assert any("backward: 6 kernels" in e.label for e in finding.evidence)


def test_a_compiled_norm_is_quiet():
    clear("unfused-norm", chain((("triton_red_fused_mean_mul_pow_rsqrt_0", X), ("mul", X))))


def test_names_of_kernels_alone_are_enough():
    ops = tuple((name, *dims) for name, *dims in (("pow", X), ("mean", X), ("rsqrt", ROW), ("mul", X)))
    trace = chain(ops, shapes=False, named=False)
    assert "no norm" in clear("unfused-norm", trace)  # "mul" is no kernel's name
    KERNELS["mul"] = "elementwise_kernel<128, 2, BinaryFunctor<MulFunctor<float>>>"
    try:
        finding = found("unfused-norm", chain(ops, shapes=False, named=False))
    finally:
        del KERNELS["mul"]
    assert finding.confidence < 0.7
