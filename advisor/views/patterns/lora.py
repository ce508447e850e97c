"""Low-rank adapters that are computed beside the layers that they adapt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.shapes import Shapes

LOW = 4
"""A rank is low that is so many times smaller than both sides of the layer: those in use are 4 to 256, for layers of 512 and more."""

FURTHEST = 60
"""Kernels from a layer's product to the sum with its adapter at most: adapters that norm the adapted weight have some twenty."""

# What is linear, dropout that is off or on, and making what a scale is made of.
_LINEAR = names_of("linear_pointwise")
_SCALE = names_of("mul_or_div")
_ADD = names_of("add")
_COPY = names_of("copy")
_NORM_OF_WEIGHT = names_of("norm_of_weight")


class _Product(NamedTuple):
    """A product of two matrices, [rows, inner] x [inner, columns], and its first and last kernel."""

    first: int
    last: int
    rows: int
    inner: int
    columns: int


@dataclass(frozen=True)
class Adapter:
    """members: kernels (positions) that are not launched once it is part of the layer's weight; rank: of its two products. ops: rows of `cpu_ops`, first and last of each
    stretch in which the program issues them, without the layer's own product."""

    members: Ints
    rank: int
    ops: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Adapters:
    """Every one of the steps replayed, in order; none where shapes were not recorded."""

    found: tuple[Adapter, ...]

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes) -> Adapters:
        if not work.timeline.source.shapes:
            return cls(())
        streams = (np.flatnonzero((work.schedule.stream == stream) & work.kernel) for stream in np.unique(work.schedule.stream))
        return cls(tuple(one for here in streams for one in _Reader(work, shapes, here).adapters()))


@dataclass(frozen=True, eq=False)
class _Reader:
    """Of one stream: the kernels (positions) that run on it, in order."""

    work: GpuWork
    shapes: Shapes
    here: Ints

    @cached_property
    def dense(self) -> np.ndarray:
        return self.work.of(Family.GEMM)

    @cached_property
    def products(self) -> list[_Product]:
        """Of two matrices each; one of several kernels is one."""
        at = self.here[self.dense[self.here] & (self.work.op[self.here] >= 0)]
        found = []
        for run in np.split(at, np.flatnonzero(np.diff(self.work.op[at])) + 1) if len(at) else ():
            matrices = [shape for shape, _ in self.shapes.inputs(int(self.work.op[run[0]])) if len(shape) == 2][-2:]
            if len(matrices) == 2 and matrices[0][1] == matrices[1][0]:
                found.append(_Product(int(run[0]), int(run[-1]), matrices[0][0], *matrices[1]))
        return found

    def adapters(self) -> Iterator[Adapter]:
        for k, (down, up) in enumerate(pairwise(self.products)):
            rank, elements = down.columns, up.rows * up.columns
            if up.inner != rank or up.rows != down.rows or rank * LOW > min(down.inner, up.columns) or not self._only(_COPY, down.last, up.first):
                continue
            # The layer before both, which the sum follows; or the layer between them and the sum.
            layer, end = self._before(k, rank), self._sum(up.last, elements, _LINEAR)
            if end < 0:
                layer = self.products[k + 2] if k + 2 < len(self.products) and self._only(_SCALE, up.last, self.products[k + 2].first) else None
                end = self._sum(layer.last, elements, _SCALE) if layer else -1
            if layer is None or end < 0 or (layer.rows, layer.inner, layer.columns) != (down.rows, down.inner, up.columns):
                continue
            begin = min(layer.last + 1, down.first)
            members = self._between(begin - 1, end + 1)
            members = members[(members < layer.first) | (members > layer.last)]
            if len(members) <= FURTHEST and self.work.step[begin] == self.work.step[end] and (layer.last > up.last or self._of_one_layer(layer, down)):
                yield Adapter(members, rank, tuple(self._issued(part) for part in (members[members < layer.first], members[members > layer.last]) if len(part)))

    def _before(self, k: int, rank: int) -> _Product | None:
        """The product before the k-th that has another inner side and other columns than the rank: a norm of the adapted weight needs some that have."""
        for j in range(k - 1, max(k - 4, -1), -1):
            if rank not in (self.products[j].inner, self.products[j].columns):
                return self.products[j]
        return None

    def _of_one_layer(self, layer: _Product, down: _Product) -> bool:
        """Whether an adapter, whose first product this is, reads what the layer before it does: nothing but copies lies between, or, where the adapted weight is normed,
        what is linear."""
        names = [self.work.name(k) for k in self._between(layer.last, down.first).tolist() if not self.dense[k]]
        normed = any(map(_NORM_OF_WEIGHT.search, names))
        return all(_COPY.search(name) or (normed and (_LINEAR.search(name) or _NORM_OF_WEIGHT.search(name))) for name in names)

    def _between(self, begin: int, end: int) -> Ints:
        """Kernels after a position and before another."""
        first, last = np.searchsorted(self.here, (begin + 1, end))
        return self.here[first:last]

    def _only(self, allowed: re.Pattern[str], begin: int, end: int) -> bool:
        """Whether nothing lies between but copies and ops of such names: what is not linear keeps an adapter's products from the layer's weight."""
        names = map(self.work.name, self._between(begin, end).tolist())
        return all(_COPY.search(name) or allowed.search(name) for name in names)

    def _sum(self, begin: int, elements: int, allowed: re.Pattern[str]) -> int:
        """The first addition, after a position, of two tensors of as many elements with nothing before it but copies and such ops; -1 where there is none."""
        for k in self._between(begin, begin + FURTHEST).tolist():
            name = self.work.name(k)
            if _ADD.search(name) and [prod(shape) for shape, _ in self.shapes.inputs(int(self.work.op[k]))][:2] == [elements, elements]:
                return k
            if not (_COPY.search(name) or allowed.search(name)):
                return -1
        return -1

    def _issued(self, members: Ints) -> tuple[int, int]:
        """The ops with which the program issues the first and the last of some kernels; the innermost ones where a call, as of compiled code, holds more."""
        ops, place = self.work.ops, np.searchsorted(self.here, members[[0, -1]])
        beside = self.work.op[self.here[[k for k in (place[0] - 1, place[1] + 1) if 0 <= k < len(self.here)]]]
        more = ops.outermost[beside[beside >= 0]]
        begin, end = (int(own if ops.outermost[own] in more else ops.outermost[own]) for own in self.work.op[members[[0, -1]]])
        return begin, end
