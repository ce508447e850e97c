"""Which call reads what another made: no trace records it, so it is inferred once, from order, sizes and types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge.counts import EXAMINED
from advisor.knowledge.op_costs.arguments import DTYPE_BYTES, INTEGRAL
from advisor.knowledge.op_tokens import has_token
from advisor.knowledge.op_tokens.families import Family, op_family
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.shapes import Shapes, broadcast_elements, broadcasts

REACH = EXAMINED  # calls between what makes a tensor and what reads it, at most: layers repeat, and sizes that coincide further off tell nothing
NEAR = 12
"""Maximum kernels between two that belong together, without shapes: scale, mask, casts, softmax, dropout, each up to twice."""

SMALLEST = 16
"""Minimum elements of a row of features, of a head, or of its scores: smaller tensors are of something else, as the first decoded words."""

Tensor = tuple[tuple[int, ...], str]
"""Shape and type, as recorded."""
Size = tuple[int, str]
"""Elements of a tensor and their type."""


class Sure(IntEnum):
    """How sure it is that a call reads what another made."""

    GUESS = 1
    """Something else has made as much of that type since."""
    NEAREST = 2
    """Nothing has since, but something else in reach did before."""
    ONLY = 3
    """Nothing else in reach did."""


class Edge(NamedTuple):
    """A call that made as many elements of a type as another reads, and how sure it is that they are the same."""

    call: int
    sure: Sure


class Product(NamedTuple):
    """A GEMM [batch, rows, inner] x [batch, inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int


class Dataflow(msgspec.Struct, frozen=True, eq=False, dict=True):
    """n calls, numbered in stream order: ops with the kernels that each launched in a row, and kernels without a known op.

    op: (n,) rows of `cpu_ops`, -1 if unknown. part: (n,) segment of a stream in a step; edges stay inside. bounds: (n + 1,) start of each call's kernels in
    `at`, their positions.
    """

    work: GpuWork
    shapes: Shapes
    op: Ints
    part: Ints
    bounds: Ints
    at: Ints

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes) -> Dataflow:
        at = np.concatenate([*work.parts, work.rows[:0]])
        op = work.op[at]
        part = np.repeat(np.arange(len(work.parts)), [len(part) for part in work.parts])
        begins = np.flatnonzero((op < 0) | (np.diff(op, prepend=-2) != 0) | (np.diff(part, prepend=-1) != 0))
        return cls(work, shapes, op[begins], part[begins], np.r_[begins, len(at)], at)

    def name(self, call: int) -> str:
        """The op, else the kernel."""
        return self.work.name(int(self.firsts[call]))

    def call_at(self, position: int) -> int:
        """The call that launched a kernel."""
        return int(self._call_at[position])

    def next_calls(self, call: int, most: int) -> range:
        """The next calls of its stretch."""
        return range(call + 1, min(call + 1 + most, int(np.searchsorted(self.part, self.part[call], side="right"))))

    @cached_property
    def backward(self) -> Mask:
        """(n,) whether autograd launched each."""
        return self.work.backward[self.firsts]

    def of_families(self, *families: Family) -> Mask:
        """(n,) whether each is of these families, by its first kernel."""
        return self.work.in_families(*families)[self.firsts]

    def reads(self, call: int) -> list[Size]:
        """Each tensor that it reads, in the order of its arguments; [] if that was not recorded."""
        return self._calls_of(call)[0]

    def makes(self, call: int) -> Size:
        """Elements of the result; 0 if shapes do not show it, as for a reduction."""
        return self._calls_of(call)[1]

    def _calls_of(self, call: int) -> tuple[list[Size], Size]:
        return sizes(self.name(call), self.inputs(call), bool(self._pointwise[call]))

    def has_token(self, call: int, token: str) -> bool:
        """Whether that is a token of the call's name."""
        return bool(self.calls_with_token(token)[call])

    def inputs(self, call: int) -> list[Tensor]:
        """Each tensor among its arguments; [] if that was not recorded."""
        return self.shapes.inputs(int(self.op[call]))

    def kernels(self, begin: int, end: int) -> Ints:
        """Positions of the kernels of a range of calls, in their order."""
        return self.at[self.bounds[begin] : self.bounds[end]]

    def kernels_of(self, calls: range) -> Ints:
        """Likewise."""
        return self.kernels(calls.start, calls.stop)

    @property
    def parts(self) -> list[range]:
        """The calls of each segment of a stream in a step."""
        edges = [*np.flatnonzero(np.diff(self.part, prepend=-1)).tolist(), len(self.part)]
        return [range(begin, end) for begin, end in pairwise(edges)]

    def product(self, call: int) -> Product | None:
        """The sizes of a call's GEMM, None without a GEMM or recorded shapes."""
        return self._products.get(call)

    @property
    def products(self) -> Iterable[tuple[int, Product]]:
        """Every call that multiplies tensors of recorded sizes, in order."""
        return self._products.items()

    def sources(self, call: int) -> Iterator[Edge]:
        """Possible producers of a call's inputs, tensor by tensor, the nearest first."""
        made, read = self._sizes
        begin = max(call - REACH, int(np.searchsorted(self.part, self.part[call])))
        for size in dict.fromkeys(read[call]):
            found = (np.flatnonzero(made[begin:call] == size)[::-1] + begin).tolist()
            for nth, other in enumerate(found):
                yield Edge(other, Sure.GUESS if nth else Sure.NEAREST if len(found) > 1 else Sure.ONLY)

    def readers(self, call: int) -> Iterator[Edge]:
        """Possible consumers of a call's result, the nearest first."""
        made, read = self._sizes
        begin = max(call - REACH, int(np.searchsorted(self.part, self.part[call])))
        before, sure = made[begin:call], Sure.ONLY
        for other in self.next_calls(call, REACH):
            if made[call] in read[other]:
                yield Edge(other, Sure.NEAREST if sure is Sure.ONLY and made[call] in before else sure)
            sure = Sure.GUESS if made[other] == made[call] else sure

    def origins(self, call: int, through: str | Mask, sure: Sure = Sure.GUESS) -> Iterator[int]:
        """Calls with results that a call may read, directly or through others of that token or mask, nearest first. sure: minimum certainty of each edge."""
        return self._reached(call, self.sources, through, sure)

    def uses(self, call: int, through: str | Mask, sure: Sure = Sure.GUESS) -> Iterator[int]:
        """Calls that may read a call's result, likewise."""
        return self._reached(call, self.readers, through, sure)

    def _reached(self, call: int, edges: Callable[[int], Iterator[Edge]], through: str | Mask, sure: Sure) -> Iterator[int]:
        waiting, seen, passes = [call], {call}, self.calls_with_token(through) if isinstance(through, str) else through
        for at in waiting:
            if (key := (edges.__name__, at)) not in self._next:
                surest = dict[int, Sure]()
                for edge in edges(at):
                    surest[edge.call] = max(edge.sure, surest.get(edge.call, edge.sure))
                self._next[key] = surest
            for other, known in self._next[key].items():
                if known >= sure and other not in seen and abs(other - call) <= REACH:
                    seen.add(other)
                    yield other
                    if passes[other]:
                        waiting.append(other)

    def calls_with_token(self, token: str) -> Mask:
        """(n,) whether that is a token of each call's name; each distinct name is examined once."""
        if token not in self._tokens:
            names, of = self._named
            self._tokens[token] = np.array([has_token(name, token) for name in names], bool)[of]
        return self._tokens[token]

    @cached_property
    def _named(self) -> tuple[list[str], Ints]:
        """The distinct names of calls, and which of them each has."""
        _, first, of = np.unique(self.work.kind[self.firsts], return_index=True, return_inverse=True)
        return list(map(self.name, first.tolist())), of

    @cached_property
    def _tokens(self) -> dict[str, Mask]:
        return {}

    @cached_property
    def _next(self) -> dict[tuple[str, int], dict[int, Sure]]:
        """The calls that edges lead to from a call, by their direction, and how surely, as far as anybody asked."""
        return {}

    @cached_property
    def _call_at(self) -> Ints:
        found = np.full(len(self.work.op), -1, np.int64)
        found[self.at] = np.repeat(np.arange(len(self.op)), np.diff(self.bounds))
        return found

    @cached_property
    def firsts(self) -> Ints:
        """(n,) position of the first kernel of each call."""
        return self.at[self.bounds[:-1]]

    @cached_property
    def _pointwise(self) -> Mask:
        return self.work.in_families(Family.ELEMENTWISE)[self.firsts]

    @cached_property
    def _products(self) -> dict[int, Product]:
        dense = self.work.in_families(Family.GEMM)[self.firsts] & (self.op >= 0)
        known: dict[tuple[int, int], Product | None] = {}
        found = {}
        for call, alike in zip(np.flatnonzero(dense).tolist(), zip(*self.shapes.alike(self.op[dense]), strict=True), strict=True):
            if alike not in known:
                known[alike] = multiplied([shape for shape, _ in self.inputs(call)])
            if product := known[alike]:
                found[call] = product
        return found

    @cached_property
    def _sizes(self) -> tuple[Ints, list[tuple[int, ...]]]:
        """(n,) a number for each result (-1 if unknown), and for each input; distinct calls are computed once."""
        numbers: dict[Size, int] = {}
        known: dict[tuple[object, ...], tuple[int, tuple[int, ...]]] = {}
        names = self.work.ops.codes(self.op).tolist()
        found = []
        for call, key in enumerate(zip(names, *self.shapes.alike(self.op), self._pointwise.tolist(), strict=True)):
            if key not in known:
                reads, makes = self._calls_of(call)
                known[key] = numbers.setdefault(makes, len(numbers)) if makes[0] > 0 else -1, tuple(numbers.setdefault(size, len(numbers)) for size in reads)
            found.append(known[key])
        return np.array([makes for makes, _ in found], np.int64), [reads for _, reads in found]


def sizes(name: str, inputs: Sequence[Tensor], pointwise: bool) -> tuple[list[Size], Size]:
    """Inputs and result elements of an op of that name, 0 if shapes do not show them. pointwise: whether its kernel is elementwise."""
    read = [(prod(shape), kind) for shape, kind in inputs]
    if not read:
        return [], (0, "")
    if has_token(name, "write_first_argument"):
        return read[1:2], read[0]
    if has_token(name, "fetch_by_index"):
        index, rows = (read[1][0], 1 if has_token(name, "gather") else prod(inputs[0][0][1:])) if len(read) > 1 else (0, 0)
        return read, (index * rows, read[0][1])
    family = op_family(name)
    if family is Family.REDUCTION:
        return read, (0, "")
    if family is Family.GEMM and (product := multiplied([shape for shape, _ in inputs])):
        return read, (product.batch * product.rows * product.columns, inputs[-1][1])
    if pointwise and broadcasts(name):
        return read, (broadcast_elements([shape for shape, _ in inputs]), "bool" if has_token(name, "compare") else _promoted(name, inputs))
    return read, max(read, key=lambda size: (size[0], DTYPE_BYTES[size[1]]))


def _promoted(name: str, inputs: Sequence[Tensor]) -> str:
    """Result type of an elementwise op: of its first tensor if in place, else the widest, complex before floating point before integral. A tensor without
    dimensions widens no type of its category (https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc)."""
    if name.endswith("_"):
        return inputs[0][1]
    ranks = {kind: ("complex" in kind, kind not in INTEGRAL, DTYPE_BYTES[kind]) for _, kind in inputs}
    return max((kind for shape, kind in inputs if shape), key=lambda kind: ranks[kind], default=inputs[0][1])


def multiplied(shapes: Sequence[Sequence[int]]) -> Product | None:
    """The sizes of a GEMM: of the last two matrices among an op's tensors, or of the first two if the third takes the result."""
    matrices = [shape for shape in shapes if len(shape) >= 2]
    written = len(matrices) == 3 and matrices[0][-1] == matrices[1][-2] and tuple(matrices[2][-2:]) == (matrices[0][-2], matrices[1][-1])
    matrices = matrices[:2] if written else matrices[-2:]
    if len(matrices) != 2:
        return None
    (*lead, rows, inner), (*other, inner_too, columns) = matrices
    if inner != inner_too or prod(lead) != prod(other) or prod(lead) < 1:
        return None
    return Product(prod(lead), rows, inner, columns)
