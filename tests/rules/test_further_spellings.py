"""Patterns in spellings that no recorded sample has: ops and kernels as libraries launch them, built by hand. Norms and softmaxes: test_unfused_norm.py."""

import pytest

from advisor.views.patterns.optimizer import OptimizerStep
from advisor.views.patterns.transposes import RoundTrips
from tests.build import Trace
from tests.paths import MANY_SAMPLES, sampled
from tests.rules.test_rules import attention, found, queued

BMM, SOFTMAX = "aten::bmm", "aten::_softmax"
ATTENTIONS = {
    "a bias in the product": ("aten::baddbmm", SOFTMAX, BMM),  # Bloom's alibi
    "a relative bias": (BMM, "aten::mul", "aten::add", SOFTMAX, "aten::native_dropout", BMM),  # Swin, BEiT, T5
    "a mask filled in": (BMM, "aten::div", "aten::masked_fill_", SOFTMAX, BMM),
    "a choice by mask": (BMM, "aten::mul", "aten::where", SOFTMAX, BMM),
    "a softmax in FP32": (BMM, "aten::mul", "aten::copy_", SOFTMAX, "aten::copy_", BMM),
    "a softmax written out": (BMM, "aten::amax", "aten::sub", "aten::exp", "aten::sum", "aten::div", BMM),
    "scores less the largest": (BMM, "aten::max", "aten::sub", SOFTMAX, BMM),  # GLM
    "capped scores": (BMM, "aten::div", "aten::tanh", "aten::mul", SOFTMAX, BMM),  # Gemma 2
    "a triangle that is made each time": (BMM, "aten::tril", "aten::eq", "aten::masked_fill", SOFTMAX, BMM),
    "zeros for rows without keys": (BMM, "aten::masked_fill", SOFTMAX, "aten::nan_to_num", "aten::masked_fill", BMM),
}


@pytest.mark.parametrize("spelling", ATTENTIONS)
def test_attention(spelling):
    ops = ATTENTIONS[spelling]
    finding = found("unfused-attention", queued(lambda t, h, g: attention(t, h, g, ops), gpu=40 * len(ops)))
    assert sum(item.count for item in finding.evidence) == 4 * len(ops), "all kernels of the four steps replayed"
    # What caps scores with tanh needs a score_mod: copied, scaled_dot_product_attention would leave the cap out.
    capped = "aten::tanh" in ops
    assert ("flex_attention" in finding.fix.title, "score_mod=capped" in finding.fix.code.after) == (capped, capped)
    assert ("scaled_dot_product_attention(" in finding.fix.code.after) == (not capped)


X, HALF, TABLE = [16, 1024, 32, 64], [16, 1024, 32, 32], [1, 1024, 1, 64]
POINTWISE = {
    "GELU, erf": ("div", "erf", "add", "mul", "mul"),
    "GELU, tanh": ("pow", "mul", "add", "mul", "tanh", "add", "mul", "mul"),
    "GELU by the normal distribution": ("mul", "special_ndtr", "mul"),
    "GELU, quick": ("mul", "sigmoid", "mul"),
    "SwiGLU": ("silu", "mul"),
    "ReGLU": ("relu", "mul", "add"),
    "softplus by hand": ("exp", "log1p", "tanh", "mul"),
    "squared ReLU": ("clamp_min", "pow", "mul"),
    "Snake": ("mul", "sin", "pow", "mul", "add"),
    "rotary, halves": ("mul", "neg", "cat", "mul", "add"),
    "rotary, rolled": ("mul", "roll", "mul", "mul", "add"),
    "rotary, flipped": ("mul", "flip", "mul", "add"),
    "rotary, addcmul": ("mul", "neg", "stack", "addcmul"),
    "dropout and residual": ("native_dropout", "add", "mul"),
    "dropout by bernoulli_": ("bernoulli_", "div_", "mul", "add"),
    "dropout by rand": ("rand", "gt", "where", "mul", "add"),
    "layer scale and drop path": ("mul", "mul", "add"),
    "FiLM": ("add", "mul", "add"),
    "focal loss": ("sigmoid", "rsub", "pow", "mul", "log", "neg", "mul"),
    "a mask by a triangle": ("tril", "masked_fill", "mul", "add"),
}
KERNELS = {
    "cat": "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<OpaqueType<2u>, unsigned int, 4, 64, 64>",
    "stack": "void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>, unsigned int, 4, 64, 64>",
    "roll": "void at::native::(anonymous namespace)::roll_cuda_kernel<c10::BFloat16>",
    "flip": "void at::native::elementwise_kernel<128, 4, gpu_kernel_impl<flip_kernel>>",
    "tril": "void at::native::triu_tril_kernel<c10::BFloat16, int, false, 4, false>",
    "native_dropout": "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, 1, 4, bool>",
    "bernoulli_": "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, bernoulli>",
    "rand": "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, uniform>",
}


@pytest.mark.parametrize("spelling", sampled([*POINTWISE], 1 if MANY_SAMPLES else 4))
def test_pointwise_chains_are_seen_whole(spelling):
    ops = POINTWISE[spelling]

    def body(trace, host, gpu):
        for k, op in enumerate((*ops, "mm")):
            dims = [[4096, 4096]] * 2 if op == "mm" else [X, X]
            kernel = "nvjet_sm90_tst" if op == "mm" else KERNELS.get(op, f"void at::native::vectorized_elementwise_kernel<4, at::native::{op}_kernel_cuda>")
            trace.op(f"aten::{op}", host + 5 * k, 4, dims, ["c10::BFloat16"] * 2)
            trace.launch(host + 5 * k + 1, gpu + 100 * k, gpu + 100 * k + 99, kernel)

    finding = found("unfused-elementwise", queued(body, gpu=100 * (len(ops) + 1)))
    assert {item.label for item in finding.evidence} == {" → ".join(ops)}


UPDATES = {
    "SGD": ("add_",),
    "SGD by data": ("mul", "sub"),
    "momentum": ("mul_", "add_", "add_"),
    "weight decay apart": ("mul_", "mul_", "add_", "add_"),
    "Adagrad": ("addcmul_", "sqrt", "add_", "addcdiv_"),
    "RMSprop, centred": ("mul_", "addcmul_", "lerp_", "addcmul", "sqrt_", "add_", "addcdiv_"),
    "AdamW": ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_"),
    "Lion": ("mul", "add_", "sign_", "add_", "lerp_"),
    "Adafactor's update": ("pow", "add_", "mul_", "rsqrt_", "mul", "mul_", "add_"),
    "SAM's step back": ("sub_", "add_"),
}


@pytest.mark.parametrize("spelling", UPDATES)
def test_optimizers_one_parameter_after_the_other(spelling):
    trace, parameters = Trace(), 12
    for s in range(3):
        t = 2000.0 * s
        trace.step(t, 1999, s + 1)
        ops = UPDATES[spelling] * parameters
        trace.note("Optimizer.step#Own.step", t + 10, 12.0 * len(ops) + 10)
        for k, op in enumerate(ops):
            at = t + 20 + 12 * k
            dims = [[64 * (1 + k // len(UPDATES[spelling])), 64]] * 2
            trace.op(f"aten::{op}", at, 10, dims).launch(at + 3, at + 8, at + 10, f"void at::native::vectorized_elementwise_kernel<4, {op}>", dur=4)
    update = trace.get(OptimizerStep)
    assert update.kind == "loop" and len(update.ops) == 2 * parameters * len(UPDATES[spelling])
    assert update.parameters in (parameters, 2 * parameters), "an op that is called twice counts twice"


# Sizes, and the strides of a copy there: target, source.
TRIPS = {
    "einops, b n (h d) -> b h n d": ([16, 8, 1024, 64], [524288, 65536, 64, 1], [524288, 64, 512, 1]),
    "einops, b c h w -> b h w c": ([8, 56, 56, 96], [301056, 5376, 96, 1], [301056, 56, 1, 3136]),
    "movedim of time": ([32, 8, 1024], [8192, 1024, 1], [1024, 32768, 1]),
    "swapaxes": ([64, 4096], [4096, 1], [1, 64]),
    "batch first": ([16, 512, 768], [393216, 768, 1], [768, 12288, 1]),
    "windows": ([8, 8, 8, 7, 7, 96], [301056, 37632, 4704, 672, 96, 1], [301056, 37632, 672, 5376, 96, 1]),
    "channels of video": ([2, 16, 28, 28, 64], [802816, 50176, 1792, 64, 1], [802816, 784, 28, 1, 12544]),
    "channel shuffle": ([8, 58, 2, 784], [90944, 1568, 784, 1], [90944, 784, 45472, 1]),
    "a flattened batch": ([4096, 1024], [1024, 1], [1, 4096]),
    "pixels unshuffled": ([4, 64, 2, 32, 2, 32], [262144, 4096, 2048, 64, 32, 1], [262144, 4096, 32, 128, 1, 2]),
}


@pytest.mark.parametrize("spelling", TRIPS)
def test_copies_there_and_back(spelling):
    sizes, target, source = TRIPS[spelling]
    trace = Trace()
    for s in range(3):
        trace.step(100.0 * s, 99, s + 1)
        for k, (name, strides) in enumerate((("copy_", (target, source)), ("relu", (target, target)), ("copy_", (source, target)))):
            at = 100.0 * s + 20 * k
            kernel = "direct_copy_kernel_cuda" if name == "copy_" else "relu"
            trace.op(f"aten::{name}", at, 10, [sizes, sizes]).launch(at + 3, at + 8, at + 18, f"void at::native::elementwise_kernel<128, 4, {kernel}>")
            trace.rows["cpu_ops"][-1]["strides"] = str([*strides]).replace(" ", "")
    trips = trace.get(RoundTrips)
    assert len(trips.there) == len(trips.back) == 2
