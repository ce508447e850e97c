"""memory-layout: conversions around convolutions, and copies that turn an image; quiet on other transposes."""

import pytest

from advisor.views.patterns.memory_format import ChannelsLast
from tests.rules.test_rules import clear, found, queued

IMAGE = [64, 128, 56, 56]
CONV = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float, false, true>"
NCHW, NHWC = [128 * 56 * 56, 56 * 56, 56, 1], [128 * 56 * 56, 1, 56 * 128, 128]


def convolution(convert=20.0, conv=60.0, name=TO_NHWC, op="aten::cudnn_convolution", dims=IMAGE, norm=""):
    def body(trace, host, gpu):
        trace.op(op, host, 10, [dims, [128, 128, 3, 3]], ["c10::BFloat16"] * 2)
        trace.launch(host + 1, gpu, gpu + convert, name).launch(host + 5, gpu + convert, gpu + convert + conv, CONV)
        if norm:
            trace.op("aten::native_batch_norm", host + 12, 8, [dims, [128], [128], [128], [128]], ["c10::BFloat16", *["float"] * 4])
            trace.launch(host + 14, gpu + convert + conv, gpu + convert + conv + 300, norm)

    return body


def test_conversions_of_a_convolution_are_found():
    finding = found("memory-layout", queued(convolution(), gpu=81))
    assert (finding.saving.low_us, finding.saving.expected_us) == (pytest.approx(20 - 0.05 * 81, abs=2), pytest.approx(20, rel=0.1))
    assert finding.evidence[0].label == "NCHW → NHWC in aten::cudnn_convolution [64, 128, 56, 56]"
    assert "torch.channels_last" in finding.fix.code.after and "64 × 128 × 56 × 56" in finding.fix.code.before


def test_a_filter_larger_than_the_images_is_none():
    """64 x 16 images of 4 x 4 hold 16 k elements, 128 x 128 filters of 3 x 3 hold 147 k."""
    assert "64 × 16 × 4 × 4" in found("memory-layout", queued(convolution(dims=[64, 16, 4, 4]), gpu=81)).fix.code.before


def test_both_thresholds_have_two_sides():
    trace = queued(convolution(), gpu=81)  # 20 of 80 µs
    assert found("memory-layout", trace, min_layout_share=0.24)
    assert "threshold 26%" in clear("memory-layout", trace, min_layout_share=0.26)
    assert found("memory-layout", trace, min_saving_share=0.20)
    assert "threshold 30%" in clear("memory-layout", trace, min_saving_share=0.30)


def test_turning_the_input_once_is_quiet():
    assert "2.0%" in clear("memory-layout", queued(convolution(convert=2, conv=98), gpu=101))


def test_batch_norms_in_nchw_gain_too():
    own = "void at::native::batch_norm_collect_statistics_kernel<at::native::Var, c10::BFloat16>"
    finding = found("memory-layout", queued(convolution(norm=own), gpu=381))
    # 25.7 M elements of 2 bytes read and written at 4.27 TB/s take 24 µs; five times that instead of 300.
    assert finding.saving.low_us == pytest.approx(20 - 0.05 * 381, abs=2)
    assert finding.saving.expected_us == pytest.approx(20 + 300 - 5 * 24, rel=0.05)
    last = own.replace("_kernel", "_channels_last_kernel")
    finding = found("memory-layout", queued(convolution(norm=last), gpu=381))
    assert finding.saving.expected_us == pytest.approx(20, abs=2) and "already" in finding.fix.steps[0]


IN_TF32 = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc"
OF_CUDNN = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>"


def in_tf32(norm=OF_CUDNN, conv=IN_TF32, took=300, image=IMAGE, turned=TO_NHWC, normed=()):
    """A convolution of `image`, turned for 20 µs, and a batch norm of it by cuDNN, as of a tensor of the shape `normed`."""

    def body(trace, host, gpu):
        trace.op("aten::cudnn_convolution", host, 10, [image, [128, 128, *[3] * (len(image) - 2)]], ["float"] * 2)
        trace.launch(host + 1, gpu, gpu + 20, turned).launch(host + 5, gpu + 20, gpu + 80, conv)
        trace.op("aten::cudnn_batch_norm", host + 12, 8, [list(normed) or image, [128], [128], [128], [128]], ["float"] * 5)
        trace.launch(host + 14, gpu + 80, gpu + 80 + took, norm)

    return queued(body, gpu=81 + took)


def test_cudnns_batch_norms_in_nchw_make_the_layout_known_to_gain_in_tf32():
    finding = found("memory-layout", in_tf32())
    # 25.7 M elements of 4 bytes read and written at 4.27 TB/s take 48 µs; one and a half times that instead of 300.
    assert finding.status == "found" and finding.saving.expected_us == pytest.approx(20 + 300 - 1.5 * 48, rel=0.05)
    assert finding.saving.low_us == pytest.approx(300 - 1.5 * 48 - 0.05 * 381, rel=0.05), "either layout may be the faster one for the convolutions"


def test_cudnns_batch_norms_in_nchw_are_told_where_nothing_is_turned():
    finding = found("memory-layout", in_tf32(turned="tensor_op"))
    assert (
        finding.title == "Batch norms run a single block per channel"
        and "1 kernel per step takes 300 µs of 381 µs for cuDNN's batch norms of tensors in NCHW" in finding.summary
    )
    assert finding.saving.expected_us == pytest.approx(300 - 1.5 * 48, rel=0.05) and {item.label for item in finding.evidence} == {
        f"aten::cudnn_batch_norm {IMAGE}"
    }
    # A convolution over sequences is one over images of a row for the library; its norms are of no image.
    assert "take 0% of busy time" in clear("memory-layout", in_tf32(turned="tensor_op", normed=[64, 128, 3136]))
    assert "take 0% of busy time" in clear("memory-layout", in_tf32(turned="tensor_op", took=8)), "short norms"


@pytest.mark.parametrize(
    "trace",
    [
        in_tf32(norm=OF_CUDNN.replace("fw_tr", "fw_inf")),
        in_tf32(norm=OF_CUDNN.replace("NCHW", "NHWC")),
        in_tf32(conv=IN_TF32.replace("tf32", "f32")),
        in_tf32(image=[64, 128, 14, 14, 16]),
        in_tf32(took=8),
    ],
    ids=["inference", "channels_last already", "without Tensor Cores", "volumes", "short norms"],
)
def test_elsewhere_either_layout_may_be_the_faster_one(trace):
    assert found("memory-layout", trace).status == "possible"


def test_beside_group_norms_nothing_is_said():
    """PyTorch's take and return NCHW on the GPU: two networks of them took 14 and 17 % longer in channels_last."""

    def body(trace, host, gpu):
        convolution()(trace, host, gpu)
        trace.op("aten::native_group_norm", host + 12, 8, [IMAGE], ["c10::BFloat16"]).launch(host + 14, gpu + 80, gpu + 90, "vectorized_elementwise_kernel")

    assert "take and return NCHW" in clear("memory-layout", queued(body, gpu=91))


@pytest.mark.parametrize(
    ("weight", "kept"),
    [
        ([128, 128, 3, 3], True),
        ([128, 1, 3, 3], True),  # depthwise
        ([128, 4, 3, 3], False),  # 32 groups of 4 channels
        ([64, 128, 3, 3], False),  # halves the channels
        ([64, 128, 1, 1], True),
    ],
)
def test_a_compiled_training_step_keeps_the_layout_as_inductor_chooses(weight, kept):
    trace = queued(lambda t, h, g: t.op("aten::cudnn_convolution", h, 10, [IMAGE, weight], ["c10::BFloat16"] * 2).launch(h + 1, g, g + 60, CONV), gpu=61)
    assert trace.get(ChannelsLast).by_compiler is kept


def test_few_channels_stay_in_nchw_when_compiled():
    dims = [[64, 64, 56, 56], [64, 64, 3, 3]]
    trace = queued(lambda t, h, g: t.op("aten::cudnn_convolution", h, 10, dims, ["c10::BFloat16"] * 2).launch(h + 1, g, g + 60, CONV), gpu=61)
    assert not trace.get(ChannelsLast).by_compiler


def test_conversions_hidden_behind_a_slow_host_gain_nothing():
    assert "threshold 3%" in clear("memory-layout", queued(convolution(), host=400, gpu=400))


def test_miopen_transposes_count_inside_convolutions_only():
    assert found("memory-layout", queued(convolution(name="batched_transpose_32x32_half", op="aten::miopen_convolution"), gpu=81))

    def body(trace, host, gpu):
        trace.op("te::cast_transpose", host, 8, [[4096, 4096]]).launch(host + 1, gpu, gpu + 30, "transpose_optimized_kernel")
        trace.op("aten::mm", host + 9, 8, [[4096, 4096]] * 2).launch(host + 10, gpu + 30, gpu + 100, "nvjet_sm90_tst")

    clear("memory-layout", queued(body, gpu=101))


def test_padding_channels_is_no_conversion():
    clear("memory-layout", queued(convolution(name="void nhwcAddPaddingKernel<__nv_bfloat16>"), gpu=81))


def test_sequences_have_no_channels_last():
    for dims in ([64, 128, 1, 3136], [64, 128, 3136]):  # 20 of 80 µs are left out, and said to be
        why = clear("memory-layout", queued(convolution(dims=dims), gpu=81))
        assert "convert images between layouts take 0%" in why and "1-D convolutions (no channels_last) account for 25%" in why


def copying(target, source, dims=IMAGE, around="aten::contiguous", conv=60.0):
    def body(trace, host, gpu):
        trace.op(around, host, 10).op("aten::copy_", host + 1, 8, [dims, dims, []], ["c10::BFloat16"] * 2 + ["Scalar"])
        trace.rows["cpu_ops"][-1]["strides"] = f"[{target}, {source}, []]"
        trace.launch(host + 2, gpu, gpu + 20, "void at::native::elementwise_kernel<direct_copy_kernel_cuda>")
        trace.op("aten::cudnn_convolution", host + 12, 10, [dims, [128, 128, 3, 3]], ["c10::BFloat16"] * 2)
        trace.launch(host + 14, gpu + 20, gpu + 20 + conv, CONV)

    return body


@pytest.mark.parametrize(("target", "source"), [(NHWC, NCHW), (NCHW, NHWC)])
def test_copies_that_turn_an_image_are_found(target, source):
    finding = found("memory-layout", queued(copying(target, source), gpu=81))
    assert finding.evidence[0].label == "transposed in aten::copy_ [64, 128, 56, 56]"


def test_other_copies_are_quiet():
    clear("memory-layout", queued(copying(NCHW, NCHW), gpu=81))
    heads = [128 * 56 * 56, 56, 56 * 128, 1]  # [N, L, H, D] seen as [N, H, L, D]: attention's heads, not channels
    clear("memory-layout", queued(copying(NCHW, heads), gpu=81))
    clear("memory-layout", queued(copying(NCHW, NHWC, around="aten::matmul"), gpu=81))
    clear("memory-layout", queued(copying(NCHW, NHWC, conv=1.0), host=25, gpu=26))


def test_kernels_without_ops_are_told_by_name():
    def body(trace, host, gpu):
        trace.launch(host, gpu, gpu + 20, TO_NHWC).launch(host + 5, gpu + 20, gpu + 80, CONV)

    finding = found("memory-layout", queued(body, gpu=81))
    assert finding.confidence < 0.9 and "nchwToNhwcKernel" in finding.evidence[0].label
