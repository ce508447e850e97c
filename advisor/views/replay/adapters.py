"""Low-rank adapters that are computed beside the layers that they adapt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.kernel_names import Family
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.shapes import Shapes

LOW = 4
"""A rank is low that is so many times smaller than both sides of the layer: those in use are 4 to 256, for layers of 512 and more."""

FURTHEST = 60
"""Kernels from a layer's product to the sum with its adapter at most: adapters that norm the adapted weight have some fifteen."""

MOST_AFTER = 8
"""Kernels from an adapter's last product to the addition that ends it, at most: casts, scales, dropout."""

_ADD = re.compile(r"^aten::add_?$")


class _Product(NamedTuple):
    """A product of two matrices, [rows, inner] x [inner, columns], and where it is launched (the last of its kernels)."""

    first: int
    last: int
    rows: int
    inner: int
    columns: int


@dataclass(frozen=True)
class Adapter:
    """members: kernels (positions) that are not launched once it is part of the layer's weight; rank: of its two products; begin, end: rows of `cpu_ops`, the outermost
    op before which the program begins with it, and that with which it ends."""

    members: Ints
    rank: int
    begin: int
    end: int


@dataclass(frozen=True)
class Adapters:
    """Every one of the steps replayed, in order; none where shapes were not recorded."""

    found: tuple[Adapter, ...]

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes) -> Adapters:
        if not work.timeline.source.shapes:
            return cls(())
        streams = (np.flatnonzero((work.schedule.stream == stream) & work.kernel) for stream in np.unique(work.schedule.stream))
        return cls(tuple(one for here in streams for one in _found(work, shapes, here)))


def _found(work: GpuWork, shapes: Shapes, here: Ints) -> Iterator[Adapter]:
    products = list(_products(work, shapes, here))
    for k, (down, up) in enumerate(pairwise(products)):
        rank, elements = down.columns, up.rows * up.columns
        if up.inner != rank or up.rows != down.rows or rank * LOW > min(down.inner, up.columns) or not _between_are_casts(work, here, down.last, up.first):
            continue
        # The sum follows the adapter, with the layer before both, or the layer stands between.
        end = _addition(work, shapes, here, up.last, elements)
        layer = next((p for p in (reversed(products[:k]) if end >= 0 else products[k + 2 : k + 3]) if rank not in (p.inner, p.columns)), None)
        if layer is None or (layer.rows, layer.inner, layer.columns) != (down.rows, down.inner, up.columns):
            continue
        begin = layer.last + 1 if end >= 0 else down.first
        end = end if end >= 0 else _addition(work, shapes, here, layer.last, elements)
        inside = here[(here >= begin) & (here <= end)]
        if len(inside) and len(inside) <= FURTHEST and work.step[inside[0]] == work.step[inside[-1]]:
            members = inside[(inside < layer.first) | (inside > layer.last)]
            yield Adapter(members, rank, *work.ops.outermost[work.op[members[[0, -1]]]].tolist())


def _products(work: GpuWork, shapes: Shapes, here: Ints) -> Iterator[_Product]:
    """Of two matrices each, in the order of their launches; one of several kernels is one."""
    dense = here[work.of(Family.GEMM)[here] & (work.op[here] >= 0)]
    ops = work.op[dense]
    for first, last in zip(np.flatnonzero(np.r_[True, np.diff(ops) != 0]), np.flatnonzero(np.r_[np.diff(ops) != 0, True]), strict=True) if len(ops) else ():
        matrices = [shape for shape, _ in shapes.inputs(int(ops[first])) if len(shape) == 2][-2:]
        if len(matrices) == 2 and matrices[0][1] == matrices[1][0]:
            yield _Product(int(dense[first]), int(dense[last]), matrices[0][0], *matrices[1])


def _between_are_casts(work: GpuWork, here: Ints, begin: int, end: int) -> bool:
    """Whether nothing but copies lies between an adapter's products: what is not linear there keeps them apart from the layer's weight."""
    between = here[(here > begin) & (here < end)]
    return all(work.name(k) == "aten::copy_" for k in between.tolist() if not work.of(Family.GEMM)[k])


def _addition(work: GpuWork, shapes: Shapes, here: Ints, begin: int, elements: int) -> int:
    """The first addition of as many elements after a position, with nothing but pointwise work on as many, or copies, before it; -1 where there is none."""
    made, plain = shapes.made[work.rows], work.of(Family.ELEMENTWISE, Family.COPY)
    for k in here[here > begin][:MOST_AFTER].tolist():
        if made[k] == elements and _ADD.search(work.name(k)):
            return k
        if not plain[k] and work.name(k) != "aten::copy_" and made[k] != elements:
            return -1
    return -1
