"""The host's time in ops that a fix takes away together, those that launch nothing among them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from advisor.intervals import Ints, Spans, subtract, union
from advisor.views.replay.gpu_work import GpuWork


def host_between(work: GpuWork, patterns: Iterable[Ints], gone: Ints) -> Spans:
    """Where the host issued patterns, each from its first kernel's op to its last one's, but for ops that launch more than what is gone.

    Positions both. Views, and nodes of autograd that launch nothing, lie between: they go where the pattern becomes one op.
    """
    ops = work.timeline.cpu_ops
    start = ops["start_us"].to_numpy()
    end = start + ops["dur_us"].to_numpy()
    issued = [op[op >= 0] for op in (work.op[members] for members in patterns)]
    issued = [op for op in issued if len(op)]
    staying = np.unique(np.delete(work.op, gone))
    staying = staying[staying >= 0]
    between = union(np.array([end[op].min() for op in issued]), np.array([start[op].max() for op in issued]))
    return subtract(between, union(start[staying], end[staying]))
