"""Whether kernels take longer while communication runs next to them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.intervals import overlap_with, union
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.timeline import Timeline
from advisor.views.groups import Groups
from advisor.views.ranks.collectives import RankCollectives
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.trace.steps import Steps

BESIDE, ALONE = 0.8, HARDLY_ANY
"""A kernel counts as beside communication from this share of its time, as alone up to that."""


class Contention(NamedTuple):
    """extra_us: what overlapped kernels took beyond the median of the same ones alone, in the window. ratio: of medians, weighted."""

    extra_us: float
    ratio: float


def contention(timeline: Timeline, steps: Steps, kernels: Kernels, found: RankCollectives) -> Contention:
    """The same kernels (name and grid) with and without communication next to them."""
    ops = timeline.gpu_ops
    start, dur = ops["start_us"], ops["dur_us"]
    rows = np.flatnonzero(kernels.compute & steps.holds(start))
    if not len(rows) or not len(found.start_us):
        return Contention(0.0, 1.0)
    busy = union(found.start_us, found.end_us)
    share = overlap_with(start[rows], start[rows] + dur[rows], busy) / np.maximum(dur[rows], 1e-9)
    told = rows[(share <= ALONE) | (share >= BESIDE)]
    side = (share[(share <= ALONE) | (share >= BESIDE)] >= BESIDE).astype(np.int64)
    same = Groups.by_keys(ops["name"].codes[told], ops["grid_blocks"][told])
    sides = Groups.by_keys(same.of, side)
    # (kernels, 2): alone, and beside communication.
    medians, counts = np.zeros((len(same.first), 2)), np.zeros((len(same.first), 2), np.int64)
    place = same.of[sides.first], side[sides.first]
    medians[place], counts[place] = sides.medians(dur[told]), sides.rows
    both = (counts >= FEWEST_REPEATS).all(axis=1)
    if not both.any():
        return Contention(0.0, 1.0)
    (alone, beside), count = medians[both].T, counts[both, 1]
    extra = float((np.maximum(beside - alone, 0.0) * count).sum())
    return Contention(extra, float((beside * count).sum() / max((alone * count).sum(), 1e-9)))
