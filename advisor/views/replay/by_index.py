"""What is fetched or added by index beside what is computed of it, as graph networks pass messages: a compiled kernel does both."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from advisor.intervals import Ints
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.shapes import Shapes

_FETCHES = re.compile(r"^aten::(gather|index_select)$")
_ADDS = re.compile(r"^aten::(index_add_?|scatter_add_?)$")


@dataclass(frozen=True, eq=False)
class ByIndex:
    """Kernels by their positions. fetched: of the kernel that follows them on its stream, gathers in a row; added: of the kernel before it, one that adds by index.
    elements: of what each of these makes of the index, or adds."""

    fetched: dict[int, tuple[int, ...]]
    added: dict[int, int]
    elements: dict[int, int]

    def given(self, first: int) -> tuple[int, ...]:
        """Elements of each tensor that is fetched for a kernel."""
        return tuple(self.elements[at] for at in self.fetched.get(first, ()))

    def taken(self, last: int) -> int:
        """Elements of what a kernel made that is then added elsewhere, 0 where nothing is."""
        return self.elements[self.added[last]] if last in self.added else 0

    def beside(self, run: Ints) -> tuple[int, ...]:
        """What is fetched for a run of kernels, and what adds its result."""
        return (*self.fetched.get(int(run[0]), ()), *((self.added[int(run[-1])],) if int(run[-1]) in self.added else ()))

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes) -> ByIndex:
        fetches, adds = (work.launched_by(pattern.match) & work.kernel for pattern in (_FETCHES, _ADDS))
        found = cls({}, {}, {})
        for at in np.flatnonzero(fetches | adds).tolist():
            tensors = [prod(shape) for shape, _ in shapes.inputs(int(work.op[at]))]
            if len(tensors) > 1:
                found.elements[at] = tensors[1] if fetches[at] else tensors[-1]
        for stream in np.unique(work.schedule.stream):
            waiting: tuple[int, ...] = ()
            for before, now in pairwise([-1, *np.flatnonzero(work.schedule.stream == stream).tolist()]):
                if before >= 0 and work.step[before] != work.step[now]:
                    waiting, before = (), -1
                if fetches[now]:
                    waiting = (*waiting, now) if now in found.elements else ()
                    continue
                if waiting:
                    found.fetched[now] = waiting
                if adds[now] and now in found.elements and before >= 0:
                    found.added[before] = now
                waiting = ()
        return found
