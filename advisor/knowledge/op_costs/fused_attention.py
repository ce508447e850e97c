"""How long a fused attention kernel takes: its arithmetic at the rates that such kernels were measured to reach."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.knowledge.devices import Peaks

RECOMPUTED = 5 / 4
"""The backward pass computes the scores again: five products in place of four (Dao et al. 2022)."""

CAUSAL = 0.5
"""Part of the arithmetic that is left where a kernel is told that the mask is causal."""


@dataclass(frozen=True)
class Rate:
    """Share of the peak rate of the inputs' type that a kernel reaches, forward and backward."""

    forward: float
    backward: float


# Measured on one H200 with torch 2.11 (cuDNN and FlashAttention in 16 bits, CUTLASS in FP32), 1024 to 4096 words, heads of 64
# and 128: 440 TFLOP/s forward, 130 with dropout; 210 backward.
PLAIN, MASKED, DROPPED = Rate(0.45, 0.21), Rate(0.40, 0.21), Rate(0.13, 0.20)
FP32 = Rate(0.60, 0.38)
"""No flash kernel takes FP32: CUTLASS's emulates it on Tensor Cores or uses ordinary ones. Shares of the FP32 peak."""

LONG, LONG_FP32 = 1024, 768
"""Keys from which a kernel reaches those rates; with fewer it has too little to overlap, in proportion. In FP32, where arithmetic takes
longer, fewer are enough: in a GPT-2 and a BART of 512 words and a ViT of 197 patches 0.5, 0.7 and 0.8 times what 1024 would give."""

ALIGNMENT, UNALIGNED = 8, 0.3
"""Rows of a mask that do not begin at multiples of this many elements lose part of the rate: windows of 49 words gained 3 % of a step.
Without a mask odd lengths cost nothing: 197 patches gained 40 %."""

_NAMES = {"c10::Half": "fp16", "c10::BFloat16": "bf16", "float": "fp32"}


def attention_us(flops: float, dtype: str, keys: int, peaks: Peaks, *, backward: bool, masked: bool, dropped: bool) -> float | None:
    """Time of one fused kernel that does the work of products of `flops`; None for a type that no kernel takes."""
    precision = _NAMES.get(dtype)
    peak = peaks.flops_per_s(precision) if precision else None
    if peak is None:
        return None
    rate = FP32 if precision == "fp32" else DROPPED if dropped else MASKED if masked else PLAIN
    reached = min(1.0, keys / (LONG_FP32 if precision == "fp32" else LONG)) * (UNALIGNED if masked and keys % ALIGNMENT else 1.0)
    work = flops * (RECOMPUTED if backward else 1.0)
    return work / (peak * reached * (rate.backward if backward else rate.forward)) * 1e6
