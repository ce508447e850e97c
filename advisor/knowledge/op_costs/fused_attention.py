"""How long a fused attention kernel takes: its tiles, at the rates that such kernels were measured to reach."""

from __future__ import annotations

from math import ceil

import msgspec

from advisor.knowledge.alignment import ALIGNED_BYTES
from advisor.knowledge.devices import Peaks
from advisor.knowledge.measured_costs import cost

PREFER_CUDNN = (9, 10)
"""Major compute capabilities on which PyTorch prefers cuDNN in 16 bits (`check_prefer_cudnn_attention`). cuDNN plans a kernel per length: 48 to 75 ms on
an H200 with torch 2.11, 167 ms with the backward pass.
"""


class Rate(msgspec.Struct, frozen=True):
    """of_peak: share of the peak rate of the inputs' type that a kernel reaches on long rows with heads of HEAD. first: overhead of a row of tiles (start,
    end of the softmax), in tiles.
    """

    of_peak: float
    first: float


class Rates(msgspec.Struct, frozen=True):
    """Per type of inputs: side of a tile of scores (a shorter sequence takes as long in the forward pass); forward and backward rates plain, masked and
    with dropout; exponent of a tile's time for heads wider than HEAD; time share of heads of half that width or less. For causal masks: tiles per row
    up to which the kernel skips none, and the time share that long rows keep.
    """

    tile: int
    forward: tuple[Rate, Rate, Rate]
    backward: tuple[Rate, Rate, Rate]
    wider: tuple[float, float]
    narrow: float
    whole: int
    causal: float


HEAD = 64  # width that rates were measured at, as most models have it

# Measured on one H200 with torch 2.11 (cuDNN and FlashAttention in 16 bits, CUTLASS in FP32): 16 to 4096 words, 8 to 16,384 heads of 32, 64
# and 128, and again with masks of five kinds; plain, masked, with dropout. Of 1124 that took 100 µs
# forward or 400 backward, and more, these come within a quarter for three in four and within a half for nine in ten; shorter ones wait for their launch.
HALF = Rates(
    128,
    (Rate(0.46, 0.8), Rate(0.26, 1.0), Rate(0.175, 0.5)),
    (Rate(0.42, 2.9), Rate(0.25, 1.6), Rate(0.30, 2.5)),
    (0.5, 0.6),
    1.0,
    3,
    0.6,
)
SINGLE = Rates(
    64,
    (Rate(0.47, 0.2), Rate(0.40, 0.2), Rate(0.35, 0.2)),
    (Rate(0.50, 0.4), Rate(0.46, 0.4), Rate(0.42, 0.4)),
    (0.5, 0.9),
    0.85,
    4,
    0.42,
)
"""No flash kernel takes FP32: CUTLASS's emulates it on Tensor Cores or uses ordinary ones. Shares of the FP32 peak. With a causal mask it took
as long over 256 words and 0.56 of the time over 1024, forward and backward."""

ALIGNMENT = ALIGNED_BYTES // 2  # elements of 16 bits
UNALIGNED = cost("unaligned-mask")

FULL = 128
"""Rows of tiles with which a device is full: fewer take as long."""

SHORT = cost("short-attention")

ROW_OF_NARROW = cost("narrow-attention")

_NAMES = {"c10::Half": "fp16", "c10::BFloat16": "bf16", "float": "fp32"}


def _rates(dtype: str) -> Rates:
    return SINGLE if dtype == "float" else HALF


class Scores(msgspec.Struct, frozen=True):
    """The work of an attention: heads of all sequences together, rows and columns of each score matrix, and the head width."""

    heads: int
    queries: int
    keys: int
    width: float
    dtype: str
    backward: bool = False
    masked: bool = False
    dropped: bool = False


SINGLE_ALIGNMENT = ALIGNED_BYTES // 4
"""FP32 heads are a multiple of this many elements wide, or no fused kernel takes them (minimum_gemm_alignment in torch's sdp_utils.cpp); in 16
bits the call pads them."""


def is_fused(dtype: str, width: int) -> bool:
    """Whether `scaled_dot_product_attention` has a fused kernel for this head width; otherwise it runs GEMMs and softmax separately."""
    return dtype != "float" or width % SINGLE_ALIGNMENT == 0


def attention_us(of: Scores, peaks: Peaks) -> float | None:
    """Time of a fused kernel; None if no kernel takes the type, or if its peak is unknown."""
    precision = _NAMES.get(of.dtype)
    peak = peaks.flops_per_s(precision) if precision else None
    if peak is None:
        return None
    rates = _rates(of.dtype)
    rate = (rates.backward if of.backward else rates.forward)[2 if of.dropped else 1 if of.masked else 0]
    # Two products forward; five backward, which computes the scores again (Dao et al. 2022).
    tile_flops = (10 if of.backward else 4) * rates.tile**2 * HEAD
    first = rate.first * (ROW_OF_NARROW + (1 - ROW_OF_NARROW) * min(1.0, of.width / HEAD) if of.backward and precision != "fp32" else 1.0)
    tiles = max(of.heads * ceil(of.queries / rates.tile), FULL) * (ceil(of.keys / rates.tile) + first)
    if of.backward:
        tiles *= min(1.0, SHORT + (1 - SHORT) * max(of.queries, of.keys) / rates.tile)
    wider = max(1.0, of.width / HEAD) ** rates.wider[of.backward] if of.width > HEAD / 2 else rates.narrow
    unaligned = UNALIGNED if of.masked and of.keys % ALIGNMENT and not of.backward and precision != "fp32" else 1.0
    return tiles * wider * unaligned * tile_flops / (peak * rate.of_peak) * 1e6


def of_causal(keys: int, dtype: str) -> float:
    """Share of the time that a causal mask leaves, at least the half that it needs."""
    rates = _rates(dtype)
    return max(0.5, rates.causal + (1 - rates.causal) * min(1.0, rates.whole * rates.tile / max(keys, 1)))
