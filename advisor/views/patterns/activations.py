"""Pointwise work on what a product has just made, which autocast leaves in the product's type."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.views.replay.edits import Edit, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.shapes import Shapes

_MATRICES = names_of("matrix_product")
# Autocast runs these in FP32, whatever they are given: https://docs.pytorch.org/docs/stable/amp.html
_WIDENED = names_of("autocast_to_fp32")
_FRAMEWORK, _NODE = names_of("torch_op"), names_of("autograd_node")


def activations(work: GpuWork, shapes: Shapes, products: Ints) -> Ints:
    """Positions of the pointwise kernels that work on nothing but what one of some matrix products (positions) has just made, as a layer's
    activation does, and of their backward pass; none where shapes were not recorded. A convolution's are left out: in 16 bits it wants another
    layout, which costs as much again."""
    ops = work.ops
    called = np.r_[ops.outermost_where(ops.named(_FRAMEWORK)), -1][work.op]
    forward = np.flatnonzero(work.kernel & (called >= 0) & ~work.backward)
    if not len(forward):
        return forward
    multiplies = np.isin(forward, products) & np.r_[ops.named(_MATRICES), False][called[forward]]
    pointwise = work.of(Family.ELEMENTWISE)[forward] & _alone(shapes, called[forward], np.r_[ops.named(_WIDENED), False])
    # What comes before the kernels of one activation after the other is the product, or anything else.
    before = np.maximum.accumulate(np.where(pointwise, -1, np.arange(len(forward))))
    own = forward[pointwise & (before >= 0) & multiplies[before] & (work.step[forward[before]] == work.step[forward])]
    return np.union1d(own, _backward(work, called[own], work.step[own]))


def halved(work: GpuWork, at: Ints) -> Edit:
    """The kernels at some positions with half as many bytes to move."""
    return WithDurations(at, np.maximum(work.dur_us[at] / 2, SHORTEST_US))


def _alone(shapes: Shapes, called: Ints, widened: Mask) -> Mask:
    """(n,) whether each op reads one tensor of numbers, in FP32, and autocast does not widen it."""
    distinct, which = np.unique(called, return_inverse=True)
    found = np.array([not widened[op] and [kind for shape, kind in shapes.inputs(op) if shape] == ["float"] for op in distinct.tolist()], bool)
    return found[which].astype(bool)


def _backward(work: GpuWork, ops: Ints, step: Ints) -> Ints:
    """Positions of the pointwise kernels that autograd ran for some ops, each in its step, by their sequence numbers."""
    sequence = np.r_[work.timeline.cpu_ops["sequence"].to_numpy(), -1].astype(np.int64)
    node = np.r_[work.ops.outermost_where(work.ops.named(_NODE)), -1][work.op]
    number = sequence[node]
    most = max(int(sequence.max(initial=0)), 0) + 1
    asked = sequence[ops] >= 0
    of_ops = (step * most + sequence[ops])[asked]
    of_nodes = np.where(number >= 0, work.step * most + number, -1)
    return np.flatnonzero((node >= 0) & work.of(Family.ELEMENTWISE) & np.isin(of_nodes, of_ops))
