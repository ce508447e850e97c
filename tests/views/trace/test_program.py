"""Whose program it is, and in whose terms fixes are said."""

import pytest

from advisor.knowledge.structs import replace
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

    copied = kernels(*["triton_poi_fused_0"] * 9)
    for at in range(40):
        copied.copy(2_000 + 10 * at, 3, 2_005 + 10 * at, 2_008 + 10 * at)
    assert copied.get(Program).compiled, "copies are no kernels"


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


@pytest.mark.parametrize(
    ("kernel", "training"),
    [
        ("sm90_xmma_dgrad_implicit_gemm_tf32", False),
        ("sm90_xmma_wgrad_implicit_gemm_tf32", True),
        ("_unfold_backward_elementwise_kernel<128>", False),
        ("layer_norm_backward_kernel", True),
    ],
)
def test_transposed_convolutions_and_inverse_stfts_run_kernels_of_gradients_forward(kernel, training):
    assert program(kernels("cudnn_convolution", kernel)).training is training


def mapped(*inside: str, backward: bool = True) -> Trace:
    """Ops that each move an axis inside, as those of a function that vmap maps do."""
    made = Trace()
    for i, name in enumerate(inside):
        made.op(name, i * 10, 8).op("aten::movedim", i * 10 + 1, 2).launch(i * 10 + 5, i * 10 + 6, i * 10 + 7)
    return made.op("autograd::engine::evaluate_function: MulBackward0", 90, 5) if backward else made


def test_gradients_inside_a_mapped_function_are_compiled_with_it():
    ops = ["aten::mul", "aten::add", "aten::mv", "aten::sum"]
    made = program(mapped(*ops))
    assert made.training and made.functional and made.compiles_whole
    assert not program(mapped(*ops[:3])).functional, "three may be composites' own"
    assert not program(mapped(*["aten::moveaxis"] * 4)).functional, "the program's own"
    assert not program(mapped(*ops).note("Optimizer.step#AdamW.step", 200, 50)).functional, "trained"
    assert not program(mapped(*ops, backward=False)).functional and program(mapped(*ops, backward=False)).compiles_whole


def test_gradients_that_no_parameter_keeps_are_handed_back():
    """torch.autograd.grad hands them to the caller; backward() leaves them in a leaf, and an optimizer uses them."""
    engine = Trace().op("autograd::engine::evaluate_function: MulBackward0", 0, 9).op("MulBackward0", 1, 5).launch(2, 4, 6)
    made = program(engine)
    assert made.training and made.handed_back and made.compiles_whole
    assert program(engine.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 10, 5)).handed_back, "a leaf whose gradient is asked for"
    kept = program(engine.op("torch::autograd::AccumulateGrad", 11, 3))
    assert kept.training and not kept.handed_back and not kept.compiles_whole
