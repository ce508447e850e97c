"""Keys and values that are written out once for every head that shares them, and the attention that reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.kernel_names import Family
from advisor.views.replay.attention import FURTHEST
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.arguments import numbers
from advisor.views.trace.shapes import Shapes

FEWEST_KEYS = 16
"""Words that heads share at least: what is spread over fewer is no sequence's keys."""

_COPY = re.compile(r"^aten::(copy_|clone)$")
_CALL = re.compile(r"^aten::(repeat_interleave|reshape|contiguous|clone|matmul|einsum)$")
_TILE = re.compile(r"^aten::repeat$")
_FUSED = re.compile(r"^aten::scaled_dot_product_attention$")


class Expanded(NamedTuple):
    """A tensor that a copy writes out: elements of the result, how often each stands there, sizes of the axes that are no repetition."""

    elements: int
    times: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Repeated:
    """One copy of keys or values (position), and who reads it.

    call: the row of `cpu_ops` that the program called for it, -1 where it is part of the product itself. reader: the kernels (positions) that read it.
    times: heads that share one. queries: words that are asked of each, of one head. fused: whether the reader is the one call; masked: that with a mask.
    """

    at: int
    call: int
    reader: Ints
    times: int
    queries: int
    fused: bool
    masked: bool
    dtype: str


@dataclass(frozen=True)
class RepeatedHeads:
    """Every one of the steps replayed, in order; none where shapes and strides were not recorded."""

    found: tuple[Repeated, ...]

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes) -> RepeatedHeads:
        return cls(tuple(_found(work, shapes)))


def _found(work: GpuWork, shapes: Shapes) -> Iterator[Repeated]:
    frame, ops = work.timeline.cpu_ops, work.ops
    if not work.timeline.source.shapes:
        return
    # A tile puts all heads after all heads, which is no head shared by the next ones.
    tiled = np.r_[ops.outermost_where(ops.named(_TILE)), -1][work.op] >= 0
    copies = np.flatnonzero(work.launched_by(_COPY.search) & work.kernel & ~tiled)
    called, one_call = ops.outermost_where(ops.named(_CALL)), ops.outermost_where(ops.named(_FUSED))
    dims, strides = frame["dims"], frame["strides"]
    taken: set[tuple[int, int]] = set()  # keys and values are of one size: each operand is one copy's
    for at in copies.tolist():
        op = int(work.op[at])
        expanded = expansion(numbers(str(dims.iat[op]))[-3:], numbers(str(strides.iat[op]))[-3:])
        if expanded is None:
            continue
        for after in _readers(work, at):
            call = int(one_call[work.op[after]])
            reads = call if call >= 0 else int(work.op[after])
            tensors = shapes.inputs(reads)
            places = [k for k, (shape, _) in enumerate(tensors[:3]) if _is(shape, expanded) and (reads, k) not in taken and (k or call < 0)]
            if not places or len(tensors) < 2:
                continue
            place = places[0]
            taken.add((reads, place))
            inside = np.flatnonzero(one_call[work.op] == call) if call >= 0 else np.flatnonzero(work.op == reads)
            other = tensors[0][0] if place else tensors[1][0]
            yield Repeated(
                at=at,
                call=int(called[op]) if called[op] != called[work.op[after]] else -1,
                reader=inside[work.of(Family.ATTENTION, Family.GEMM)[inside]],
                times=expanded.times,
                queries=int(other[-2] if place else other[-1]),
                fused=call >= 0,
                masked=call >= 0 and len(tensors) > 3,
                dtype=tensors[place][1],
            )
            break


def expansion(dims: Sequence[Sequence[Any]], strides: Sequence[Sequence[Any]]) -> Expanded | None:
    """What a copy, of those sizes and strides, writes out of an expanded tensor, one axis of which repeats what lies before it; None where it does not."""
    for sizes, steps in zip(dims, strides, strict=False):
        spread = [k for k, (size, step) in enumerate(zip(sizes, steps, strict=False)) if size > 1 and step == 0]
        if len(sizes) >= 5 and len(steps) == len(sizes) and len(spread) == 1 and 0 < spread[0] < len(sizes) - 1 and prod(sizes[: spread[0]]) > 1:
            own = tuple(size for k, size in enumerate(sizes) if k != spread[0])
            return Expanded(prod(sizes), int(sizes[spread[0]]), own)
    return None


def _is(shape: tuple[int, ...], expanded: Expanded) -> bool:
    """Whether a tensor that is read is the one written out: as many elements, as wide a head, a sequence of as many words."""
    *_, width = expanded.sizes
    matrix = shape[-2:]
    return (
        len(shape) >= 3
        and prod(shape) == expanded.elements
        and width in matrix
        and max(matrix) >= FEWEST_KEYS
        and (matrix[0] if matrix[1] == width else matrix[1]) in expanded.sizes[:-1]
    )


def _readers(work: GpuWork, at: int) -> Iterator[int]:
    """Products and fused attention that run next on the copy's stream, in order."""
    near = np.arange(at + 1, min(at + 1 + FURTHEST, len(work.op)))
    near = near[(work.schedule.stream[near] == work.schedule.stream[at]) & (work.op[near] >= 0)]
    yield from near[work.of(Family.ATTENTION, Family.GEMM)[near]].tolist()
