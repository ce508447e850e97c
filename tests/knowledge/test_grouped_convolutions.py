"""Which convolutions in groups leave the Tensor Cores in 16 bits, as measured; and that a fix leaves them in TF32."""

import pytest

from advisor.knowledge.grouped_convolutions import falls_back
from tests.rules.test_rules import found, queued

WAV2VEC = [16, 768, 299], [768, 48, 128]


@pytest.mark.parametrize(
    ("image", "weight", "expected"),
    [
        (*WAV2VEC, True),
        ([16, 768, 1, 299], [768, 48, 1, 128], True),  # as cuDNN is asked for it
        ([16, 512, 299], [512, 32, 128], False),
        ([8, 1024, 299], [1024, 64, 128], False),  # HuBERT large
        ([16, 2048, 299], [2048, 128, 128], True),
        ([16, 768, 299], [768, 48, 31], False),
        ([16, 768, 299], [768, 768, 128], False),  # one group
        ([32, 384, 28, 28], [384, 1, 7, 7], False),  # depthwise
        ([32, 256, 28, 28], [256, 8, 3, 3], False),
        ([], [], False),
        ([16, 768, 299], [768, 0, 128], False),
    ],
)
def test_long_filters_of_unusual_width_leave_the_tensor_cores(image, weight, expected):
    assert falls_back(image, weight) is expected


TF32 = "cutlass_tensorop_s1688fprop_analytic_tf32_128x64"


def convolution_beside_a_product(weight, name="aten::cudnn_convolution", before=(), kernel=TF32):
    """100 µs of a convolution (in TF32 unless its kernel says otherwise) and 1000 µs of an FP32 product that takes 16 bits well, a step."""

    def step(trace, host, gpu):
        dims = [*before, [16, 768, 1, 299], weight]
        trace.op(name, host, 20, dims, ["float"] * len(dims)).launch(host + 5, gpu, gpu + 99, kernel)
        product = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8"
        trace.op("aten::mm", host + 22, 20, [[2048, 2048]] * 2, ["float"] * 2).launch(host + 30, gpu + 100, gpu + 1099, product)

    return queued(step, gpu=1100)


def test_they_stay_in_tf32_and_the_fix_says_so():
    """TF32 by one line gains the same of both. In 16 bits 64 channels a group become faster, 48 keep their 99 µs."""
    faster, kept = (found("precision", convolution_beside_a_product([768, channels, 1, 128])) for channels in (64, 48))
    assert faster.saving.expected_us == pytest.approx(kept.saving.expected_us, abs=5)
    assert faster.saving.high_us == pytest.approx(kept.saving.high_us, abs=5)
    assert "enabled=False" in " ".join(kept.fix.steps) and "enabled=False" not in " ".join(faster.fix.steps)


@pytest.mark.parametrize(
    ("name", "before", "weight", "says"),
    [
        ("aten::convolution_backward", [[16, 768, 1, 300]], [768, 48, 1, 128], True),
        ("aten::convolution_backward", [[16, 48, 1, 300]], [768, 48, 1, 128], False),  # of a transposed one: its weight's second axis is all that comes out
        ("aten::cudnn_convolution_transpose", [], [768, 48, 1, 128], False),
    ],
)
def test_a_transposed_convolution_is_not_taken_for_one_in_groups(name, before, weight, says):
    finding = found("precision", convolution_beside_a_product(weight, name, before))
    assert ("enabled=False" in " ".join(finding.fix.steps)) is says


def test_pytorchs_own_depthwise_convolution_stays_as_long_in_16_bits():
    """Beside a product that becomes faster in either program, 99 µs of a library's convolution on CUDA cores do too, 99 of PyTorch's own do not."""
    own, library = "conv_depthwise2d_forward_kernel_generic<float, int>", "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x32x8"
    kept, faster = (found("precision", convolution_beside_a_product([768, 1, 1, 65], "aten::_conv_depthwise2d", kernel=kernel)) for kernel in (own, library))
    assert 50 < faster.saving.expected_us - kept.saving.expected_us < 99
    assert faster.saving.high_us == pytest.approx(kept.saving.high_us, abs=5), "what nobody has seen is possible"
