"""The part of a collective that moves data, as far as a single rank shows it."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.shares import UNUSUAL
from advisor.views.groups import Groups
from advisor.views.replay.gpu_work import GpuWork

HIDDEN = costs("overlap")

WAITING = UNUSUAL
"""A collective that takes longer than this many times the shortest one like it waits for other ranks in the rest."""


def transfer_us(work: GpuWork, at: Ints, waiting: float) -> Floats:
    """(n,) of each collective: as long as the shortest of its kernel, grid and size takes, and `waiting` times that at most."""
    ops, rows = work.timeline.gpu_ops, work.rows[at]
    alike = Groups.by_keys(ops["name"].codes[rows], *(ops[column][rows] for column in ("grid_blocks", "bytes", "in_elements")))
    return np.minimum(work.dur_us[at], waiting * alike.minima(ops["dur_us"][rows])[alike.of])


def sizes_known(work: GpuWork, at: Ints) -> bool:
    """Whether what each of them moves was recorded: only then is the shortest like it a measure of the others."""
    frame = work.timeline.gpu_ops[work.rows[at]]
    return bool(((frame["bytes"] > 0) | (frame["in_elements"] > 0)).all())
