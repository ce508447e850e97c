"""Kernel families and precisions, on made-up names for each rule and on every name of the shared traces."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.knowledge.op_tokens.families import Family, family, library_product, op_family, precision, tensor_core
from tests.paths import needs_shared, shared_files

AT = "void at::native::"
BF16 = '["c10::BFloat16", "c10::BFloat16"]'
FP32 = '["float", "float"]'

# A name that says nothing, a sleep, one helper of flashinfer, kernels that users wrote.
NAMELESS = {
    "Kernel", "at::cuda::(anonymous namespace)::spin_kernel(long)",
    "add_one(const float *, float *, int)", "jacobi_kernel(float *, const float *, float *, int, int, int)",
    "initialize_boundaries(float *, float *, float, int, int, int, int)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "op", "expected"),
    [
        # A convolution launches products, layout changes and a bias's sum.
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64", "", Family.CONV),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(P)", "aten::cudnn_convolution", Family.CONV),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(params)", "aten::cudnn_convolution", Family.LAYOUT),
        ("batched_transpose_32x32_half", "aten::miopen_convolution", Family.LAYOUT),
        (f"{AT}reduce_kernel<128, 4, ReduceOp<float, sum_functor>>(R)", "aten::convolution_backward", Family.REDUCTION),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", "", Family.CONV),
        # Expert parallelism, block-scaled products, attention and casts of other libraries.
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*, float*)", "", Family.COMMUNICATION),
        ("void deep_ep::internode_ll::dispatch<true, 3>(void*)", "", Family.COMMUNICATION),
        ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32", "", Family.GEMM),
        ("sage_fwd", "", Family.ATTENTION),
        ("wvSplitK_hf_sml_", "", Family.GEMM),
        ("void cuda::per_channel_cast_and_transpose<256, 128, true>(void const*)", "", Family.ELEMENTWISE),
        ("triton_red_fused_add_mean_0", "", Family.FUSED),
        ("triton_", "", Family.OTHER),  # named by nothing: pointwise work or a product of a template
        ("triton__0d1d2d3de", "Torch-Compiled Region", Family.OTHER),
        ("Im2d2Col_v2", "", Family.LAYOUT),
        # Products.
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)", "aten::addmm", Family.GEMM),
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "aten::mm", Family.GEMM),
        ("Cijk_Ailk_Bjlk_BBS_BH_MT32x32x64", "", Family.GEMM),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float>(P)", "", Family.GEMM),
        ("triton_tem_fused_addmm_3", "", Family.GEMM),
        ("void fbgemm_gpu::_FP8rowwise_to_float_cuda_kernel<float>(unsigned char const*)", "", Family.ELEMENTWISE),
        # Attention.
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", "", Family.ATTENTION),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>(P)", "", Family.ATTENTION),
        ("attn_fwd", "aten::_flash_attention_forward", Family.ATTENTION),
        ("triton_tem_fused_flex_attention_0", "", Family.ATTENTION),
        # Norm and softmax, whose helpers are elementwise kernels and reductions.
        (f"{AT}vectorized_elementwise_kernel<4, batch_norm_calc_invstd()>(int)", "aten::native_batch_norm", Family.NORM),
        (f"{AT}reduce_kernel<512, 1, ReduceOp<float, WelfordOps>>(R)", "aten::native_group_norm", Family.NORM),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(T)", "", Family.NORM),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)", "", Family.SOFTMAX),
        # Generic kernels: functor, then op.
        (f"{AT}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)",
         "aten::add", Family.ELEMENTWISE),
        (f"{AT}vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)", "", Family.FILL),
        (f"{AT}elementwise_kernel<128, 4, gpu_kernel_impl<direct_copy_kernel_cuda(T&)> >(int)", "", Family.COPY),
        (f"{AT}unrolled_elementwise_kernel<x>(int)", "aten::copy_", Family.COPY),
        (f"{AT}unrolled_elementwise_kernel<x>(int)", "aten::to", Family.COPY),
        (f"{AT}(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1, 128, 1>(float*)", "aten::cat", Family.COPY),
        (f"{AT}(anonymous namespace)::roll_cuda_kernel<c10::BFloat16>(c10::BFloat16 const*, c10::BFloat16*, long)", "aten::roll", Family.COPY),
        (f"{AT}triu_tril_kernel<float, int, false, 4, false>(at::cuda::detail::TensorInfo<float, int>)", "aten::tril", Family.ELEMENTWISE),
        ("__amd_rocclr_copyBuffer.kd", "", Family.COPY),
        (f"{AT}(anonymous namespace)::multi_tensor_apply_kernel<Metadata<1>>(T)", "aten::_foreach_mul_", Family.OPTIMIZER),
        (f"{AT}vectorized_gather_kernel<16, long>(char*)", "aten::index_select", Family.EMBEDDING),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "", Family.ELEMENTWISE),
        ("void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long>>(int*)", "", Family.SORT_SCAN),
        (f"{AT}(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>(long)", "", Family.RANDOM),
        ("triton_poi_fused_add_gelu_mul_7", "", Family.FUSED),
        ("triton_red_fused_all_gather_into_tensor_sum_1", "", Family.FUSED),
        ("loop_multiply_fusion_2", "", Family.FUSED),
        ("my_kernel(float*)", "", Family.OTHER),
        ("my_kernel(float*)", "aten::_softmax", Family.SOFTMAX),
    ],
)  # fmt: skip
def test_family(kernel: str, op: str, expected: Family) -> None:
    assert family(kernel, op) is expected


@pytest.mark.parametrize(
    ("kernel", "op", "collective"),
    [
        # The word "nccl" alone finds 22 of 2,141 µs of one public B200 trace.
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>(T)", "", ""),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**)", "", ""),
        ("anything", "symm_mem::multimem_all_reduce_", ""),
        ("anything", "c10d::allreduce_", ""),
        ("anything", "_c10d_functional::all_reduce", ""),
        ("anything", "vllm::all_reduce", ""),
        ("anything", "record_param_comms", ""),
        ("anything", "", "allreduce"),
        # HTA looks for ncclKernel; NCCL calls them ncclDevKernel since 2.18.
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "", ""),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "", ""),
        ("rcclGenericKernel<1, false>(ncclDevComm*)", "", ""),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<float>(P)", "", ""),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(RankData*)", "", ""),
        ("void deep_ep::internode::dispatch<true>(int)", "", ""),
        ("nvshmemi_transfer_kernel(void*)", "", ""),
        # A copy kernel inside a collective's op.
        (f"{AT}unrolled_elementwise_kernel<direct_copy_kernel_cuda()>(int)", "c10d::allreduce_", ""),
    ],
)
def test_communication(kernel: str, op: str, collective: str) -> None:
    assert family(kernel, op, collective) is Family.COMMUNICATION


@pytest.mark.parametrize(
    "kernel",
    ["hipMemcpyAsync_kernel", "__amd_rocclr_copyBuffer", "my_dma_kernel(float*)", "hipMemsetAsync", "void lambda_kernel(int)",
     "void at::native::reduce_kernel<512>(R)", "void cub::DeviceReduceKernel<int>(int)"],
)  # fmt: skip
def test_not_communication(kernel: str) -> None:
    """HTA takes every name that starts with "hip" for communication, and drops those that contain "dma"."""
    assert family(kernel) is not Family.COMMUNICATION


def test_fused_symmetric_memory_op_multiplies_too() -> None:
    assert family("nvjet_sm90_tst_128x256", "symm_mem::fused_all_gather_matmul") is Family.GEMM
    assert family("multimem_all_reduce_kernel", "symm_mem::fused_all_gather_matmul") is Family.COMMUNICATION


@pytest.mark.parametrize(
    ("kernel", "types", "expected", "unit"),
    [
        # FP32 on CUDA cores. `xmma` is a code generator: two peers take it for Tensor Cores.
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4", FP32, "fp32", False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(P)", FP32, "fp32", False),
        ("ampere_sgemm_128x64_nn", "", "fp32", False),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "", "fp32", False),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize256x64x8_g1_ffma", FP32, "fp32", False),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128>(P)", "", "fp32", False),
        # TF32: reads FP32.
        ("sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32", FP32, "tf32", True),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_g1_tensor16x8x8", FP32, "tf32", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(P)", FP32, "tf32", True),
        ("nvjet_sss_tf32_128x256_TNT", FP32, "tf32", True),
        # 16 bit.
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "", "bf16", True),
        ("nvjet_tst_192x208_64x4_1x1_h_bz_coopB_bias_TNT", BF16, "bf16", True),
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "", "fp16", True),
        ("nvjet_sm90_hss_320x128_64x3", "", "fp16", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", BF16, "bf16", True),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(P)", BF16, "bf16", True),
        ("void cutlass::Kernel<cutlass_70_wmma_tensorop_f16_s161616gemm_f16_32x32_64x2_tn_align8>(P)", "", "fp16", True),
        ("volta_h884gemm_128x128_ldg8_nn", "", "fp16", True),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn", "", "fp16", True),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn", "", "bf16", True),
        ("void gemmk1_kernel<float, 256, 5, false, cublasGemvTensorStridedBatched<__half const>>(P)", "", "fp16", False),
        # cuDNN's attention says f16 for both 16-bit types; backward reads FP32 statistics too.
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", BF16, "bf16", True),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", '["c10::BFloat16", "float", "long int"]', "bf16", True),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", "", "fp16", True),
        # FP8.
        ("nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "", "fp8", True),
        ("sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x64x64", "", "fp8", True),
        ("my_product_gemm", '["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "float", "float"]', "fp8", True),
        # FP64.
        ("ampere_dgemm_64x64_nn", '["double", "double"]', "fp64", None),
        ("volta_zgemm_32x32_nn", "", "fp64", None),
        ("gemv2T_kernel_val<int, int, double2, double2, double2, double2, 128, 16, 4, 4>", "", "fp64", False),
        ("groupedgemm_kernel", "", "", None),
        ("gemm_with_double_buffer", "", "", None),
        # ROCm.
        ("Cijk_Ailk_Bjlk_BBS_BH_MT32x32x64_MI16x16x16x1_SN", BF16, "bf16", True),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x160x128_MI16x16x1_SN", "", "bf16", True),
        ("Cijk_Ailk_Bjlk_HHS_BH_MT64x64x32_MI32x32x8x1_SN", "", "fp16", True),
        ("Cijk_Ailk_Bjlk_HB_MT64x64x32_SN", "", "fp16", True),
        ("Cijk_Ailk_Bjlk_SB_Bias_AS_SAV_UserArgs_MT64x16x16_SN", FP32, "fp32", False),
        ("Cijk_Ailk_Bjlk_DB_MT64x64x16_SN", "", "fp64", None),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32", "", "bf16", True),
        # Composable Kernel: A and B are 16-bit integers (bf16), `float` is what they accumulate in.
        ("void ck::kernel_moe_gemm<ck::GridwiseMoeGemm<ck::tensor_layout::gemm::RowMajor, unsigned short, unsigned short, float, ck::Tuple<float, float>>>(P)", "", "bf16", True),
        ("void ck::kernel_gemm_xdl_cshuffle_v3<ck::Gridwise<float, float, float, float>>(P)", "", "fp32", True),
        # Undecided: the product is FP32 or TF32, the helper beside it neither.
        ("some_gemm_kernel", FP32, "", None),
        ("void splitKreduce_kernel<32, 16, int, float, float, float, float>(P)", FP32, "", None),
        ("void splitKreduce_kernel<32, 16, int, float, float, float, float>(P)", BF16, "bf16", None),
        # Types of 16 bit on CUDA cores.
        ("void implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, 1024, 5, 5, 3, 3, 3, 1>(int)", BF16, "bf16", False),
    ],
)  # fmt: skip
def test_precision(kernel: str, types: str, expected: str, unit: bool | None) -> None:
    found = precision(kernel, types)
    assert found == expected
    assert tensor_core(kernel, found) is unit


def test_tensor_core_is_unclear_for_other_kernels() -> None:
    assert tensor_core("triton_poi_fused_add_0", "bf16") is None


def test_first_type_decides_only_beside_fp32() -> None:
    assert precision("x_gemm", '["c10::BFloat16", "float", "float"]') == "bf16"
    assert precision("x_gemm", '["float", "c10::BFloat16"]') == ""
    assert precision("x_gemm", '["c10::BFloat16", "c10::Half"]') == ""


@pytest.mark.parametrize(
    ("op", "expected"),
    [("aten::addmm", Family.GEMM), ("aten::_foreach_add_", Family.OPTIMIZER), ("aten::native_layer_norm_backward", Family.NORM),
     ("aten::embedding_dense_backward", Family.EMBEDDING), ("aten::convolution_backward", Family.CONV), ("aten::add", None),
     ("aten::mean", Family.REDUCTION), ("aten::mm", Family.GEMM), ("aten::zero_", Family.FILL), ("vllm::rms_norm", Family.NORM)],
)  # fmt: skip
def test_op_family(op: str, expected: Family | None) -> None:
    assert op_family(op) is expected


def _kineto_names(path: Path) -> Iterator[str]:
    data = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    for event in data["traceEvents"] if isinstance(data, dict) else data:
        if isinstance(event, dict) and str(event.get("cat", "")).lower() == "kernel":
            yield event["name"]


def _nsys_names(path: Path) -> Iterator[str]:
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as export:
        export.text_factory = lambda raw: raw.decode("utf-8", "replace")
        if export.execute("select 1 from sqlite_master where name = 'CUPTI_ACTIVITY_KIND_KERNEL'").fetchone():
            for (name,) in export.execute("select distinct value from CUPTI_ACTIVITY_KIND_KERNEL join StringIds on StringIds.id = demangledName"):
                yield name


@needs_shared
def test_every_kernel_of_the_shared_traces_has_a_family() -> None:
    """By the name alone, which is all that nsys and CUDA graphs leave."""
    names: set[str] = set()
    traces = [path for path in shared_files("**/*.json.gz") if {"kineto", "ranks"} & set(path.parts)]
    for path in traces:
        if not path.name.startswith("recompiles.slow"):  # 31 MB packed, and no name that the others lack
            names.update(_kineto_names(path))
    for path in shared_files("*/nsys/*.sqlite"):
        names.update(_nsys_names(path))
    assert len(names) > 700
    assert {name for name in names if family(name) is Family.OTHER} <= NAMELESS


@needs_shared
def test_slow_products_of_the_shared_corpus_are_fp32_on_cuda_cores() -> None:
    path = shared_files("corpus/kineto/fp32_matmul.slow.json.gz")[0]
    products = {name for name in _kineto_names(path) if family(name) is Family.GEMM}
    assert products
    assert {(precision(name, FP32), tensor_core(name, "fp32")) for name in products} == {("fp32", False)}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("ampere_sgemm_128x64_nn", True),
        ("volta_sgemm_128x32_sliced1x4_nn", True),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x256_8x4_tt_align1>(cutlass_80_simt_sgemm_128x256_8x4_tt_align1::Params)", True),
        ("void gemmSN_NN_kernel<float, 128, 2>(float*)", True),
        ("sgemm_v6<64, 64, 64, 16>(float*, float*, float*)", False),
        ("void sgemm_128x64_shared(float*)", False),
    ],
)
def test_a_product_of_ones_own_may_be_called_as_a_librarys(name, known):
    assert library_product(name) is known
