"""Keys and values that are written out once for every head that shares them, and the attention that reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.op_tokens import names_of
from advisor.views.patterns.attention import Attentions, batched
from advisor.views.patterns.dataflow import SMALLEST, Dataflow
from advisor.views.trace.arguments import numbers

_COPY = names_of("written_copy")
_CALL = names_of("expand_call")
_TILE = names_of("tile")
_ONE_CALL = names_of("attention_call")


class Expanded(NamedTuple):
    """What a copy writes out of a tensor: for each of `shared` heads a matrix of these sides, `times` times over."""

    elements: int
    shared: int
    times: int
    sides: tuple[int, int]


class Repeated(msgspec.Struct, frozen=True):
    """A copy of keys or values (position), and its readers.

    call: row of `cpu_ops` that the program called for it, -1 if it is part of the GEMM. reader: kernels (positions) that read it. times: heads that share it.
    queries: words per head and copy. fused: whether the reader is a fused call; masked: with a mask.
    """

    at: int
    call: int
    reader: Ints
    times: int
    queries: int
    fused: bool
    masked: bool
    dtype: str


class RepeatedHeads(msgspec.Struct, frozen=True):
    """Every one of the steps replayed, in order; none if shapes and strides were not recorded."""

    found: tuple[Repeated, ...]

    @classmethod
    def build(cls, flow: Dataflow, written: Attentions) -> RepeatedHeads:
        return cls(tuple(_found(flow, written)) if flow.work.timeline.source.shapes else ())


def _found(flow: Dataflow, written: Attentions) -> Iterator[Repeated]:
    work, ops = flow.work, flow.work.ops
    # A tile puts all heads after all heads, which is no head shared by the next ones.
    tiled, called, one_call = (ops.enclosing(np.r_[: len(ops.names), -1], names) for names in (_TILE, _CALL, _ONE_CALL))
    product = np.zeros(len(work.op), bool)
    product[np.concatenate([work.op[:0], *(one.products for one in written.found)])] = True
    reads = np.where(one_call[work.op] >= 0, one_call[work.op], work.op)
    taken: set[tuple[int, int]] = set()  # keys and values are of one size: each operand is one copy's
    for at in np.flatnonzero(work.launched_by(_COPY.search) & work.kernel & (tiled[work.op] < 0)).tolist():
        op = int(work.op[at])
        expanded = expansion(numbers(work.timeline.cpu_ops["dims"][op]), numbers(work.timeline.cpu_ops["strides"][op]))
        if expanded is None:
            continue
        for after in (int(flow.kernels(edge.call, edge.call + 1)[0]) for edge in flow.readers(flow.call_at(at))):
            by, fused = int(reads[after]), one_call[work.op[after]] >= 0
            tensors = flow.shapes.inputs(by)
            places = _places(tensors, fused) if product[after] or fused else ()
            place = next((k for k in places if _is_copy_of(tensors[k][0], expanded) and (by, k) not in taken), None)
            if place is None:
                continue
            taken.add((by, place))
            sizes = None if fused else batched(tensors)
            yield Repeated(
                at=at,
                call=int(called[op]) if called[op] != called[work.op[after]] else -1,
                reader=np.flatnonzero(reads == by),
                times=expanded.times,
                queries=sizes[1] if sizes else int(tensors[0][0][-2]),
                fused=fused,
                masked=fused and len(tensors) > 3,
                dtype=tensors[place][1],
            )
            break


def _places(tensors: Sequence[tuple[tuple[int, ...], str]], fused: bool) -> tuple[int, ...]:
    """Inputs that may be keys or values: second and third of the fused call; right operand of a GEMM, which an added bias shifts."""
    if fused:
        return (1, 2) if len(tensors) > 2 and len(tensors[0][0]) > 2 else ()
    matrices = tuple(k for k, (shape, _) in enumerate(tensors) if len(shape) > 2)
    return matrices[1:] if len(matrices) > 1 and batched([*tensors]) else ()


def expansion(dims: Sequence[Sequence[Any]], strides: Sequence[Sequence[Any]]) -> Expanded | None:
    """The copied expanded tensor, by these sizes and strides: [.., heads, times, words, width] or [.., words, heads, times, width], with no stride for times;
    None otherwise."""
    for sizes, steps in zip(dims, strides, strict=False):
        if len(sizes) < 5 or len(steps) != len(sizes) or not all(isinstance(size, int) and size > 0 for size in sizes):
            continue
        spread = [k for k, (size, step) in enumerate(zip(sizes, steps, strict=True)) if size > 1 and step == 0]
        if spread in ([len(sizes) - 3], [len(sizes) - 2]) and prod(sizes[: spread[0]]) > 1:
            words = sizes[-2] if spread[0] == len(sizes) - 3 else sizes[-4]
            return Expanded(prod(sizes), sizes[spread[0] - 1], sizes[spread[0]], (words, sizes[-1]))
    return None


def _is_copy_of(shape: tuple[int, ...], expanded: Expanded) -> bool:
    """Whether a tensor that is read is the one written out: as many elements, matrices of those sides, turned or not, and as many heads."""
    return (
        sorted(shape[-2:]) == sorted(expanded.sides)
        and min(expanded.sides) >= SMALLEST
        and prod(shape) == expanded.elements
        and (len(shape) != 4 or shape[-3] == expanded.times * expanded.shared)
    )
