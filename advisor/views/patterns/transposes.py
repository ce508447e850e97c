"""Copies that turn a tensor in memory and turn it back, with nothing in between that had to have it turned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.views.patterns.dataflow import NEAR, Dataflow, Sure
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace import arguments

# What is between may not care in which order it meets the elements, or may only care for rows that both orders keep.
_INDIFFERENT = (Family.ELEMENTWISE, Family.COPY, Family.NORM, Family.SOFTMAX, Family.REDUCTION, Family.RANDOM, Family.FILL, Family.FUSED)


class Turn(msgspec.Struct, frozen=True):
    """A copy as it moves elements: sizes in the order of the source in memory, and which of these axes comes when in the target."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def inverse(self) -> Turn:
        """The copy that undoes it."""
        return Turn(tuple(self.sizes[axis] for axis in self.order), tuple(int(axis) for axis in np.argsort(self.order)))

    @classmethod
    def create(cls, sizes: Sequence[int], target: Sequence[int], source: Sequence[int]) -> Turn | None:
        """From a copy's sizes and both tensors' strides; None if it keeps the order, or repeats or skips elements.

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
        return cls(tuple(int(np.prod([sizes[axis] for axis in groups[g]])) for g in sources), tuple(sources.index(g) for g in range(len(groups))))


class RoundTrips(msgspec.Struct, frozen=True):
    """there, back: positions of both copies of each round trip; empty without strides. left: backward copies that transpose a gradient as a trip did its
    tensor. mixed: backward kernels with one transposed and one plain input, which take a multiple of the time. around_products: whether GEMMs of weights
    between the copies contract the last axis: from the left, as torch.bmm(weight, x), they take the tensor as it was. untold: copies placed like trips,
    without recorded strides."""

    there: Ints
    back: Ints
    left: Ints
    mixed: Ints
    around_products: Mask
    untold: Ints

    @classmethod
    def build(cls, flow: Dataflow) -> RoundTrips:
        work, turns = flow.work, _Turns(flow.work)
        untold = np.zeros(0, np.int64) if work.timeline.source.shapes else _several_between(work)
        pairs = np.array(list(_pairs(flow, turns)), np.int64).reshape(-1, 3)
        pairs, around = pairs[:, :2], pairs[:, 2].astype(bool)
        known = {turn for k in pairs[~around, 0].tolist() if (turn := turns.turn_at(k))}
        known |= {turn.inverse for turn in known}
        copies = work.launched_by(names_of("copy").search)
        others = work.kernel & (copies | work.in_families(Family.ELEMENTWISE)) & bool(known)
        others[pairs.ravel()] = False
        turned = np.array([k for k in np.flatnonzero(others).tolist() if turns.turn_at(k) in known], np.int64)
        if not work.backward[turned].all():
            # The forward pass has the other order for more than trips, as for a product along another axis.
            turned = turned[:0]
        left, mixed = turned[copies[turned]], turned[~copies[turned]]
        return cls(pairs[:, 0], pairs[:, 1], left, mixed, around, untold)


class _Turns:
    """How the first two tensors of each kernel's op lie to each other: of a copy, target and source."""

    def __init__(self, work: GpuWork) -> None:
        self.op = work.op
        self.dims, self.strides = (work.timeline.cpu_ops[column] for column in ("dims", "strides"))
        self.codes = self.dims.codes, self.strides.codes
        self.known: dict[tuple[int, int], Turn | None] = {}

    def turn_at(self, position: int) -> Turn | None:
        op = int(self.op[position])
        if op < 0:
            return None
        key = int(self.codes[0][op]), int(self.codes[1][op])
        if key not in self.known:
            self.known[key] = _turn(str(self.dims.categories[key[0]]), str(self.strides.categories[key[1]]))
        return self.known[key]

    def contracts(self, position: int, turn: Turn) -> bool:
        """Whether a product takes the last axis of a batch turned so, and nothing of the others: (batch * kept, turned) by a weight."""
        if turn.order != (0, 2, 1):
            return False
        batch, turned, kept = turn.sizes
        left, right = [*arguments.numbers(str(self.dims.categories[int(self.codes[0][int(self.op[position])])])), [], []][:2]
        return len(left) == len(right) == 2 and left[0] == batch * kept and turned in (left[1], right[1])


def _pairs(flow: Dataflow, turns: _Turns) -> Iterator[tuple[int, int, bool]]:
    """Both copies of each round trip, and whether GEMMs are in between: a copy that transposes a tensor, and the first that transposes it back after ops that
    do not depend on the order."""
    copies, indifferent = flow.calls_with_token("copy") & flow.of_families(Family.COPY, Family.ELEMENTWISE), flow.of_families(*_INDIFFERENT)
    products = flow.calls_with_token("mm") & flow.of_families(Family.GEMM)
    if flow.backward.any():
        # The gradient of such a weight sums over the batch: turned, in one product, straight in one for each sample.
        products[:] = False
    back = set[int]()
    for call in np.flatnonzero(copies).tolist():
        at = int(flow.kernels(call, call + 1)[-1])
        if call in back or (turn := turns.turn_at(at)) is None:
            continue
        contracted = np.array([bool(one) and turns.contracts(int(flow.kernels(k, k + 1)[-1]), turn) for k, one in enumerate(products.tolist())], bool)
        passes = indifferent | contracted
        for other in sorted(flow.uses(call, passes, Sure.NEAREST)):
            if not passes[call:other].all():
                break
            if copies[other] and other not in back and turns.turn_at(int(flow.kernels(other, other + 1)[-1])) == turn.inverse:
                back.add(other)
                yield at, int(flow.kernels(other, other + 1)[-1]), bool(contracted[call:other].any())
                break


def _several_between(work: GpuWork) -> Ints:
    """Copies of two or more of one step with so few kernels between as a round trip has, and none that cares for their order."""
    copies = work.launched_by(names_of("copy").search) & work.kernel
    indifferent = work.in_families(*_INDIFFERENT)
    found = np.zeros(len(work.rows), bool)
    for here in work.parts:
        run = np.cumsum(~indifferent[here])
        at = np.flatnonzero(copies[here])
        near = (np.diff(run[at]) == 0) & (np.diff(at) <= NEAR)
        found[here[at[1:][near]]] = True
        found[here[at[:-1][near]]] = True
    return np.flatnonzero(found)


def _turn(dims: str, strides: str) -> Turn | None:
    """Of a copy's first two arguments, target and source."""
    shapes, steps = arguments.numbers(dims)[:2], arguments.numbers(strides)[:2]
    if len(shapes) < 2 or len(steps) < 2 or shapes[0] != shapes[1] or any(len(s) != len(shapes[0]) for s in steps):
        return None
    if any(not isinstance(n, int) for n in (*shapes[0], *steps[0], *steps[1])):
        return None
    return Turn.create(shapes[0], steps[0], steps[1])
