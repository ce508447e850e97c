"""precision where the device was not named: kernels tell that it has Tensor Cores for BF16, and the ratio of its rates is a range."""

import pytest

from advisor.knowledge.op_tokens.families import precision
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import Device
from advisor.views.patterns.precision import DoubleWork
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.workspace import Workspace
from tests.build import H200
from tests.rules.test_rules import clear, found, queued, skipped

FP32 = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8"


def products(name):
    trace = queued(lambda trace, host, gpu: trace.op("PjitFunction(f)", host, 20).launch(host + 5, gpu, gpu + 995, name), gpu=1000)
    trace.devices = (Device(0),)
    return trace


def test_fp32_products_of_a_device_without_a_name_are_found_with_a_wide_interval():
    finding = found("precision", products(FP32))
    saving = finding.saving
    assert "does not name the device" in finding.summary
    assert saving.low_us <= 500 < 740 < saving.expected_us < 760 < 930 < saving.high_us


def test_without_a_sign_of_tensor_cores_it_is_skipped():
    assert "not known" in skipped("precision", products("gemm_f32f32_f32f32_f32_old"))


def test_where_neither_shapes_nor_tf32_are_known_the_low_end_is_half_the_gain_in_rate():
    trace = queued(lambda trace, host, gpu: trace.launch(host + 5, gpu, gpu + 1000, "volta_sgemm_128x64_nn"), gpu=1000)
    trace.devices = (Device(0, "Tesla T4", 40, (7, 5), 16 << 30, 32),)
    saving = found("precision", trace).saving
    gone = saving.expected_us
    # 8.1 against 65 TFLOP/s: an eighth is left likely, a quarter at most.
    assert gone == pytest.approx(1000 - 1000 * 8.1 / 65, rel=0.02) and saving.low_us <= 1000 - 2 * 1000 * 8.1 / 65 + 1


def convolutions(*names, last_pictures=64):
    """Of 500 µs each, on 64 pictures of 64 channels; the last on so many, in as much less time."""

    def body(trace, host, gpu):
        for k, name in enumerate(names):
            pictures = last_pictures if k and k == len(names) - 1 else 64
            trace.op("aten::cudnn_convolution", host + 20 * k, 10, [[pictures, 64, 56, 56], [64, 64, 3, 3]], ["float"] * 2)
            trace.launch(host + 20 * k + 5, gpu + 500 * k, gpu + 500 * k + 500 * pictures / 64, name)

    return queued(body, gpu=500 * (len(names) - 1) + 500 * (last_pictures if len(names) > 1 else 64) / 64)


def test_a_convolution_that_the_library_keeps_off_tensor_cores_stays_there():
    on_cuda_cores, in_tf32 = "void cudnn::cnn::dgrad2d_grouped_direct_kernel<float, float>", "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc"
    alone = found("precision", convolutions(on_cuda_cores)).saving.expected_us
    other = found("precision", convolutions(in_tf32)).saving.expected_us
    both = found("precision", convolutions(on_cuda_cores, in_tf32)).saving
    assert alone > 400 and both.expected_us == pytest.approx(other, rel=0.05) and both.high_us > other + 400
    one = found("precision", convolutions(on_cuda_cores, in_tf32, last_pictures=1)).saving.expected_us
    assert one == pytest.approx(alone, rel=0.05), "one small one in TF32 says nothing of the others"


def test_of_runs_whose_shapes_were_not_recorded_the_longest_may_be_of_the_largest():
    def body(trace, host, gpu):
        took = 900 if host == 0 else 30
        trace.op("aten::mm", host, 20).launch(host + 5, gpu, gpu + took, FP32)
        trace.op("aten::add", host + 22, 5).launch(host + 24, gpu + took, gpu + 1000, "elementwise_kernel")

    assert "248 µs" in found("precision", queued(body, gpu=1000)).summary, "(900 + 3 * 30) / 4"


def added(*types, dims=((1 << 25,), (1 << 25,), ())):
    return queued(
        lambda trace, host, gpu: trace.op("aten::add", host, 20, list(map(list, dims)), list(types)).launch(host + 5, gpu, gpu + 1000, "elementwise_kernel"),
        gpu=1000,
    )


def test_doubles_are_found_and_gain_half_of_what_memory_takes():
    finding = found("precision", added("double", "double", "Scalar"))
    # Three tensors of 2^25 doubles are 805 MB: a sixth of a millisecond at 4.8 TB/s, a little more at the bandwidth reached; half of it goes.
    assert 805 / 4.8 / 2 < finding.saving.expected_us < 1.2 * 805 / 4.8 / 2
    assert (finding.status, finding.severity, finding.saving.low_us) == ("possible", "low", 0)


def test_bytes_on_a_device_whose_bandwidth_is_not_known_tell_no_more_than_none():
    trace = added("double", "double", "Scalar")
    trace.devices = (Device(0),)
    # Half of its time where memory holds it, nothing where something else does: a quarter.
    assert found("precision", trace).saving.expected_us == pytest.approx(250, rel=0.02)


def double_work(trace):
    workspace = Workspace(trace.timeline())
    work = workspace.get(GpuWork)
    return work, DoubleWork.build(work, workspace.get(Roofline))


@pytest.mark.parametrize(("kernel", "double"), [("ampere_dgemm_64x64_nn", True), ("zgemm_kernel", True), ("groupedgemm_kernel", False)])
def test_products_are_double_by_a_word_of_their_name(kernel, double):
    trace = queued(lambda trace, host, gpu: trace.launch(host + 5, gpu, gpu + 1000, kernel), gpu=1000)
    trace.devices = (Device(0),)
    assert (len(double_work(trace)[1].at) > 0) == double


def test_a_product_in_double_takes_the_rates_of_its_own_device():
    def body(trace, host, gpu):
        trace.launch(host + 5, gpu, gpu + 1000, "ampere_dgemm_64x64_nn")
        trace.launch(host + 15, gpu, gpu + 1000, "ampere_dgemm_64x64_nn", device=1)

    trace = queued(body, gpu=1000)
    trace.devices = (Device(0), replace(H200, id=1))
    work, found = double_work(trace)
    times = dict(zip((work.device_at(int(k)).id for k in found.at), found.best.dur_us, strict=True))
    # Half where nothing is known of a device; 67 of 494.5 TFLOP/s with TF32 on an H200.
    assert times == {0: pytest.approx(500), 1: pytest.approx(1000 * 67 / 494.5)}


def test_what_one_pair_of_types_and_shapes_says_holds_for_its_own_kernels_only():
    def body(trace, host, gpu):
        many, one = [[1 << 25], [1 << 25]], [[1 << 25], []]
        trace.op("aten::add", host, 20, many, ["double", "double"]).launch(host + 5, gpu, gpu + 400, "a_kernel")
        trace.op("aten::add", host + 30, 20, one, ["float", "double"]).launch(host + 35, gpu + 400, gpu + 700, "b_kernel")
        trace.op("aten::add", host + 60, 20, [[], []], ["double", "double"]).launch(host + 65, gpu + 700, gpu + 1000, "c_kernel<double>")

    work, doubles = double_work(queued(body, gpu=1000))
    assert {work.kernel_name(int(k)) for k in doubles.at} == {"a_kernel", "c_kernel<double>"}


def test_doubles_that_are_trained_are_found_and_no_more_than_medium():
    def body(trace, host, gpu):
        trace.op("aten::add", host, 20, [[1 << 27], [1 << 27]], ["double", "double"]).launch(host + 5, gpu, gpu + 1000, "elementwise_kernel")

    finding = found("precision", queued(body, gpu=1000).note("Optimizer.step#Adam.step", 1, 2))
    # Three tensors of a gigabyte and more: memory takes three quarters of the millisecond at the least, and half of that goes.
    assert finding.saving.expected_us > 330
    assert (finding.status, finding.severity) == ("found", "medium")


def test_a_number_beside_tensors_is_no_double():
    assert "take 0%" in clear("precision", added("double", "float", "Scalar", dims=((), (1 << 25,), ())))


def test_where_types_were_not_recorded_the_kernel_tells():
    trace = queued(lambda trace, host, gpu: trace.launch(host + 5, gpu, gpu + 1000, "vectorized_elementwise_kernel<4, CUDAFunctor_add<double>>"), gpu=1000)
    assert found("precision", trace).saving.expected_us == pytest.approx(250, rel=0.02)


def test_doubles_of_a_compiler_are_told_as_such():
    """A kernel of XLA has no recorded inputs: the op that it was made of says its types, and Hopper's FP64 tiles are no TF32."""
    assert precision("sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize128x64x16_stage3_warpsize2x2x1_tensor16x8x8_execute_kernel__5x_cublas") == "fp64"
    assert precision("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel") == "tf32"


def test_pytorchs_own_depthwise_convolution_stays_as_long_in_16_bits():
    """Beside a product that becomes faster in either program, 99 µs of a library's convolution on CUDA cores do too, 99 of PyTorch's own do not."""

    def beside(kernel):
        def step(trace, host, gpu):
            trace.op("aten::_conv_depthwise2d", host, 20, [[16, 768, 1, 299], [768, 1, 1, 65]], ["float"] * 2).launch(host + 5, gpu, gpu + 99, kernel)
            trace.op("aten::mm", host + 22, 20, [[2048, 2048]] * 2, ["float"] * 2).launch(host + 30, gpu + 100, gpu + 1099, FP32)

        return found("precision", queued(step, gpu=1100))

    own, library = "conv_depthwise2d_forward_kernel_generic<float, int>", "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x32x8"
    kept, faster = map(beside, (own, library))
    assert 50 < faster.saving.expected_us - kept.saving.expected_us < 99
    assert faster.saving.high_us == pytest.approx(kept.saving.high_us, abs=5), "what nobody has seen is possible"
