"""gemm-alignment: which sizes of a product begin rows off 16 bytes; quiet on rows that may be anything, and on fast or small ones."""

import pytest

from tests.rules.test_rules import clear, found, queued, skipped

BF16 = "c10::BFloat16"
SLOW = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>"
HALFWAY = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>"
FAST, PLAIN = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "void gemm_kernel"
TF32 = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_32x3_tn_align1>"


def product(m=8192, k=4096, n=4097, us=2844.0, name=SLOW, dtype=BF16, strides=("MK", "NK"), op="aten::mm", beside=None, batch=(), tensor_cores=FAST):
    """One product a step. `strides` names the order in memory of A and B, innermost last: "MK" is row-major A; None: not recorded."""

    def layout(order, down, along, sizes):
        lead = [sizes[along], 1] if order == down + along else [1, sizes[down]]
        return [*([sizes[down] * sizes[along]] * len(batch)), *lead]

    def body(trace, host, gpu):
        sizes = {"M": m, "K": k, "N": n}
        bias = [[n]] if "addmm" in op else []
        trace.op(op, host, 4, [*bias, [*batch, m, k], [*batch, k, n]], [dtype] * (2 + len(bias)))
        if strides:
            operands = [layout(strides[0], "M", "K", sizes), layout(strides[1], "K", "N", sizes)]
            trace.rows["cpu_ops"][-1]["strides"] = str([*([[1]] * len(bias)), *operands])
        trace.launch(host + 1, gpu, gpu + us, name)
        if beside:
            trace.op("aten::mm", host + 5, 4, [[8192, 4096], [4096, 4096]], [dtype] * 2)
            trace.rows["cpu_ops"][-1]["strides"] = "[[4096, 1], [1, 4096]]"
            trace.launch(host + 6, gpu + us, gpu + us + beside, tensor_cores)

    return queued(body, host=12, gpu=us + (beside or 0) + 1)


def test_rows_that_padding_hardly_adds_to_are_not_said_to_cost_nothing():
    finding = found("gemm-alignment", product(m=50358, n=4096, us=17_000.0, strides=("KM", "NK")))
    assert finding.evidence[0].label.endswith("M = 50358 → 50368 (+0.02%)")
    assert "M = 50358, to 50368: 0.02% more work" in finding.fix.steps[0]


# 8192 × 4096 × 4096 in BF16 at 0.8 of an H200's 989 TFLOP/s.
LIMIT_US = 2 * 8192 * 4096 * 4096 / (0.8 * 989e6)


def test_an_odd_vocabulary_is_found():
    finding = found("gemm-alignment", product(k=768, n=50257, us=6623.0))
    assert finding.evidence[0].label == "aten::mm 8192 × 768 × 50257 (M × K × N): N = 50257 → 50304 (+0.1%)"
    assert finding.fix.code.before == "nn.Linear(768, 50257)" and finding.fix.code.after == "nn.Linear(768, 50304)"
    # Aligned, the same product was measured at 905 µs.
    assert finding.saving.expected_us == pytest.approx(6623 - 905, rel=0.05) and finding.severity == "high"
    assert finding.saving.low_us < finding.saving.expected_us < finding.saving.high_us


@pytest.mark.parametrize(
    ("sizes", "strides", "wrong"),
    [
        ({"n": 4097}, ("MK", "NK"), "N = 4097 → 4104"),
        ({"n": 4096, "k": 4097}, ("MK", "NK"), "K = 4097 → 4104"),
        ({"n": 4096, "k": 4098}, ("MK", "KN"), "K = 4098 → 4104"),
        ({"n": 4096, "m": 4097}, ("KM", "NK"), "M = 4097 → 4104"),
        ({"n": 4097, "k": 4097}, ("MK", "NK"), "K = 4097 → 4104 (+0.2%), N = 4097 → 4104 (+0.2%)"),
    ],
)
def test_the_size_that_begins_the_rows_is_named(sizes, strides, wrong):
    finding = found("gemm-alignment", product(**sizes, strides=strides))
    assert wrong in finding.evidence[0].label


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        ({"n": 4096, "m": 8191}, ("MK", "NK")),  # rows of A may be any number
        ({"n": 4096, "k": 8191, "m": 4096}, ("KM", "KN")),  # the gradient of a weight: K is the number of rows
        ({"n": 4104}, ("MK", "NK")),
    ],
)
def test_a_number_of_rows_may_be_anything(sizes, strides):
    assert "0 of 1" in clear("gemm-alignment", product(**sizes, strides=strides, name=PLAIN))


def test_other_types_have_other_multiples():
    for n, heard in ((4098, True), (4100, False)):
        trace = product(n=n, dtype="float", name=TF32, us=2043.0)
        assert found("gemm-alignment", trace) if heard else "0 of 1" in clear("gemm-alignment", trace)
    for k, heard in ((4104, True), (4112, False)):
        trace = product(n=4096, k=k, dtype="c10::Float8_e4m3fn", name="gemm_e4m3", us=2000.0, op="aten::_scaled_mm")
        assert found("gemm-alignment", trace) if heard else "0 of 1" in clear("gemm-alignment", trace)


CUDA_CORES = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n"


def test_nothing_is_said_of_the_rows_of_products_on_cuda_cores():
    alone = clear("gemm-alignment", product(dtype="float", name=CUDA_CORES, us=9000.0))
    assert "none with known sizes" in alone and "multiple of 16" not in alone
    # N = 4097 floats are no multiple of 16 bytes, but no count of those on Tensor Cores holds them.
    mixed = product(dtype="float", name=CUDA_CORES, us=9000.0, beside=600.0, tensor_cores=TF32)
    assert "0 of 1 GEMM on Tensor Cores" in clear("gemm-alignment", mixed)


def test_both_thresholds_have_two_sides():
    trace = product(us=1000.0, name=HALFWAY)  # reaches 0.35; padded it would gain 0.58
    assert abs(LIMIT_US - 347) < 3
    assert found("gemm-alignment", trace, max_rate_share=0.36)
    clear("gemm-alignment", trace, max_rate_share=0.34)
    assert found("gemm-alignment", trace, min_saving_share=0.57)
    assert "threshold 60%" in clear("gemm-alignment", trace, min_saving_share=0.60)


def test_products_of_the_same_trace_give_the_rate():
    finding = found("gemm-alignment", product(beside=2 * LIMIT_US))
    assert finding.saving.expected_us == pytest.approx(2844 - 2 * LIMIT_US, rel=0.02)


def test_padding_is_paid_for():
    finding = found("gemm-alignment", product(n=257, us=150.0))
    assert "N = 257 → 264 (+2.7%)" in finding.evidence[0].label
    assert finding.saving.expected_us == pytest.approx(150 - (LIMIT_US / 4096 * 264 / 0.85 + 8), abs=0.3)


def test_short_ones_are_bound_by_filling_the_device():
    assert found("gemm-alignment", product(m=512, k=1024, us=60.0))
    clear("gemm-alignment", product(m=512, k=1024, us=19.0))


def test_fast_small_and_memory_bound_ones_are_quiet():
    clear("gemm-alignment", product(us=500.0))
    clear("gemm-alignment", product(m=64, k=8192, n=4097, us=84.0))
    clear("gemm-alignment", product(m=1, k=8192, n=4097, us=400.0))
    clear("gemm-alignment", product(name=SLOW.replace("align1", "align8")))


def test_biases_and_batches_are_understood():
    assert found("gemm-alignment", product(op="aten::addmm"))
    assert found("gemm-alignment", product(op="aten::bmm", batch=(4,), us=11000.0))
    assert "no GEMMs" in clear("gemm-alignment", product(op="aten::einsum", name="elementwise_kernel"))


def test_without_strides_it_is_less_sure():
    assert found("gemm-alignment", product(strides=None)).confidence < found("gemm-alignment", product()).confidence


def test_without_shapes_it_is_skipped():
    assert "shapes" in skipped("gemm-alignment", queued(lambda t, h, g: t.launch(h, g, g + 100, SLOW), gpu=101))
