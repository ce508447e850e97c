"""What was recorded of the tensors that each op reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import msgspec
import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.op_costs.arguments import DTYPE_BYTES
from advisor.knowledge.op_tokens import TORCH
from advisor.knowledge.op_tokens.families import Family, op_family
from advisor.recordings.columns import compact, row_by_row
from advisor.recordings.timeline import Timeline
from advisor.views.trace import arguments
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.ops import Ops


class Shapes(msgspec.Struct, frozen=True, eq=False, dict=True):
    """elements: (n_gpu,) of the largest input tensor of the op that launched each; -1 if not recorded. made: the same, but for elementwise ops the
    elements after broadcasting.
    """

    elements: Ints
    made: Ints
    timeline: Timeline
    _inputs: dict[tuple[int, int], list[tuple[tuple[int, ...], str]]] = msgspec.field(default_factory=dict)

    def inputs(self, op: int) -> list[tuple[tuple[int, ...], str]]:
        """Shape and type of each tensor among the inputs of a row of `cpu_ops`, in order; [] if they were not recorded."""
        if op < 0:
            return []
        dims, types = self._codes
        key = int(dims[op]), int(types[op])
        if key not in self._inputs:
            self._inputs[key] = _tensors(self.timeline.cpu_ops["dims"][op], self.timeline.cpu_ops["types"][op])
        return self._inputs[key]

    def parts(self, op: int) -> tuple[int, ...]:
        """Elements of each tensor of a list among an op's inputs, as of what is joined; () if there is none, or it was not recorded."""
        if op < 0:
            return ()
        lists = (item for item in arguments.numbers(self.timeline.cpu_ops["dims"][op]) if item and isinstance(item[0], list))
        return tuple(prod(shape) for shape in next(lists, ()))

    def alike(self, ops: Ints) -> tuple[list[int], list[int]]:
        """Numbers of the dimensions and of the types of rows of `cpu_ops`, -1 of -1: rows of equal numbers have equal inputs."""
        dims, types = (np.r_[codes, -1][ops] for codes in self._codes)
        return dims.tolist(), types.tolist()

    @cached_property
    def _codes(self) -> tuple[Ints, Ints]:
        # As arrays: taking one value out of a table costs tens of microseconds.
        frame = self.timeline.cpu_ops
        return frame["dims"].codes, frame["types"].codes

    def dtype(self, op: int) -> str:
        """Type of the first tensor, as recorded; "" if there is none."""
        return next((kind for _, kind in self.inputs(op)), "")

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops, kernels: Kernels) -> Shapes:
        dims = timeline.cpu_ops["dims"]
        largest, broadcast = (np.array([*(of(text) for text in dims.categories), -1], np.int64) for of in (_largest, _broadcast))
        code = row_by_row(np.r_[dims.codes, -1].__getitem__, ops.of_gpu)
        plain = np.array([*map(broadcasts, ops.categories), False], bool)[ops.codes(ops.of_gpu)]
        made = np.where(plain & kernels.in_families(Family.ELEMENTWISE), broadcast[code], largest[code])
        return cls(compact(largest[code]), compact(made), timeline)


def broadcasts(op_name: str) -> bool:
    """Whether the output of an op with an elementwise kernel has the broadcast shape of its inputs: an op of the framework that its name shows to be
    nothing else. Other ops read tensors that do not broadcast, such as 4-bit weights and their scales.
    """
    return op_name.startswith(TORCH) and op_family(op_name) is None


def broadcast_elements(shapes: Sequence[Sequence[int]]) -> int:
    """Elements of an elementwise result of tensors of these shapes; of the largest tensor if they do not broadcast, or if the count overflows a word."""
    largest = max((prod(shape) for shape in shapes), default=-1)
    try:
        made = prod(np.broadcast_shapes(*map(tuple, shapes)))
    except (TypeError, ValueError):  # lists of tensors, shapes of something else
        return largest
    return made if made < 1 << 62 else largest


def _tensors(dims: str, types: str) -> list[tuple[tuple[int, ...], str]]:
    return [
        (tuple(shape), kind)
        for shape, kind in zip(arguments.numbers(dims), arguments.names(types), strict=False)
        if kind in DTYPE_BYTES and all(isinstance(size, int) for size in shape)
    ]


def _broadcast(dims: str) -> int:
    """Elements of what an elementwise op makes of its inputs."""
    shapes = [item for item in arguments.numbers(dims) if item]
    if len(shapes) < 2 or any(isinstance(size, list) for shape in shapes for size in shape):
        return _largest(dims)
    made = broadcast_elements(shapes)
    return made if made < 1 << 62 else -1


def _largest(dims: str) -> int:
    """Elements of the largest tensor, one in a list of tensors among them."""
    # No tensor has more elements than a machine word counts: what claims to is no size.
    largest = max((_elements(item) for item in arguments.numbers(dims)), default=-1)
    return largest if largest < 1 << 62 else -1


def _elements(item: list[Any]) -> int:
    if item and isinstance(item[0], list):
        return max((prod(shape) for shape in item), default=-1)
    return prod(item) if item else -1
