"""Copies that turn a tensor in memory and turn it back, with nothing in between that needed it turned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.kernel_names import Family
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace import arguments

MOST_BETWEEN = 12
"""Kernels between the two copies of a round trip at most."""

# What is between may not care in which order it meets the elements, or may only care for rows that both orders keep.
_INDIFFERENT = (Family.ELEMENTWISE, Family.COPY, Family.NORM, Family.SOFTMAX, Family.REDUCTION, Family.RANDOM, Family.FILL, Family.FUSED)


@dataclass(frozen=True)
class Turn:
    """A copy as it moves elements: sizes in the order of the source in memory, and which of these axes comes when in the target."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def back(self) -> Turn:
        """The copy that undoes it."""
        return Turn(tuple(self.sizes[axis] for axis in self.order), tuple(int(axis) for axis in np.argsort(self.order)))

    @classmethod
    def of(cls, sizes: Sequence[int], target: Sequence[int], source: Sequence[int]) -> Turn | None:
        """From a copy's sizes and both tensors' strides; None where it keeps the order, or repeats or skips elements.

        Axes that lie together on both sides are one, so that a view with other axes gives the same turn.
        """
        axes = [axis for axis, size in enumerate(sizes) if size > 1]
        if any(target[axis] <= 0 or source[axis] <= 0 for axis in axes):
            return None
        by_source = sorted(axes, key=lambda axis: -source[axis])
        groups: list[list[int]] = []
        for axis in sorted(axes, key=lambda axis: -target[axis]):
            last = groups[-1][-1] if groups else None
            if last is not None and by_source.index(axis) == by_source.index(last) + 1 and source[last] == source[axis] * sizes[axis]:
                groups[-1].append(axis)
            else:
                groups.append([axis])
        if len(groups) < 2:
            return None
        sources = sorted(range(len(groups)), key=lambda g: by_source.index(groups[g][0]))
        return cls(
            tuple(int(np.prod([sizes[axis] for axis in groups[g]])) for g in sources),
            tuple(sources.index(g) for g in range(len(groups))),
        )


@dataclass(frozen=True)
class RoundTrips:
    """there, back: positions of the copies of each round trip; none where strides were not recorded."""

    there: Ints
    back: Ints

    @classmethod
    def build(cls, work: GpuWork) -> RoundTrips:
        pairs = np.array(list(_pairs(work)), np.int64).reshape(-1, 2)
        return cls(pairs[:, 0], pairs[:, 1])


def _pairs(work: GpuWork) -> Iterator[tuple[int, int]]:
    dims, strides = (work.timeline.cpu_ops[column].cat for column in ("dims", "strides"))
    of_dims, of_strides = dims.codes.to_numpy(), strides.codes.to_numpy()
    copies = work.launched_by("aten::copy_".__eq__) & work.kernel
    turns: dict[tuple[int, int], Turn | None] = {}
    indifferent = work.of(*_INDIFFERENT)
    for stream in np.unique(work.schedule.stream):
        here = np.flatnonzero((work.schedule.stream == stream) & work.kernel)
        open_turns: list[tuple[int, Turn]] = []
        for place, k in enumerate(here.tolist()):
            if not indifferent[k]:
                open_turns.clear()
                continue
            if not copies[k]:
                continue
            op = int(work.op[k])
            key = int(of_dims[op]), int(of_strides[op])
            if key not in turns:
                turns[key] = _turn(str(dims.categories[key[0]]), str(strides.categories[key[1]]))
            turn = turns[key]
            if turn is None:
                continue
            open_turns = [(at, t) for at, t in open_turns if place - at <= MOST_BETWEEN and work.step[here[at]] == work.step[k]]
            match = next((n for n, (_, t) in enumerate(open_turns) if t.back == turn), None)
            if match is None:
                open_turns.append((place, turn))
            else:
                yield int(here[open_turns.pop(match)[0]]), k


def _turn(dims: str, strides: str) -> Turn | None:
    """Of a copy's first two arguments, target and source."""
    shapes, steps = arguments.numbers(dims)[:2], arguments.numbers(strides)[:2]
    if len(shapes) < 2 or len(steps) < 2 or shapes[0] != shapes[1] or any(len(s) != len(shapes[0]) for s in steps):
        return None
    if any(not isinstance(n, int) for n in (*shapes[0], *steps[0], *steps[1])):
        return None
    return Turn.of(shapes[0], steps[0], steps[1])
