"""Whose program it is, and in whose terms fixes are said."""

from dataclasses import replace

import pytest

from advisor.views.trace.program import Program
from advisor.views.workspace import Workspace
from tests.build import Trace


def program(made, format="kineto"):
    timeline = made.timeline()
    return Workspace(replace(timeline, source=replace(timeline.source, format=format))).get(Program)


def kernels(*names):
    made = Trace()
    for i, name in enumerate(names):
        made.launch(i * 10, i * 10 + 2, i * 10 + 8, name)
    return made


@pytest.mark.parametrize(
    ("name", "format", "framework"),
    [
        ("vectorAdd(float *, int)", "nsys", "cuda"),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", "nsys", "torch"),
        ("triton_poi_fused_add_0", "nsys", "torch"),
        ("vectorAdd(float *, int)", "kineto", "torch"),  # PyTorch's own profiler records PyTorch
    ],
)
def test_a_program_without_a_framework_is_cudas(name, format, framework):
    assert program(kernels(name), format).framework == framework


def test_one_compiled_kernel_among_hundreds_is_no_compiled_program():
    eager = ["void at::native::x"] * 767
    assert not program(kernels(*eager, "triton_poi_fused_0")).compiled
    assert program(kernels(*["triton_poi_fused_0"] * 9, "gemm")).compiled
    ranged = kernels("a", "b", "c").note("Torch-Compiled Region: 0/0", 9, 100)  # holds the launches of b and c
    assert ranged.get(Program).compiled


@pytest.mark.parametrize(
    ("frame", "server"),
    [
        ("/usr/lib/python3/dist-packages/vllm/v1/worker/gpu_worker.py(300): execute_model", "vLLM"),
        ("sglang/srt/managers/scheduler.py(12): run_batch", "SGLang"),
        ("train.py(3): main", ""),
    ],
)
def test_the_server_is_known_by_its_frames(frame, server):
    assert program(kernels("gemm").python(frame, 0, 100)).server == server


@pytest.mark.parametrize(("kernel", "training"), [("sm90_xmma_dgrad_implicit_gemm_tf32", False), ("sm90_xmma_wgrad_implicit_gemm_tf32", True)])
def test_a_transposed_convolution_runs_the_kernel_of_a_gradient_forward(kernel, training):
    assert program(kernels("cudnn_convolution", kernel)).training is training
