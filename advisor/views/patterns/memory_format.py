"""Kernels that convert images between memory layouts, and a step with images in channels_last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.measured_costs import cost, costs
from advisor.knowledge.op_tokens import has_token, names_of
from advisor.knowledge.op_tokens.families import Family, op_family
from advisor.knowledge.shares import CONSIDERABLE, LITTLE
from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.views.replay.edits import Edit, FewerLaunches, WithDurations, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace import arguments
from advisor.views.trace.shapes import Shapes

MIN_CONV_SHARE = LITTLE
"""Copies that turn a layout are a convolution's concern only where convolutions run: this share of the time the GPU works."""

_CONVERSION = names_of("layout_conversion")
_PADDING = names_of("padding")
_XLA = names_of("generated_by_xla")
_IMAGE = re.compile(r"\[\d+(,\d+){3,4}\]")
_PRODUCTS = names_of("product_call")


class LayoutCopies(msgspec.Struct, frozen=True):
    """at: positions of kernels that change the layout of an image-like tensor and nothing else: conversions inside convolutions, and copies of recorded strides
    from channels second to channels last or back. of_sequences: positions of those left out, in convolutions over sequences, which have no such layout."""

    at: Ints
    of_sequences: Ints

    @classmethod
    def build(cls, work: GpuWork) -> LayoutCopies:
        in_conv = work.launched_by(lambda name: op_family(name) is Family.CONV)
        conv_share = float(work.dur_us[work.in_families(Family.CONV) | in_conv].sum()) / work.busy_us
        in_conv |= (work.op < 0) & (conv_share >= MIN_CONV_SHARE)
        chosen = work.in_families(Family.LAYOUT) & (work.named(_CONVERSION) | in_conv | _compiled_images(work, conv_share)) & ~work.named(_PADDING)
        flat = [o for o in np.unique(work.op[chosen]).tolist() if o >= 0 and _one_dimensional(work.timeline.cpu_ops["dims"][o])]
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
    return (images[at] | (untold[at] & work.named(_XLA))) & (conv_share >= MIN_CONV_SHARE)


def _turning_copies(work: GpuWork) -> Mask:
    """(n,) copy kernels whose recorded strides go from channels second to channels last, or back."""
    chosen = work.in_families(Family.COPY, Family.ELEMENTWISE) & (work.op >= 0)
    in_product = work.ops.within_chosen(work.ops.named(_PRODUCTS))
    turning = [
        op
        for op in np.unique(work.op[chosen]).tolist()
        if has_token(work.ops.name(op), "copy")
        and not in_product[op]
        and _turns(*map(arguments.numbers, (work.timeline.cpu_ops["dims"][op], work.timeline.cpu_ops["strides"][op])))
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


NORM_FORWARD, NORM_BACKWARD = costs("channels-last-norm")

NORM_FORWARD_BEST, NORM_BACKWARD_BEST = costs("best-norm")

OF_LIBRARY = cost("library-norms")

DEPTHWISE, DEPTHWISE_BEST = costs("depthwise-convolution")

_OWN_NORM = names_of("batch_norm_of_torch")
_LIBRARY_NORM = names_of("batch_norm_of_cudnn_in_nchw")
_BACKWARD = names_of("norm_backward")
_GROUP_NORM = names_of("native_group_norm")
REFUSING = CONSIDERABLE  # group norms a convolution: a block of three or four layers has one
_CHANNELS_LAST = names_of("channels_last")
_CONVOLUTION = names_of("convolution_forward")
_OF_PICTURES, _OF_ELSE = names_of("conv2d"), names_of("conv_1d_or_3d")
FEW_CHANNELS = 64  # as decide_layout_opt has it
PICTURES = 4
"""Axes of the weight of a convolution over pictures: channels out and in, height, width."""


class ChannelsLast(msgspec.Struct, frozen=True, eq=False):
    """turned, of_sequences, norms, of_library, depthwise: positions of the kernels that turn images, and sequences, of PyTorch's own and cuDNN's batch norms on
    NCHW tensors, of cuDNN's alone and, in 16 bits, of PyTorch's own depthwise convolutions. in_half: whether convolutions compute in 16 bits. by_norms:
    whether, if they do not, cuDNN's norms take so long that the layout is known to gain. refused: whether norms between the convolutions take NCHW alone.
    partly: whether some of the step is in channels_last already. pictures: whether most convolutions go over two axes. by_compiler: whether a compiled training
    step would keep them so. gone: nothing is turned; normed: cuDNN's norms are as fast as they can be; likely, best: both, and the others as fast as in
    channels_last, and as they can be."""

    turned: Ints
    of_sequences: Ints
    norms: Ints
    of_library: Ints
    depthwise: Ints
    in_half: bool
    by_norms: bool
    refused: bool
    partly: bool
    pictures: bool
    by_compiler: bool
    gone: Edit
    normed: Edit
    likely: Edit
    best: Edit

    @classmethod
    def build(cls, work: GpuWork, roofline: Roofline, layouts: LayoutCopies, shapes: Shapes) -> ChannelsLast:
        turned, in_half, last = layouts.at, _in_half(work), work.named(_CHANNELS_LAST)
        depthwise = np.flatnonzero(work.named(names_of("depthwise_of_torch"))) if in_half else turned[:0]
        weights = _weights(work, shapes)
        pictures = 2 * sum(len(weight) == PICTURES for _, weight in weights) > len(weights) if weights else _by_name(work)
        norms, of_library = (np.flatnonzero(work.named(of) & ~last & work.in_families(Family.NORM)) for of in (_OWN_NORM, _LIBRARY_NORM))
        of_library = of_library[_of_images(work, shapes, of_library)] if pictures else of_library[:0]
        limit_us, backward = roofline.limit_us[work.rows], work.named(_BACKWARD)
        gone = FewerLaunches(turned[:0], turned, np.empty(0))

        def takes_us(at: Ints, forward: float, back: float) -> Floats:
            return np.where(backward[at], back, forward) * limit_us[at]

        # Of small tensors they take no longer than any kernel.
        fastest_us = np.maximum(takes_us(of_library, NORM_FORWARD_BEST, NORM_BACKWARD_BEST), SHORTEST_US)
        normed = _as_fast_as(of_library, np.minimum(fastest_us, work.dur_us[of_library]))

        def with_kernels(forward: float, back: float, convolution: float) -> Edit:
            return combine(gone, normed, _as_fast_as(norms, takes_us(norms, forward, back)), _as_fast_as(depthwise, convolution * limit_us[depthwise]))

        likely = with_kernels(NORM_FORWARD, NORM_BACKWARD, DEPTHWISE)
        best = with_kernels(NORM_FORWARD_BEST, NORM_BACKWARD_BEST, DEPTHWISE_BEST)
        by_norms = not in_half and _in_tf32(work) and float(work.dur_us[of_library].sum()) >= OF_LIBRARY * work.busy_us
        return cls(
            turned, layouts.of_sequences, np.union1d(norms, of_library), of_library, depthwise, in_half, by_norms, _refused(work), bool(last.any()), pictures, _by_compiler(weights),
            gone, normed, likely, best,
        )  # fmt: skip


_NAMED_FP32 = names_of("fp32_by_name")
"""MIOpen's way of saying it."""


def _in_half(work: GpuWork) -> bool:
    """Whether convolutions compute in 16 bits; in TF32 and FP32 the other layout gained 28 % of one step and cost 34 of another."""
    precision = np.asarray(work.kernels.precision, object)[work.rows]
    convolutions = work.in_families(Family.CONV)
    wide: Mask = convolutions & (np.isin(precision, ["fp32", "tf32", "fp64"]) | work.named(_NAMED_FP32))
    return float(work.dur_us[wide].sum()) <= 0.5 * float(work.dur_us[convolutions].sum())


def _in_tf32(work: GpuWork) -> bool:
    """Whether most convolutions that compute in more than 16 bits do so in TF32."""
    precision = np.asarray(work.kernels.precision, object)[work.rows]
    in_tf32, in_fp32 = (float(work.dur_us[work.in_families(Family.CONV) & (precision == name)].sum()) for name in ("tf32", "fp32"))
    return in_tf32 > in_fp32


def _refused(work: GpuWork) -> bool:
    """Whether there are group norms for every fourth convolution or more: on the GPU PyTorch's turns its input to NCHW and returns that
    (aten/src/ATen/native/group_norm.cpp). A network of them took 14 % longer in channels_last."""
    norms, convolutions = (np.unique(work.op[work.launched_by(of)]).size for of in (_GROUP_NORM.match, lambda name: op_family(name) is Family.CONV))
    return norms >= REFUSING * convolutions and norms > 0


def _by_name(work: GpuWork) -> bool:
    """The same where shapes were not recorded, by the calls that made the convolutions."""
    return int(np.count_nonzero(work.ops.named(_OF_PICTURES))) > int(np.count_nonzero(work.ops.named(_OF_ELSE)))


def _weights(work: GpuWork, shapes: Shapes) -> list[tuple[int, tuple[int, ...]]]:
    """Of each convolution whose shapes are known, the channels of its input and the shape of its weight."""
    found = []
    for op in np.unique(work.op[work.launched_by(_CONVOLUTION.search)]).tolist():
        match shapes.inputs(op):
            case [((_, channels, *_), _), ((_, _, *_) as weight, _), *_]:
                found.append((int(channels), tuple(weight)))
    return found


def _of_images(work: GpuWork, shapes: Shapes, norms: Ints) -> Mask:
    """(n,) norms of images, by shapes. Libraries treat a 1-D convolution as 2-D, but norms between them do not."""
    axes = [len(next(iter(shapes.inputs(op)), ((0,) * PICTURES, ""))[0]) for op in work.op[norms].tolist()]
    return np.array(axes, np.int64) == PICTURES


def _by_compiler(weights: Sequence[tuple[int, tuple[int, ...]]]) -> bool:
    """Whether Inductor keeps a training step's images in channels_last: no grouped convolution with several channels per group, only elementwise ops halve the
    channels, and not all have few (decide_layout_opt in torch/_inductor/graph.py)."""
    for channels, (made, taken, *sides) in weights:
        grouped = taken not in (1, channels)
        if grouped or (made * 2 <= taken and max(sides, default=1) > 1):
            return False
    return any(max(weight[:2]) > FEW_CHANNELS for _, weight in weights)


def _as_fast_as(ops: Ints, dur_us: Floats) -> Edit:
    """Those ops in the time given, if it is known."""
    known = ~np.isnan(dur_us)
    return WithDurations(ops[known], dur_us[known])
