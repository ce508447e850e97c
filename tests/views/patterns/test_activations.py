"""Which pointwise kernels work on nothing but what a product has just made."""

import re

import numpy as np
import pytest

from advisor.knowledge.op_tokens import AUTOGRAD
from advisor.views.patterns.activations import activations, halved
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.shapes import Shapes
from tests.build import Trace

PRODUCT, POINTWISE = "sm80_xmma_gemm_f32f32_tf32f32_f32", "vectorized_elementwise_kernel"
GEMM = re.compile("gemm")
ROWS = [4096, 512]


def step_of(*ops):
    """Four steps of the same ops, each (name, dims, types, node of the backward pass or "", sequence) and one kernel of 40 µs."""
    trace = Trace()
    for s in range(4):
        start = 1000.0 * s
        trace.step(start, 999, s + 1)
        for k, (name, dims, types, node, number) in enumerate(ops):
            at = start + 100 * k
            if node:
                trace.op(f"{AUTOGRAD}: {node}", at, 30, sequence=10 * s + number)
            trace.op(name, at + 1, 28, dims, types, sequence=-1 if node else 10 * s + number)
            trace.launch(at + 5, at + 12, at + 52, PRODUCT if "linear" in name or "conv" in name else POINTWISE)
    work, shapes = trace.get(GpuWork), trace.get(Shapes)
    return work, activations(work, shapes, np.flatnonzero(work.named(GEMM)))


LINEAR = ("aten::linear", [ROWS, [512, 512], [512]], ["float"] * 3, "", 1)


def alone(name, number=2, types=("float",), dims=(ROWS,)):
    return name, list(dims), list(types), "", number


@pytest.mark.parametrize(
    ("ops", "found"),
    [
        ((LINEAR, alone("aten::gelu")), [1]),
        ((LINEAR, alone("aten::mul", types=("float", "float"), dims=(ROWS, [])), alone("aten::sin", 3)), [1, 2]),  # a number is no tensor
        ((LINEAR, alone("aten::exp"), alone("aten::relu", 3)), []),  # autocast runs it in FP32, and what follows reads that
        ((LINEAR, alone("aten::add", types=("float", "float"), dims=(ROWS, ROWS)), alone("aten::relu", 3)), []),
        ((alone("aten::relu"),), []),
        ((LINEAR, alone("aten::gelu", types=("c10::BFloat16",))), []),
        ((("aten::conv2d", [[8, 64, 56, 56], [64, 64, 3, 3]], ["float"] * 2, "", 1), alone("aten::relu")), []),
    ],
)
def test_what_an_activation_is(ops, found):
    work, at = step_of(*ops)
    assert at.tolist() == [len(ops) * s + k for s in range(work.schedule.steps) for k in found]


def test_its_backward_pass_and_no_other():
    back = [("aten::mul", [ROWS, ROWS], ["float"] * 2, node, number) for node, number in (("SinBackward0", 2), ("AddBackward0", 3))]
    work, at = step_of(LINEAR, alone("aten::sin"), alone("aten::add", 3, ("float", "float"), (ROWS, ROWS)), *back)
    assert at.tolist() == [5 * s + k for s in range(work.schedule.steps) for k in (1, 3)]


def test_half_of_the_bytes():
    work, at = step_of(LINEAR, alone("aten::gelu"))
    assert halved(work, at).apply(work.schedule).dur_us.tolist() == [40.0, 20.0] * work.schedule.steps
