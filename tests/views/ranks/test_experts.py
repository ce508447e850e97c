"""GEMMs of experts by rank and step, the rank with most of them, and the server's option for it."""

import msgspec
import pytest

from advisor.engine.run import analyze
from advisor.knowledge.op_tokens.families import EXPERTS, Family, family
from advisor.knowledge.stacks import Asked, packs
from advisor.recordings.recording import Recording
from advisor.reports import formats
from advisor.rules.load_imbalance import SERVED_EXPERTS
from advisor.views.ranks.culprit import Culprit
from advisor.views.ranks.experts import Experts
from advisor.views.ranks.job import Job, RankSummaries
from tests.build import Trace
from tests.views.ranks.build import rank_timeline, summary_of

GROUPED = (
    "fused_moe_kernel",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int>>>>",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, (deep_gemm::GemmType)1>",
    "void cutlass::Kernel2<cutlass::gemm::kernel::MoeFCGemm<cutlass::bfloat16_t>>",
    "void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<1u, (deep_gemm::GemmType)5, true>(int*)",
    "void deep_gemm::sm100_fp8_fp4_mega_moe_impl<128u, 7168u>(void*)",
    "void marlin_moe_wna16::Marlin<1125899906910725l, 1125899923621888l, 256, 4, 16, 4, false>(int4 const*)",
    "batched_triton_kernel",
    "_mxfp8_grouped_gemm_kernel",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu",
    "bmm_E2m1_E2m1E2m1_Fp32_Ab16_Bb16_Cb16_t128x8x512u2_s5_et128x8_m128x8x64_c1x1x1_rM_TN_transOut_schPd2x1x2x3_biasFp32M_bN_ldgsts_ldgstsSf_rgTma_clmp_swiGlu_dynB_sm100f",
    "bmm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x256u2_s6_et128x128_m256x128x64_c2x1x1_rM_TN_transOut_schPd2x1x2x3_biasFp32M_bN_rgTma_clmp_dynB_sm100f",
    "aiter::fmoe_bf16_blockscaleFp8_g1u1_vs_gelu_1tg_32x128",
    "void ck::kernel_moe_mxgemm_2lds<ck::Gridwise>(ck::Gridwise::Argument)",
    "void ck_tile::kentry<1, ck_tile::MoeFlatmmKernel<ck_tile::Tile> >(ck_tile::Args)",
    "e2e_moe_persistent_kernel",
    "opus_moe_stage2_a8w4_decode_kernel_gfx950",
)
PLAIN = (
    "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, (deep_gemm::GemmType)0>",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
    "void marlin::Marlin<1125899906910725l, 256, 4, 16, 4, false>(int4 const*)",
    "fused_moe_router_tensorcore_kernel",
)
AROUND = (
    "void vllm::moe::moe_align_block_size_kernel<int>(int*)",
    "void vllm::moe::topkGating<8, 64>(float*)",
    "moe_fused_mul_sum_kernel",
    "fused_moe_dispatch_index_triton_kernel",
    "_fused_moe_preprocess_kernel",
    "ck_tile::MoeSortingKernel<ck_tile::Problem>",
    "opus_moe_stage2_reduce_token_slot_route_output_kernel_gfx950",
    "deepep_permute_triton_kernel",
    "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<float>(float*)",
    "triton_poi_fused_moe_forward_0",
)
EXCHANGES = (
    "void deep_ep::legacy::intranode::dispatch<8, 768, 8192>(int4*)",
    "void deep_ep::legacy::internode_ll::combine<7168>(void*)",
    "void deep_ep::elastic::hybrid_dispatch_impl<true>(void*)",
    "kernel_flashinfer_mnnvl_moe_alltoall_combine_top_k_8",
    "void tensorrt_llm::kernels::moe_a2a::moeA2ADispatchKernel<8, false>(int*)",
    "moeA2ACombineKernel",
    "void tensorrt_llm::kernels::fusedMoeCommKernel<false>(int*)",
    "EpDispatchIntraNodeKernel_bf16",
    "void mori::moe::EpCombineLowLatencyAsyncRecvCopy<float>(float*)",
)


@pytest.mark.parametrize("name", GROUPED)
def test_a_kernel_of_several_experts_is_told_from_one_of_all_tokens(name):
    assert EXPERTS.search(name) and family(name, "", "") is Family.GEMM


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_gemm_is_none_of_experts(name):
    assert not EXPERTS.search(name) and family(name, "", "") is Family.GEMM


@pytest.mark.parametrize("name", AROUND)
def test_kernels_around_experts_are_no_gemms(name):
    assert family(name, "", "") not in (Family.GEMM, Family.COMMUNICATION)


@pytest.mark.parametrize("name", EXCHANGES)
def test_exchanges_between_experts_communicate(name):
    assert family(name, "", "") is Family.COMMUNICATION


def test_each_step_has_the_time_of_its_own_experts_gemms():
    trace = Trace()
    for number, us in enumerate((10.0, 30.0, 20.0)):
        at = 1000.0 * number
        trace.step(at, 900.0, number + 1).launch(at + 1, at + 10, at + 10 + us, "fused_moe_kernel").launch(at + 2, at + 100, at + 150, "nvjet_tst_64x8")
    trace.step(3000.0, 900.0, 4).launch(3001, 3010, 3011, "nvjet_tst_64x8")
    assert summary_of(trace.timeline()).facts.experts_us[:3] == (10.0, 30.0, 20.0)


WORK = [[[50.0]] * 4, [[90.0]] * 4, [[50.0]] * 4]
OF_RANKS = ((5.0, 5.0, 5.0, 25.0), (60.0, 60.0, 60.0, 20.0), (10.0, 10.0, 10.0, 10.0))
ALIKE = ((20.0,) * 4, (36.0,) * 4, (20.0,) * 4)


def job(server="vLLM", experts=OF_RANKS):
    made = [summary_of(rank_timeline(rank, own, WORK)) for rank, own in enumerate(WORK)]
    ranks = [
        msgspec.structs.replace(one, facts=msgspec.structs.replace(one.facts, server=server, trains=False, experts_us=us))
        for one, us in zip(made, experts, strict=True)
    ]
    return RankSummaries(tuple(ranks))


def test_the_hottest_rank_and_the_balance_are_those_of_a_hand_count():
    found = Experts.build(Job.build(job()))
    # Means of a step: 25, 25, 25, 18.3; largest: 60, 60, 60, 25.
    assert (found.hottest, found.hottest_steps, found.balance) == (1, 0.75, pytest.approx(25 / 60))
    assert Experts.build(Job.build(job(experts=((), (5.0,), ())))).at == ()


def test_every_format_for_people_says_which_rank_is_hot():
    made = analyze(Recording("job", "job", (job(),)))
    experts = made.report.experts
    assert (experts.hottest, experts.ranks[1].us, experts.ranks[1].by_step_us) == (1, 50.0, OF_RANKS[1])
    for name in ("text", "markdown", "html"):
        assert "rank 1 takes 50.0 µs, and has most in 75% of the steps" in " ".join(formats()[name].render(made).split()), name


@pytest.mark.parametrize(("package", "version"), [("vllm", "0.33.0"), ("vllm", "0.10.2"), ("sglang", "0.5.23"), ("sglang", "0.4.9")])
def test_a_server_is_told_its_own_option_for_experts_and_no_other_program(package, version):
    code = f"{SERVED_EXPERTS.code.before}\n{SERVED_EXPERTS.code.after}"
    asked = Asked("load-imbalance", "imbalance", code, "inference", (), version)
    assert packs()[package].option_for(asked).option == "--enable-eplb"
    assert packs()[package].option_for(asked._replace(code="")) is None


def test_hot_experts_are_uneven_work_and_a_rank_slow_at_everything_is_not():
    hot, slow = (Culprit.build(Job.build(job(experts=us))) for us in (OF_RANKS, ALIKE))
    assert (hot.at, hot.cause, slow.at, slow.cause) == (1, "imbalance", 1, "compute")


def test_a_server_with_hot_experts_gets_its_own_option_and_no_advice_of_training():
    report = analyze(Recording("job", "job", (job(),))).report
    (finding,) = [one for one in report.findings if one.rule == "load-imbalance"]
    assert finding.fix.title == "Balance experts over the ranks" and not any("loss" in step for step in finding.fix.steps)
