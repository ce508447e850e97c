"""Kernel names as people say them."""

from __future__ import annotations

import pytest

from advisor.reports._names import short, trace_id


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(cutlass_80_tensorop_s1688gemm::Params)", "cutlass_80_tensorop_s1688gemm"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)", "vectorized_elementwise_kernel CUDAFunctor_add"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)", "vectorized_layer_norm_kernel"),
        ("void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float>(int, float)", "vectorized_layer_norm_kernel"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("triton_poi_fused_gelu_view_2", "triton_poi_fused_gelu_view_2"),
        ("</script><img src=x onerror=alert(1)>", "</script><img src=x onerror=alert(1)>"),
        ("<", "<"),
        ("", ""),
    ],
)  # fmt: skip
def test_short(name: str, said: str) -> None:
    assert short(name) == said


def test_pages_of_two_traces_are_told_apart() -> None:
    assert trace_id("a/rank0.json.gz") != trace_id("b/rank0.json.gz")
    assert trace_id("a/rank0.json.gz") == trace_id("./a/../a/rank0.json.gz")
