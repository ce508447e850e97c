"""Which kernel is what: names, ops, types and collectives of one trace put together."""

import numpy as np

from advisor.knowledge.op_tokens.families import Family
from advisor.views.trace.gpu_kernels import FAMILIES, Kernels
from tests.build import Trace

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
NVJET = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"


def families(trace):
    return [FAMILIES[f] for f in trace.get(Kernels).family]


def classes(trace):
    kernels = trace.get(Kernels)
    found = []
    for row in range(len(kernels.family)):
        mine = [c for c in ("compute", "communication", "copy", "memset") if getattr(kernels, c)[row]]
        assert len(mine) == 1, "every op is in one class"
        found += mine
    return found


def test_the_kind_decides_before_the_name():
    trace = Trace().gpu(0, 1, "ncclSomething", kind="memcpy").gpu(1, 2, "copy_kernel_of_mine").gpu(2, 3, "Memset (Device)", kind="memset")
    trace.gpu(3, 4, "Memcpy HtoD (Pageable -> Device)", kind="memcpy").gpu(4, 5, "my_memset_kernel")
    assert classes(trace) == ["copy", "compute", "memset", "copy", "compute"]
    assert families(trace)[0] is Family.COPY and families(trace)[2] is Family.FILL


def test_communication_is_not_a_matter_of_one_word():
    trace = Trace().gpu(0, 1, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL").gpu(1, 2, "multimem_all_reduce_kernel<c10::BFloat16, 16>")
    trace.gpu(2, 3, "hipMemcpyAsync_kernel").gpu(3, 4, "my_dma_kernel").gpu(4, 5, "anything", collective="allreduce")
    trace.op("c10d::allreduce_", 0, 10).launch(5, 20, 25, ELEMENTWISE)
    assert classes(trace) == ["communication"] * 2 + ["compute"] * 2 + ["communication"] * 2


def test_one_name_under_two_ops_is_two_families():
    trace = Trace().op("aten::add", 0, 5).launch(1, 10, 20, ELEMENTWISE).op("aten::_foreach_add_", 10, 5).launch(11, 20, 30, ELEMENTWISE)
    trace.op("aten::native_layer_norm", 20, 5).launch(21, 30, 40, ELEMENTWISE).gpu(50, 60, ELEMENTWISE)
    assert families(trace) == [Family.ELEMENTWISE, Family.OPTIMIZER, Family.NORM, Family.ELEMENTWISE]


def test_the_innermost_op_counts():
    trace = Trace().op("aten::linear", 0, 50).op("aten::addmm", 5, 20).launch(10, 30, 40, NVJET)
    trace.op("aten::gelu", 30, 10).launch(32, 50, 60, ELEMENTWISE)
    assert families(trace) == [Family.GEMM, Family.ELEMENTWISE]


def test_precision_is_the_names_and_else_the_inputs():
    product = ["c10::Half", "c10::Half"]
    trace = Trace().op("aten::mm", 0, 5, [[8, 8], [8, 8]], product).launch(1, 10, 20, "my_gemm_kernel")
    trace.op("aten::mm", 10, 5, [[8, 8], [8, 8]], ["float", "float"]).launch(11, 20, 30, "my_gemm_kernel")
    trace.gpu(40, 50, NVJET).gpu(50, 60, "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma")
    assert list(trace.get(Kernels).precision) == ["fp16", "", "bf16", "fp32"]


def test_members_of_families():
    trace = Trace().gpu(0, 1, NVJET).gpu(1, 2, ELEMENTWISE).gpu(2, 3, "flash_fwd_kernel").gpu(3, 4, "Memcpy DtoD", kind="memcpy")
    kernels = trace.get(Kernels)
    assert kernels.in_families(Family.GEMM, Family.ATTENTION).tolist() == [True, False, True, False]
    assert kernels.in_families().tolist() == [False] * 4


def test_rows_keep_their_order_however_names_repeat():
    names = [NVJET, ELEMENTWISE, "ncclDevKernel_X"]
    trace = Trace()
    order = np.random.default_rng(0).integers(0, 3, 60)
    for k, which in enumerate(order):
        trace.gpu(k, k + 1, names[which])
    expected = [Family.GEMM, Family.ELEMENTWISE, Family.COMMUNICATION]
    assert families(trace) == [expected[which] for which in order]


def test_no_gpu_work_is_no_kernels():
    assert len(Trace().op("aten::mm", 0, 5).get(Kernels).family) == 0
