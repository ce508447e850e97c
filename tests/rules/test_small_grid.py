"""small-grid: few blocks, a last wave of few; quiet on kernels that are short, fast enough, shared or meant to be so."""

import json

import pytest

from advisor.knowledge.op_tokens.families import Family
from advisor.recordings.timeline import Device
from advisor.rules.fixes.grids import divided
from tests.build import H200, Trace
from tests.rules.test_rules import clear, found, queued, skipped

SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>"
ROWS = [8, 4194304]
"""67 M bytes each way: 31 µs at what an H200's memory reaches."""
REST = 500.0
FULL = {"grid_blocks": 4096, "block_threads": 128, "registers": 32, "shared_bytes": 0}


def kernel(
    us=1000.0, blocks=8, name=SOFTMAX, op="aten::_softmax", dims=ROWS, beside=0.0, threads=1024, registers=32, shared=0,
    second="-1",
):  # fmt: skip
    """One such kernel a step and another that fills the device; `beside` µs of a kernel on another stream at its start."""

    def body(trace, host, gpu):
        grid = {"grid_blocks": blocks, "block_threads": threads, "registers": registers, "shared_bytes": shared}
        if op:
            trace.op(op, host, 4, [dims, [], []] if dims else None, ["c10::BFloat16", "Scalar", "Scalar"] if dims else None)
            trace.rows["cpu_ops"][-1]["concrete"] = json.dumps(["", second, "False"])
        trace.launch(host + 1, gpu, gpu + us, name, **grid)
        if beside:
            trace.launch(host + 2, gpu, gpu + beside, "elementwise_kernel", stream=9, **FULL)
        trace.op("aten::other", host + 6, 4)
        trace.launch(host + 7, gpu + us, gpu + us + REST, "elementwise_kernel", **FULL)

    return queued(body, gpu=us + REST + 1)


def test_a_softmax_of_few_long_rows_is_found():
    finding = found("small-grid", kernel())
    # A full device needs 1000 * 8 / 132 = 61 µs, twice the limit 63, and 5 to join the parts.
    assert finding.saving.expected_us == pytest.approx(1000 - 68, abs=2)
    assert finding.saving.low_us < finding.saving.expected_us <= finding.saving.high_us
    assert finding.evidence[0].label.endswith("8 blocks on 132 SMs") and finding.confidence > 0.8
    assert "torch.compile" in finding.fix.code.after


def test_the_fix_is_of_what_takes_the_time():
    """A short softmax of few blocks comes first, a long running sum after it."""

    def body(trace, host, gpu):
        for k, (op, name, us) in enumerate([("_softmax", SOFTMAX, 100.0), ("cumsum", "tensor_kernel_scan_outer_dim<float>", 900.0)]):
            trace.op(f"aten::{op}", host + 5 * k, 4, [ROWS, [], []], ["c10::BFloat16", "Scalar", "Scalar"])
            trace.launch(host + 5 * k + 1, gpu + 100 * k, gpu + 100 * k + us, name, grid_blocks=8, block_threads=1024, registers=32, shared_bytes=0)

    assert "running sums" in found("small-grid", queued(body, gpu=1001)).fix.steps[0]


def test_kinds_that_take_a_quarter_of_the_time_have_their_own_step():
    def body(trace, host, gpu):
        for k, (op, name, us) in enumerate([("_softmax", SOFTMAX, 400.0), ("cumsum", "tensor_kernel_scan_outer_dim<float>", 500.0)]):
            trace.op(f"aten::{op}", host + 5 * k, 4, [ROWS, [], []], ["c10::BFloat16", "Scalar", "Scalar"])
            trace.launch(host + 5 * k + 1, gpu + 400 * k, gpu + 400 * k + us, name, grid_blocks=8, block_threads=1024, registers=32, shared_bytes=0)

    first, second, *_ = found("small-grid", queued(body, gpu=1001)).fix.steps
    assert "running sums" in first and second.startswith("For the softmax among them: divide each row")
    assert "the interpolations among them" in divided(Family.NORM, False, also=[(Family.ELEMENTWISE, "upsample_bilinear2d_out_frame<float>")]).steps[1]


def test_of_many_kinds_that_take_little_each_the_first_leads():
    kinds = ("softmax_warp_forward", "tensor_kernel_scan_outer_dim", "layer_norm_kernel", "reduce_kernel", "sm90_xmma_gemm_bf16", "flash_fwd_kernel")

    def body(trace, host, gpu):
        for k, (op, name) in enumerate(zip(("_softmax", "cumsum", "native_layer_norm", "sum", "mm", "attention"), kinds, strict=True)):
            trace.op(f"aten::{op}", host + 5 * k, 4, [ROWS, [], []], ["c10::BFloat16", "Scalar", "Scalar"])
            trace.launch(host + 5 * k + 1, gpu + 400 * k, gpu + 400 * k + 400, name, grid_blocks=8, block_threads=1024, registers=32, shared_bytes=0)

    assert found("small-grid", queued(body, gpu=2500)).fix.title == "Divide the work over the whole device"


def enlarging(kind, channels=768):
    """PyTorch's kernel for NCHW has a thread for each of 64 x 48 places: 3 blocks. The bytes of 32 x 768 maps take 40 µs."""
    name = f"void at::native::(anonymous namespace)::upsample_{kind}<c10::Half, float>"
    enlarged = kernel(us=8000.0, blocks=3, name=name, op="aten::upsample_bilinear2d", dims=[32, channels, 16, 12], second="[64, 48]")
    enlarged.rows["cpu_ops"] = [
        row | {"types": row["types"].replace('["c10::BFloat16", "Scalar"', '["c10::BFloat16", "ScalarList"')} for row in enlarged.rows["cpu_ops"]
    ]
    return found("small-grid", enlarged)


@pytest.mark.parametrize(
    ("kind", "after"),
    [("bilinear2d_out_frame", "channels_last"), ("bicubic2d_out_frame", "torch.compile(F.interpolate)"), ("nearest2d_out_frame", "torch.stack")],
)
def test_maps_enlarged_place_by_place_are_found(kind, after):
    finding = enlarging(kind)
    assert finding.saving.expected_us == pytest.approx(8000 - 8000 * 3 / 132 - 5, abs=2)
    assert after in finding.fix.code.after and finding.severity == "high"


def test_fewer_than_four_channels_have_no_kernel_of_their_own_in_channels_last():
    assert "torch.compile(F.interpolate)" in enlarging("bilinear2d_out_frame", channels=3).fix.code.after


def test_a_run_that_something_else_held_up_is_not_the_grids_doing():
    def body(trace, host, gpu):
        took = 900 if host == 0 else 30
        trace.op("aten::_softmax", host, 4, [ROWS, [], []], ["c10::BFloat16", "Scalar", "Scalar"])
        trace.launch(host + 1, gpu, gpu + took, SOFTMAX, grid_blocks=8, block_threads=1024, registers=32, shared_bytes=0)
        trace.op("aten::mm", host + 10, 5).launch(host + 12, gpu + took, gpu + 1000, "gemm")

    clear("small-grid", queued(body, gpu=1000))


def own(name, threads=1, blocks=1):
    """A program of CUDA's own kernels, each named by its author."""
    trace = Trace(recorder="nsys")
    for s in range(12):
        trace.launch(1_000 * s, 1_000 * s + 5, 1_000 * s + 905, name, dur=4, grid_blocks=blocks, block_threads=threads, registers=32, shared_bytes=0)
        trace.call("cudaStreamSynchronize", 1_000 * s + 5, 905)
    return trace


def test_pages_that_migrate_while_a_kernel_runs_take_no_time_of_their_own():
    # One thread for 900 of 1,000 µs, during which 30 batches of pages come; nothing links those to a call.
    trace = own("add(int, float*, float*)")
    for s in range(12):
        for n in range(30):
            trace.gpu(1_000 * s + 10 + 20 * n, 1_000 * s + 20 + 20 * n, "migration", stream=-1, kind="memcpy", copy_kind="migration HtoD", bytes=65536)
    finding = found("small-grid", trace)
    # Of no known family: likely half of what a full device would take off.
    assert finding.saving.expected_us == pytest.approx(450, rel=0.05)
    assert finding.saving.high_us <= 901, "no more than the kernel takes"


@pytest.mark.parametrize("name", ["add(int, float *, float *)", "solve(float *)"])
def test_what_an_author_calls_a_kernel_does_not_keep_it_from_being_found(name):
    finding = found("small-grid", own(name))
    assert "1 block of 1 thread" in finding.summary and finding.severity == "medium"
    # Of no known kind: perhaps nothing, likely a half, at most all but one multiprocessor in 132.
    assert finding.saving.low_us == 0 and finding.saving.high_us > 850


@pytest.mark.parametrize(
    ("option", "heard", "quiet"),
    [
        ("max_fill", 0.061, 0.060),
        ("min_kernel_us", 999.0, 1001.0),
        ("max_limit_share", 0.032, 0.030),
        ("min_saving_share", 0.61, 0.63),
    ],
)
def test_each_threshold_has_two_sides(option, heard, quiet):
    assert found("small-grid", kernel(), **{option: heard})
    clear("small-grid", kernel(), **{option: quiet})


def test_kernels_at_their_limit_need_no_more_blocks():
    clear("small-grid", kernel(us=60))


@pytest.mark.parametrize(
    "name",
    [
        "nvjet_sm90_tst_64x8_64x16_1x1_h_bz_splitK_NNT",
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>",
        "cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<PersistentScheduler>>",
        "matmul_kernel_persistent",
        "streamk_gemm_kernel",
        "RNN_blockPersist_fp_LSTM",
        "void at::native::ctc_loss_log_alpha_gpu_kernel<float, long>",
        "at::cuda::spin_kernel(long)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    ],
)
def test_few_blocks_on_purpose_are_quiet(name):
    clear("small-grid", kernel(name=name, op=""))


@pytest.mark.parametrize(("beside", "quiet"), [(450.0, False), (550.0, True)])
def test_streams_that_fill_the_device_together_are_quiet(beside, quiet):
    (clear if quiet else found)("small-grid", kernel(beside=beside))


@pytest.mark.parametrize(("streams", "quiet"), [(1, False), (4, False), (5, True), (12, True)])
def test_streams_of_few_blocks_each_fill_the_device_only_together(streams, quiet):
    # 8 blocks of 132 multiprocessors beside so many kernels of 8: 33 blocks are a quarter of the device.
    def body(trace, host, gpu):
        grid = {"grid_blocks": 8, "block_threads": 1024, "registers": 32, "shared_bytes": 0}
        for k in range(1 + streams):
            trace.launch(host + k, gpu, gpu + 1000, SOFTMAX, stream=7 + k, **grid)
        trace.launch(host + 20, gpu + 1000, gpu + 1000 + REST, "elementwise_kernel", **FULL)

    (clear if quiet else found)("small-grid", queued(body, gpu=1001 + REST))


def test_without_shapes_only_what_divides_counts_and_less_surely():
    finding = found("small-grid", kernel(dims=None))
    assert finding.confidence <= 0.4 and finding.saving.expected_us == pytest.approx(495, rel=0.02)
    told = skipped("small-grid", kernel(dims=None, name="distribution_elementwise_grid_stride_kernel", op="aten::rand"))
    assert "67% of busy time; shapes would show" in told


def test_a_kernel_of_no_known_kind_may_be_serial():
    finding = found("small-grid", kernel(dims=None, name="my_kernel", op="", blocks=1, threads=1))
    # Half of its 1000 µs at best likely, less 5 to join the parts; perhaps nothing.
    assert finding.saving.expected_us == pytest.approx(495, rel=0.02) and finding.saving.low_us == 0
    assert finding.severity == "medium" and finding.confidence <= 0.4
    assert "1 block of 1 thread on 132 SMs" in finding.summary


FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>"


def attention(heads, us):
    """Over 2048 tokens of 128: 16 blocks a head, two on a multiprocessor by their registers. Times as measured."""
    shape = [1, heads, 2048, 128]

    def body(trace, host, gpu):
        trace.op(
            "aten::_scaled_dot_product_flash_attention",
            host,
            4,
            [shape] * 3 + [[], [], []],
            ["c10::BFloat16"] * 3 + ["Scalar"] * 3,
        )
        trace.rows["cpu_ops"][-1]["concrete"] = '["", "", "", "0.", "False", "False"]'
        trace.launch(host + 1, gpu, gpu + us, FLASH, grid_blocks=16 * heads, block_threads=128, registers=255, shared_bytes=65536)

    return queued(body, gpu=us + 1)


def test_a_last_wave_of_few_blocks_is_found():
    finding = found("small-grid", attention(17, 161.0))
    assert "1.03 waves" in finding.evidence[0].label and "wave" in finding.fix.title
    assert "max-autotune" not in str(finding.fix), "of products and convolutions alone"
    # 16 heads took 103 µs, so 17 in a whole number of waves 109.
    assert finding.saving.low_us == 0 and finding.saving.expected_us == pytest.approx(161 - 109, rel=0.3)
    assert finding.saving.high_us > 161 - 109


@pytest.mark.parametrize(("heads", "us"), [(16, 103.0), (33, 202.0), (26, 190.0), (48, 303.0), (130, 800.0)])
def test_whole_waves_and_many_are_quiet(heads, us):
    clear("small-grid", attention(heads, us))


def test_equal_blocks_alone_have_a_tail():
    clear("small-grid", kernel(blocks=140, threads=1024, registers=64))


def test_without_grids_or_multiprocessors_it_is_skipped():
    assert "grids" in skipped("small-grid", queued(lambda t, h, g: t.launch(h, g, g + 100, SOFTMAX), gpu=101))
    unknown = Trace((Device(0, "GPU", 0, (0, 0), 0, 0),))
    for s in range(5):
        unknown.step(100 * s, 99, s + 1).launch(100 * s, 100 * s + 5, 100 * s + 90, SOFTMAX, grid_blocks=4)
    assert "SM count" in skipped("small-grid", unknown)
    assert H200.sm_count == 132


@pytest.mark.parametrize(("op", "by_hand"), [("aten::bmm", True), ("aten::mm", False)])
def test_batched_products_are_cut_by_hand_since_inductor_splits_only_others(op, by_hand):
    """The grams of four images: 16 tiles over an inner dimension of 65536."""

    def body(trace, host, gpu):
        lead = [4] if by_hand else []
        trace.op(op, host, 4, [[*lead, 64, 65536], [*lead, 65536, 64]])
        trace.launch(host + 1, gpu, gpu + 2000, "sm80_xmma_gemm_f32f32", grid_blocks=16, block_threads=128, registers=128, shared_bytes=0)

    fix = found("small-grid", queued(body, gpu=2001)).fix
    assert ("unflatten" in fix.code.after, "max-autotune" in fix.code.after) == (by_hand, not by_hand)
    assert fix.steps[0].startswith("Cut the inner dimension") == by_hand
    assert "torch.compile" not in fix.code.before, "nothing says that it is compiled"
    tail = divided(Family.GEMM, True, batched=by_hand)
    assert ("split-K" in tail.code.after, any("split-K" in step for step in tail.steps)) == (not by_hand, not by_hand)
