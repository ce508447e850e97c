"""Kernels that leave SMs without a block, and what they would take on a full device."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.grids import DIVISIBLE, EQUAL_BLOCKS, FEW_ON_PURPOSE
from advisor.knowledge.measured_costs import cost, costs
from advisor.knowledge.op_tokens.families import Family
from advisor.views.patterns.grid_occupancy import Grids
from advisor.views.replay.edits import Edits, WithDurations
from advisor.views.replay.gpu_work import GpuWork

SECOND_PASS_US = cost("second-pass")


LIKELY_RATE, LEAST_RATE = costs("split-kernel")


UNKNOWN_FILL = cost("unknown-fill")


def candidates(work: GpuWork, grids: Grids, limit: Floats, own: Mask, max_fill: float, min_kernel_us: float, max_limit_share: float) -> tuple[Mask, Mask]:
    """(n,) kernels with few blocks, and those with few in their last wave, of those that more blocks would make faster."""
    unknown = np.isnan(limit)
    reached = limit / np.maximum(work.dur_us, 1e-9)
    eligible = _divisible(work, grids, min_kernel_us) & np.where(unknown, work.in_families(*DIVISIBLE, Family.OTHER) | own, reached <= max_limit_share)
    return eligible & (grids.fill <= max_fill), eligible & _with_tail(work, grids, max_fill) & ~unknown


def undecided(work: GpuWork, grids: Grids, limit: Floats, max_fill: float, min_kernel_us: float) -> Mask:
    """(n,) kernels with few blocks, or few in their last wave, without a known limit: more blocks may make them faster or not."""
    return _divisible(work, grids, min_kernel_us) & np.isnan(limit) & ((grids.fill <= max_fill) | _with_tail(work, grids, max_fill))


def _divisible(work: GpuWork, grids: Grids, min_kernel_us: float) -> Mask:
    long = work.kernel & (grids.blocks > 0) & (grids.sms > 0) & (work.dur_us >= min_kernel_us)
    found: Mask = long & ~work.named(FEW_ON_PURPOSE) & ~work.in_families(Family.COMMUNICATION, Family.OPTIMIZER)
    return found


def _with_tail(work: GpuWork, grids: Grids, max_fill: float) -> Mask:
    found: Mask = (grids.waves > 1) & (grids.last_wave <= 0.5 + max_fill / 2) & work.in_families(*EQUAL_BLOCKS)
    return found


def filled_edits(at: Ints, filled: Floats, tail: Mask, limit_us: Floats, dur_us: Floats, unsure: Mask) -> Edits:
    """Kernels at the time that a full device would need; kernels with a tail without part of it. Kernels of unknown kind may not be divisible."""
    known, unknown = np.nan_to_num(limit_us), np.isnan(limit_us)

    def durations_at(fill: Floats, rate: float, without: float, least: float = UNKNOWN_FILL) -> WithDurations:
        full = np.maximum(dur_us * np.where(unknown, np.maximum(fill, least), fill), known / rate) + SECOND_PASS_US
        without_tail = np.maximum(dur_us * (1 - without * (1 - filled)), known)
        return WithDurations(at, np.where(tail, without_tail, full))

    least = durations_at(np.minimum(2 * filled, 1.0), LEAST_RATE, 0.0)
    return Edits(WithDurations(at, np.where(unsure, dur_us, least.dur_us)), durations_at(filled, LIKELY_RATE, 0.5), durations_at(filled, 1.0, 1.0, least=0.0))
