"""What norms and softmaxes that are written out take as one kernel each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.measured_costs import cost, costs
from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.views.patterns.fusion import Fusion
from advisor.views.patterns.norms import Chain
from advisor.views.replay.edits import Edits, Fused, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.shapes import Shapes

SLOWEST, LIKELY, FASTEST = costs("fused-norm")


FORWARD_PASSES, BACKWARD_PASSES = costs("norm-passes")


SHARES_A_BLOCK = cost("block-bandwidth")


def as_one_kernel(chains: Sequence[Chain], times: Floats, around: list[tuple[Ints, float]]) -> Edits:
    """A kernel per chain; at the high end with its surroundings, as in a compiled module."""
    in_its_type, all_of_it = [c.in_its_type[0] for c in chains], [c.members for c in chains]
    low, expected, high = (Fused.chains(members, times[:, end]) for end, members in enumerate((in_its_type, in_its_type, all_of_it)))
    if not around:
        return Edits(low, expected, high)
    return Edits(low, expected, combine(high, Fused.chains([members for members, _ in around], np.array([us for _, us in around]))))


def in_the_way(work: GpuWork, fusion: Fusion, roofline: Roofline, members: Ints) -> list[tuple[Ints, float]]:
    """The stretches that a compiler fuses which hold any of these kernels, and the least time of each one's kernel."""
    found = []
    for stretch in fusion.stretches:
        peaks = roofline.peaks.get(work.device_at(int(stretch.members[0])).id)
        rate = peaks.achievable_bytes_per_s if peaks else None
        if rate and stretch.least and np.isin(stretch.members, members).any():
            found.append((stretch.members, stretch.fused_us(rate)[2]))
    return found


def fused_us(work: GpuWork, shapes: Shapes, roofline: Roofline, chain: Chain) -> tuple[float, float, float]:
    """Time of the one kernel at most, likely and at least; never above the chain's own."""
    dur = work.dur_us[chain.members]
    whole, longest = float(dur.sum()), float(dur.max())
    peaks = roofline.peaks.get(work.device_at(int(chain.members[0])).id)
    rate = peaks.achievable_bytes_per_s if peaks else None
    if not rate or np.isnan(chain.bytes):
        return min(1.5 * longest, whole), min(longest, whole), min(0.7 * longest, whole)
    passes, (core, own) = BACKWARD_PASSES / FORWARD_PASSES if chain.backward else 1.0, chain.in_its_type
    passes /= _bandwidth_share(work, shapes, chain)
    of_core = float(work.dur_us[core].sum())
    low, expected, high = (
        min(max(f * passes * moved / rate * 1e6, SHORTEST_US), most)
        for f, moved, most in ((SLOWEST, own, of_core), (LIKELY, own, of_core), (FASTEST, chain.bytes, whole))
    )
    return low, expected, high


def _bandwidth_share(work: GpuWork, shapes: Shapes, chain: Chain) -> float:
    """Share of the device's bandwidth that an op reaches with a block per row; 1 with many or unknown rows."""
    rows, multiprocessors = rows_of(shapes, np.unique(work.op[chain.members]).tolist()), work.device_at(int(chain.members[0])).sm_count
    return min(SHARES_A_BLOCK * rows / multiprocessors, 1.0) if rows and multiprocessors > 0 else 1.0


def rows_of(shapes: Shapes, ops: Sequence[int]) -> int:
    """Rows of a chain's tensor: values of its statistics, one per combination of leading axes, 0 without any. Smaller tensors, such as a scale, do not count."""
    rows = 0
    for op in ops:
        tensors = sorted((shape for shape, _ in shapes.inputs(op)), key=prod, reverse=True)
        for statistic in tensors[1:]:
            reduced = [one != whole for one, whole in zip(statistic, tensors[0], strict=False)]
            if len(statistic) == len(tensors[0]) and reduced and reduced[-1] and reduced == sorted(reduced):
                rows = max(rows, prod(statistic))
    return rows
