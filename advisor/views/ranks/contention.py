"""Whether kernels take longer while communication runs next to them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from advisor.intervals import overlap_with, union
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.timeline import Timeline
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
    start, dur = ops["start_us"].to_numpy(), ops["dur_us"].to_numpy()
    rows = np.flatnonzero(kernels.compute & steps.holds(start))
    if not len(rows) or not len(found.start_us):
        return Contention(0.0, 1.0)
    busy = union(found.start_us, found.end_us)
    share = overlap_with(start[rows], start[rows] + dur[rows], busy) / np.maximum(dur[rows], 1e-9)
    frame = pd.DataFrame(
        {
            "key": pd.factorize(pd.MultiIndex.from_arrays([ops["name"].cat.codes.to_numpy()[rows], ops["grid_blocks"].to_numpy()[rows]]))[0],
            "side": np.where(share >= BESIDE, 1, np.where(share <= ALONE, 0, -1)),
            "dur": dur[rows],
        }
    )
    table = frame[frame["side"] >= 0].groupby(["key", "side"])["dur"].agg(["median", "count"]).unstack()
    if table.shape[1] < 4:
        return Contention(0.0, 1.0)
    table = table[(table["count"] >= FEWEST_REPEATS).all(axis=1)]
    if not len(table):
        return Contention(0.0, 1.0)
    alone, beside, count = (table[column].to_numpy() for column in (("median", 0), ("median", 1), ("count", 1)))
    extra = float((np.maximum(beside - alone, 0.0) * count).sum())
    return Contention(extra, float((beside * count).sum() / max((alone * count).sum(), 1e-9)))
