"""Kernels that only turn images from one memory layout into another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge.kernel_names import Family, op_family
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace import arguments

MIN_CONV_SHARE = 0.10
"""Copies that turn a layout are a convolution's concern only where convolutions run: this share of the time the GPU works."""

_CONVERSION = re.compile(r"nchwtonhwc|nhwctonchw|cnhw", re.IGNORECASE)
_PADDING = re.compile(r"padding", re.IGNORECASE)
_XLA = re.compile(r"^wrapped_")
_IMAGE = re.compile(r"\[\d+(,\d+){3,4}\]")
_PRODUCTS = re.compile(r"matmul|b?mm$|einsum|attention")


@dataclass(frozen=True)
class LayoutCopies:
    """at: positions of kernels that change the layout of an image-like tensor and nothing else: conversions inside convolutions, and
    copies of recorded strides from channels second to channels last or back. of_sequences: positions of those left out, in convolutions over
    sequences, which have no such layout."""

    at: Ints
    of_sequences: Ints

    @classmethod
    def build(cls, work: GpuWork) -> LayoutCopies:
        in_conv = work.launched_by(lambda name: op_family(name) is Family.CONV)
        conv_share = float(work.dur_us[work.of(Family.CONV) | in_conv].sum()) / work.busy_us
        in_conv |= (work.op < 0) & (conv_share >= MIN_CONV_SHARE)
        chosen = work.of(Family.LAYOUT) & (work.named(_CONVERSION) | in_conv | _compiled_images(work, conv_share)) & ~work.named(_PADDING)
        flat = [o for o in np.unique(work.op[chosen]).tolist() if o >= 0 and _one_dimensional(work.timeline.op_text("dims", o))]
        of_sequences = chosen & np.isin(work.op, flat)
        chosen &= ~of_sequences
        if conv_share >= MIN_CONV_SHARE:
            chosen |= _turning_copies(work)
        return cls(np.flatnonzero(chosen), np.flatnonzero(of_sequences))


def _compiled_images(work: GpuWork, conv_share: float) -> Mask:
    """(n,) kernels that a compiler made of tensors with 4 or 5 dimensions, or does not say of which, in a program that convolves."""
    operands = work.timeline.compiled_ops["operands"]
    images = np.array([*(bool(_IMAGE.search(text)) for text in operands), False], bool)
    untold = np.array([*(not text for text in operands), True], bool)
    at = work.column("compiled")
    found: Mask = (images[at] | (untold[at] & work.named(_XLA))) & (conv_share >= MIN_CONV_SHARE)
    return found


def _turning_copies(work: GpuWork) -> Mask:
    """(n,) copy kernels whose recorded strides go from channels second to channels last, or back."""
    chosen = work.of(Family.COPY, Family.ELEMENTWISE) & (work.op >= 0)
    in_product = work.ops.within(work.ops.named(_PRODUCTS))
    turning = [
        op
        for op in np.unique(work.op[chosen]).tolist()
        if work.ops.name(op) == "aten::copy_"
        and not in_product[op]
        and _turns(*map(arguments.numbers, (work.timeline.op_text("dims", op), work.timeline.op_text("strides", op))))
    ]
    return chosen & np.isin(work.op, turning)


def _turns(dims: Any, strides: Any) -> bool:
    """Whether a copy's target and source (first two arguments) have the channels at other ends."""
    if len(dims) < 2 or len(strides) < 2 or dims[0] != dims[1] or len(dims[0]) not in (4, 5):
        return False
    if any(len(s) != len(dims[0]) for s in strides[:2]) or min(dims[0][1:]) < 2:
        return False
    target, source = (_order(s) for s in strides[:2])
    if target[0] != 0 or source[0] != 0:
        return False
    moved = [target.index(axis) for axis in source[1:]]
    n = len(moved)
    return moved in ([*range(2, n + 1), 1], [n, *range(1, n)])


def _order(strides: Sequence[int]) -> list[int]:
    """Axes from the outermost in memory to the innermost."""
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def _one_dimensional(dims: str) -> bool:
    """Whether an op's first tensor is a sequence, [N, C, L] or [N, C, 1, L]: those have no channels_last."""
    first: list[Any] = next(iter(arguments.numbers(dims)), [])
    return len(first) == 3 or (len(first) == 4 and 1 in first[2:] and first[2:] != [1, 1])
