"""What is fetched or added by index beside what is computed of it, as graph networks pass messages: a compiled kernel does both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.op_tokens import is_a, names_of
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.shapes import Shapes

_FETCHES = names_of("fetch_by_index")
_ADDS = names_of("add_by_index")


@dataclass(frozen=True, eq=False)
class ByIndex:
    """Positions of kernels. fetched: by the kernel after them, the gathers right before it; added: by the kernel before it, what adds its result by index.
    elements: of each gather what it makes, of each of the others what it adds."""

    fetched: dict[int, tuple[int, ...]]
    added: dict[int, int]
    elements: dict[int, int]

    def given(self, run: Ints) -> tuple[int, ...]:
        """Elements of each tensor that is fetched for kernels in a row."""
        return tuple(self.elements[at] for at in self.fetched.get(int(run[0]), ()))

    def taken(self, run: Ints) -> int:
        """Elements of what kernels in a row made that is then added elsewhere, 0 where nothing is."""
        return self.elements.get(self.added.get(int(run[-1]), -1), 0)

    def beside(self, run: Ints, sizes: Iterable[int]) -> tuple[int, ...]:
        """What is fetched for kernels in a row and what adds their result, of as many elements as one of these sizes."""
        of_sizes = {*sizes}
        around = (*self.fetched.get(int(run[0]), ()), self.added.get(int(run[-1]), -1))
        return tuple(at for at in around if self.elements.get(at) in of_sizes)

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes) -> ByIndex:
        found = cls({}, {}, {})
        fetches, adds = ({*np.flatnonzero(work.launched_by(pattern.match) & work.kernel).tolist()} for pattern in (_FETCHES, _ADDS))
        found.elements.update({at: made for at in fetches if (made := _fetched(work, shapes, at))})
        found.elements.update({at: added for at in adds if (added := _added(work, shapes, at))})
        if not found.elements:
            return found
        # Neither a step nor its backward pass begins inside a compiled kernel.
        part = (2 * work.step + work.backward).tolist()
        for stream in np.unique(work.schedule.stream):
            waiting: list[int] = []
            before = -1
            for now in np.flatnonzero(work.schedule.stream == stream).tolist():
                if before >= 0 and part[before] != part[now]:
                    waiting, before = [], -1
                if now in fetches:
                    waiting = [*waiting, now] if len(waiting) < MOST else [now]
                else:
                    if waiting:
                        found.fetched[now] = tuple(at for at in waiting if at in found.elements)
                    if now in adds and now in found.elements and before >= 0:
                        found.added[before] = now
                    waiting = []
                before = now
        return found


MOST = 16
"""Gathers in a row that are held for what follows them: more are no operands of one kernel."""


def _fetched(work: GpuWork, shapes: Shapes, at: int) -> int:
    """Elements of what a gather makes: as many as its index has, or rows of its source, which messages are; 0 where that was not recorded."""
    tensors = [shape for shape, _ in shapes.inputs(int(work.op[at]))]
    if len(tensors) < 2:
        return 0
    return prod(tensors[1]) * (prod(tensors[0][1:]) if is_a(work.name(at), "index_select") else 1)


def _added(work: GpuWork, shapes: Shapes, at: int) -> int:
    tensors = [shape for shape, _ in shapes.inputs(int(work.op[at]))]
    return prod(tensors[-1]) if len(tensors) > 2 else 0
