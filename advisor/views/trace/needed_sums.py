"""Collectives with a result that the next op needs: they can neither be merged nor overlapped, because nothing independent is in between."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask, in_spans, overlap_with, union
from advisor.knowledge.collectives import Collective, kind_of
from advisor.knowledge.op_tokens import AUTOGRAD
from advisor.knowledge.shares import LITTLE
from advisor.recordings.timeline import Timeline
from advisor.views.groups import Groups
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps

HIDDEN_ALREADY = LITTLE
"""Of a collective: what runs beside computing for more than this is independent of that, as far as it goes."""

_MESSAGES = (Collective.POINT_TO_POINT,)
"""Collectives that do not sum: pipeline stages pass on their results."""

_OF_GRADIENTS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
"""Where something is trained these may be of weights, which are known long before they are needed, or of gradients, which are needed long after."""


class NeededSums(msgspec.Struct, frozen=True):
    """needed: (n_gpu,) collectives of tensor parallelism. Kernels made the operand since the collective before, kernels read the result before the next
    collective, and none runs next to it.

    Gradients are averaged in the backward pass or after it, and nothing needs them before the update. So in training only the forward pass has such
    sums, if ops show it. A JAX trace does not show whether the program trains: none is known.
    """

    needed: Mask

    @classmethod
    def build(cls, timeline: Timeline, kernels: Kernels, launches: Launches, ops: Ops, steps: Steps, program: Program) -> NeededSums:
        frame = timeline.gpu_ops
        needed = np.zeros(len(frame), bool)
        if program.framework == "jax":
            return cls(needed)
        start, device = frame["start_us"], frame["device"]
        end = start + frame["dur_us"]
        for d in np.unique(device[kernels.communication]):
            rows, beside = (np.flatnonzero(which & (device == d)) for which in (kernels.communication, kernels.compute))
            rows = rows[np.argsort(start[rows], kind="stable")]
            exposed = overlap_with(start[rows], end[rows], union(start[beside], end[beside])) <= HIDDEN_ALREADY * (end - start)[rows]
            needed[rows] = exposed & _kernels_between(start[rows], np.sort(start[beside]))
        needed &= ~_is_kind(timeline, _MESSAGES)
        if program.training:
            needed &= ~_is_kind(timeline, _OF_GRADIENTS) & _forward(timeline, launches.start_us, ops, steps)
        return cls(needed)


def _is_kind(timeline: Timeline, wanted: tuple[Collective, ...]) -> Mask:
    """(n_gpu,) whether each op would be a collective of one of these kinds."""
    collectives, names = timeline.gpu_ops["collective"], timeline.gpu_ops["name"]
    groups = Groups.by_keys(collectives.codes, names.codes)
    told, kernels = [*map(str, collectives.categories), ""], list(map(str, names.categories))
    pairs = zip(collectives.codes[groups.first].tolist(), names.codes[groups.first].tolist(), strict=True)
    return np.array([kind_of(told[of], kernels[kernel]) in wanted for of, kernel in pairs], bool)[groups.of]


def _kernels_between(start: Floats, computes: Floats) -> Mask:
    """(n,) whether a kernel starts between each collective and its predecessor, and its successor. Adjacent collectives can be merged."""
    between = np.diff(np.searchsorted(computes, start)) > 0
    before, after = np.r_[True, between], np.r_[between, True]
    return np.asarray(before & after, bool)


def _forward(timeline: Timeline, launched_us: Floats, ops: Ops, steps: Steps) -> Mask:
    """(n_gpu,) whether each op was launched before a backward pass of its step, and in none; not if none was recorded."""
    backward = np.flatnonzero(ops.matching(lambda name: name.startswith(AUTOGRAD)))
    if not len(backward):
        return np.zeros(len(launched_us), bool)
    frame = timeline.cpu_ops
    begun = frame["start_us"][backward]
    spans = union(begun, begun + frame["dur_us"][backward])
    known = np.nan_to_num(launched_us, nan=np.inf)
    following: Ints = np.searchsorted(spans[0], known)
    # Of the step at whose end the recording does, whose backward pass it may lack, nothing is known.
    step = np.r_[steps.of_host_time(spans[0]), -1]
    return np.asarray((steps.of_host_time(known) == step[following]) & (step[following] >= 0) & ~in_spans(known, spans), bool)
