"""FLOPs and bytes of kernels: whose work it is, counted once, and the least time it allows."""

import numpy as np
import pytest

from advisor.recordings.timeline import Device
from advisor.views.time.roofline import Roofline
from tests.build import Trace

M, K, N = 64, 32, 16
DIMS = [[M, K], [K, N]]
FLOPS, BYTES = 2 * M * K * N, 4 * (M * K + K * N + M * N)
BF16 = ["c10::BFloat16"] * 2


def test_identical_launches_are_as_many_launches():
    # PyTorch's own analysis keeps statistics in a set of dataclasses: equal launches collapse into one.
    trace = Trace()
    for k in range(5):
        trace.op("aten::mm", 20 * k, 10, DIMS).launch(20 * k + 1, 100 + 20 * k, 110 + 20 * k, "gemm")
    work = trace.get(Roofline)
    assert work.flops.tolist() == [FLOPS] * 5 and work.bytes.tolist() == [BYTES] * 5
    assert work.cost_op.tolist() == [0, 1, 2, 3, 4]


def test_the_work_of_one_op_is_shared_by_its_kernels_as_they_took_time():
    trace = Trace().op("aten::mm", 0, 30, DIMS).launch(1, 10, 40, "gemm").launch(2, 40, 50, "splitKreduce_kernel").launch(3, 50, 50, "nothing")
    work = trace.get(Roofline)
    assert work.flops == pytest.approx(np.array([0.75, 0.25, 0]) * FLOPS) and work.bytes.sum() == pytest.approx(BYTES)


def test_kernels_that_only_move_data_have_no_flops_beside_one_that_computes():
    # A convolution of 30 µs between two turns of its layout of 10 µs each: the bytes are shared by time, the FLOPs are the convolution's.
    trace = Trace().op("aten::mm", 0, 90, DIMS).launch(1, 10, 20, "nchwToNhwcKernel").launch(2, 20, 50, "sm90_xmma_fprop").launch(3, 50, 60, "nhwcToNchwKernel")
    work = trace.op("aten::mm", 100, 30, DIMS).launch(101, 110, 120, "nchwToNhwcKernel").get(Roofline)
    assert work.flops == pytest.approx(np.array([0, 1, 0, 1]) * FLOPS), "the last op has no other kernel"
    assert work.bytes == pytest.approx(np.array([0.2, 0.6, 0.2, 1]) * BYTES)


def test_kernels_of_no_duration_share_alike():
    trace = Trace().op("aten::mm", 0, 30, DIMS).launch(1, 10, 10, "gemm").launch(2, 12, 12, "gemm")
    assert trace.get(Roofline).flops == pytest.approx(np.array([0.5, 0.5]) * FLOPS)


def test_ops_around_an_op_add_nothing():
    # linear, addmm and the autograd node around them all know their shapes; the work is the innermost one's, once.
    trace = Trace().op("aten::linear", 0, 50, [[M, K], [N, K]]).op("aten::matmul", 2, 45, DIMS).op("aten::mm", 4, 40, DIMS)
    trace.launch(10, 60, 70, "gemm")
    work = trace.get(Roofline)
    assert work.flops.tolist() == [FLOPS] and work.cost_op.tolist() == [2]


def test_an_op_whose_cost_is_unknown_takes_that_of_the_op_around_it():
    trace = Trace().op("aten::mm", 0, 50, DIMS).op("mylib::launch", 5, 20, [[3]]).launch(10, 60, 70, "gemm")
    assert trace.get(Roofline).flops.tolist() == [FLOPS]
    trace.launch(30, 70, 100, "gemm")  # directly under mm: the two share
    assert trace.get(Roofline).flops == pytest.approx(np.array([0.25, 0.75]) * FLOPS)


def test_copies_and_memsets_do_no_framework_work():
    trace = Trace().op("aten::mm", 0, 50, DIMS).launch(5, 60, 70, "gemm").copy(10, 1, 70, 90).launch(20, 90, 95, "Memset", kind="memset")
    work = trace.get(Roofline)
    assert work.flops[0] == FLOPS and np.isnan(work.flops[1:]).all() and work.cost_op.tolist() == [0, -1, -1]


def test_what_cannot_be_known_is_not_zero():
    trace = Trace().op("aten::mm", 0, 10).launch(1, 20, 30, "gemm").op("mylib::secret", 10, 5, [[8, 8]]).launch(11, 30, 40, "k").gpu(50, 60)
    work = trace.get(Roofline)
    assert np.isnan(work.flops).all() and np.isnan(work.bytes).all() and np.isnan(work.limit_us).all()


def test_the_least_time_is_that_of_the_scarcer_resource():
    # H200: 989 TFLOP/s in bf16 and 4.8 TB/s, of which kernels reach a stated fraction.
    trace = Trace().op("aten::mm", 0, 10, [[8192, 8192], [8192, 8192]], BF16).launch(1, 20, 2000, "nvjet_sm90_tst_128x256")
    trace.op("aten::mm", 20, 10, [[1, 8192], [8192, 8192]], BF16).launch(21, 2000, 2100, "nvjet_sm90_tst_64x8")
    work = trace.get(Roofline)
    peaks = work.peaks[0]
    assert work.limit_us[0] == pytest.approx(2 * 8192**3 / 989e12 / peaks.achievable_flops * 1e6, rel=1e-3)
    assert work.limit_us[1] == pytest.approx(2 * (8192**2 + 2 * 8192) / 4.8e12 / peaks.achievable_memory * 1e6, rel=1e-3)
    assert 0.5 < peaks.achievable_flops < 1 and 0.5 < peaks.achievable_memory < 1


def test_a_device_nobody_documented_has_work_but_no_limit():
    trace = Trace((Device(0, "Some GPU of next year"),)).op("aten::mm", 0, 10, DIMS).launch(1, 20, 30, "gemm")
    work = trace.get(Roofline)
    assert work.flops.tolist() == [FLOPS] and np.isnan(work.limit_us).all() and not work.peaks
    assert Trace(()).op("aten::mm", 0, 10, DIMS).launch(1, 20, 30, "gemm").get(Roofline).peaks == {}


def test_the_whole_is_the_sum_of_the_ops():
    # Several kernels of some ops, one of others, none of the last: what the kernels do is what the launching ops do.
    rng = np.random.default_rng(1)
    trace, expected, gpu = Trace(), 0.0, 1000.0
    for k in range(40):
        m, kernels = int(rng.integers(1, 64)), int(rng.integers(0, 4))
        trace.op("aten::linear", 20 * k, 19, [[m, K], [N, K]]).op("aten::mm", 20 * k + 1, 15, [[m, K], [K, N]])
        expected += 2 * m * K * N if kernels else 0
        for j in range(kernels):
            dur = float(rng.integers(0, 20))
            trace.launch(20 * k + 2 + j, gpu, gpu + dur, f"gemm{j}")
            gpu += dur + 1
    assert np.nansum(trace.get(Roofline).flops) == pytest.approx(expected)


@pytest.mark.parametrize("dims", [[None, None], ["x"], [[2, 3, 4, 5, 6]], [[]], [[0, 8], [8, 8]]])
def test_shapes_that_make_no_sense_break_nothing(dims):
    work = Trace().op("aten::mm", 0, 10, dims).launch(1, 20, 30, "gemm").get(Roofline)
    assert np.isnan(work.flops[0]) or work.flops[0] >= 0
