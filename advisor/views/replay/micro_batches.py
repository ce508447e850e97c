"""Micro-batches: parts of a step of training that each go forward and back through the same network, whose gradients are added up."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.kernel_names import Family
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.trace.frames import matches

ALIKE = 0.9
"""Share of the kernels of a later part whose op the first one launches as often: the first also fills gradients, the others add to them."""

_OPTIMIZER, _COLLECTS = re.compile(r"^Optimizer\.step#"), re.compile("AccumulateGrad")


@dataclass(frozen=True, eq=False)
class MicroBatches:
    """Positions of GPU ops; none where a step has but one micro-batch, or parts that are not alike.

    times: micro-batches of a step, 1 where there are none. kept: what the first of each step launches. together_us: how long each of these takes in all
    micro-batches of its step, one after the other. gone: what the others launch. waits: positions of the calls that wait inside of those.
    """

    times: float
    kept: Ints
    together_us: Floats
    gone: Ints
    waits: Ints

    @classmethod
    def build(cls, work: GpuWork, calls: HostCalls) -> MicroBatches:
        empty = np.empty(0, np.int64)
        adds = np.zeros(len(work.op), bool)
        adds[accumulations(work)] = True
        of_step = [_parts(work, step) for step in np.unique(work.step).tolist()] if adds.any() else []
        if not of_step or not all(len(parts) > 1 and _accumulated(work, parts, adds) for parts in of_step):
            return cls(1.0, empty, np.empty(0), empty, empty)
        later = [part for parts in of_step for part in parts[1:]]
        first = [part for parts in of_step for part in parts[:1]]
        together = [_together(work, parts) for parts in of_step]
        inside = np.zeros(len(calls.waits), bool)
        for part in later:
            inside[work.schedule.op_call[part[0]] : work.schedule.op_call[part[-1]] + 1] = True
        return cls(1 + len(later) / len(first), np.concatenate(first), np.concatenate(together), np.concatenate(later), np.flatnonzero(inside & calls.waits))


def accumulations(work: GpuWork) -> Ints:
    """Positions of additions of a gradient to one that is there already."""
    adds = work.launched_by(lambda name: name == "aten::add_")
    if not adds.any():
        return np.empty(0, np.int64)
    inside = work.ops.outermost_where(work.ops.named(_COLLECTS))
    return np.flatnonzero(adds & (inside[work.op] >= 0))


def _parts(work: GpuWork, step: int) -> list[Ints]:
    """What a step launches, cut behind each backward pass; what comes after the last is the optimizer's."""
    at = np.flatnonzero(work.step == step)
    at = at[np.argsort(work.launched_us[at], kind="stable")]
    backward = work.backward[at]
    ends = np.flatnonzero(backward & ~np.r_[backward[1:], False]) + 1
    return [at[first:last] for first, last in pairwise([0, *ends.tolist()])]


def _accumulated(work: GpuWork, parts: list[Ints], adds: Mask) -> bool:
    """Whether all parts launch what the first does, the later ones add to its gradients, and no optimizer steps before the last. Where a forward
    pass communicates, as a stage of a pipeline does, parts are small on purpose."""
    kinds = [Counter(work.ops.names[work.op[part[work.kernel[part] & ~adds[part] & (work.op[part] >= 0)]]].tolist()) for part in parts]
    if any((kind & kinds[0]).total() < ALIKE * kind.total() for kind in kinds[1:]) or not all(adds[part].any() for part in parts[1:]):
        return False
    if (work.of(Family.COMMUNICATION) & ~work.backward)[np.concatenate(parts)].any():
        return False
    notes = work.timeline.annotations
    stepped = notes["start_us"].to_numpy()[matches(notes, _OPTIMIZER)] if len(notes) else np.empty(0)
    return not ((stepped > work.launched_us[parts[0][0]]) & (stepped < work.launched_us[parts[-1][-1]])).any()


def _together(work: GpuWork, parts: list[Ints]) -> Floats:
    """How long each op of the first part takes with its likes in all others: the n-th that an op of that name launches as a kernel of that name."""
    step = pd.DataFrame({"at": np.concatenate(parts), "part": np.repeat(np.arange(len(parts)), [*map(len, parts)])})
    step["op"] = np.r_[work.ops.names, -1][work.op[step["at"]]]
    step["dur"] = work.dur_us[step["at"]]
    step["nth"] = step.groupby(["part", "op"]).cumcount()
    whole = step.groupby(["op", "nth"])["dur"].sum()
    first = step[step["part"] == 0]
    found: Floats = whole.loc[pd.MultiIndex.from_frame(first[["op", "nth"]])].to_numpy()
    return found
