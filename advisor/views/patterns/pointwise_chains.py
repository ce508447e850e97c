"""Elementwise chains and the time of a single kernel per chain, by shapes or by order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.intervals import Floats, Ints, Mask, sums
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.op_tokens.families import Family, op_family
from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.views.patterns.fusion import Fusion, in_optimizer, runs
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.repeats import passes

BY_LONGEST = costs("chain-by-longest")


def chains_by_shapes(work: GpuWork, fusion: Fusion, roofline: Roofline, min_chain: int) -> tuple[list[Ints], Floats]:
    """The stretches that a compiler fuses, and the time of each one's kernel: at most, likely, at least."""
    counted = work.in_families(Family.ELEMENTWISE, Family.NORM, Family.SOFTMAX)
    softmax = work.in_families(Family.SOFTMAX)
    kind = work.kind
    rates = {number: peaks.achievable_bytes_per_s for number, peaks in roofline.peaks.items()}
    on = work.column("device").tolist()
    full = [stretch.full for stretch in fusion.stretches]
    in_full = sums(counted, full).tolist()
    norms = sums(work.launched_by(_is_norm), full).tolist()
    with_softmax = sums(softmax, full).tolist()
    loops: dict[bytes, bool] = {}

    def loop(at: Ints) -> bool:
        """Whether it is several passes of a loop: the same for stretches of the same kinds, which steps have."""
        key = kind[at].tobytes()
        if key not in loops:
            loops[key] = len(passes(at, kind[at])) > 1
        return loops[key]

    chosen, times = [], []
    for stretch, found, softmaxes, own in zip(fusion.stretches, in_full, with_softmax, norms, strict=True):
        at = stretch.members
        rate = rates.get(on[at[0]])
        # A softmax and what surrounds it, casts or a loss, become one kernel too; so does one op with the casts of what it reads and makes,
        # and what joins with what moves.
        linked = max(found + stretch.casts if found else 0, 2 * stretch.moved_on)
        chained = linked >= min_chain or (len(stretch.full) >= min_chain and softmaxes)
        # One norm behind another, each in an op of its own, is no chain: each needs all of what the one before wrote, before it can write any of its own.
        if own == len(stretch.full) and len(np.unique(work.op[stretch.full])) > 1:
            continue
        if not chained or not rate or not stretch.known or loop(at):
            continue
        chosen.append(at)
        times.append(stretch.fused_us(rate))
    return (chosen, np.array(times)) if chosen else chains_by_order(work, fusion, roofline, min_chain)


def chains_by_order(work: GpuWork, fusion: Fusion, roofline: Roofline, min_chain: int) -> tuple[list[Ints], Floats]:
    """The same groups if shapes show no more, and consecutive elementwise kernels: as long as their longest kernel."""
    counted, kind = work.in_families(Family.ELEMENTWISE, Family.NORM, Family.SOFTMAX), work.kind
    chosen = [
        stretch.members
        for stretch in fusion.stretches
        if not stretch.known and counted[stretch.members].sum() >= min_chain and len(passes(stretch.members, kind[stretch.members])) == 1
    ]
    left_out = in_optimizer(work)
    left_out[np.concatenate([*chosen, kind[:0]])] = True
    chains = _chains(work, fusion.elements, left_out, min_chain)
    times = [_fused_us(work, roofline, chain)[::-1] for chain in chains]
    return chosen + chains, np.r_[by_longest(work, chosen), np.reshape(times, (-1, 3))]


def by_longest(work: GpuWork, stretches: Sequence[Ints]) -> Floats:
    """(n, 3) time of a single kernel per group by its longest kernel: most, expected, least; at most their own."""
    longest = np.outer([max(work.dur_us[at].max(), SHORTEST_US) for at in stretches], BY_LONGEST).reshape(-1, 3)
    own_us = sums(work.dur_us, stretches).reshape(-1, 1)
    return np.minimum(longest, own_us)


def _is_norm(op_name: str) -> bool:
    return op_family(op_name) is Family.NORM


def _chains(work: GpuWork, elements: Ints, left_out: Mask, min_chain: int) -> list[Ints]:
    """Positions of elementwise kernels that follow each other on a stream in one step, on as many elements."""
    pointwise = work.in_families(Family.ELEMENTWISE)
    member = (pointwise | (work.in_families(Family.COPY) & work.kernel)) & ~left_out
    kind = work.kind
    parts = [chain for run in runs(work, member, elements) for chain in passes(run, kind[run])]
    return [chain for chain in parts if len(chain) >= min_chain and pointwise[chain].sum() >= 2]


def _fused_us(work: GpuWork, roofline: Roofline, chain: Ints) -> tuple[float, float, float]:
    """Time of a fused kernel if no further input is read from memory, if half are, if all are; never above the chain's own."""
    rows, dur_us = work.rows[chain], work.dur_us[chain]
    whole, longest = float(dur_us.sum()), float(dur_us.max())
    peaks = roofline.peaks.get(work.device_at(chain[0]).id)
    moved = roofline.bytes[rows]
    if peaks is None or peaks.achievable_bytes_per_s is None or np.isnan(moved).any():
        return min(0.7 * longest, whole), min(longest, whole), min(1.5 * longest, whole)
    # An op on n elements moves one output and its inputs; in a chain one input is what the op before has written.
    per_tensor = float(moved.min()) / 2
    least = 2 * per_tensor
    most = float(moved.sum()) - 2 * per_tensor * (len(rows) - 1)
    most = max(most, least)
    reached, peak = peaks.achievable_bytes_per_s, peaks.bytes_per_s or peaks.achievable_bytes_per_s
    rates = (peak, reached, 0.8 * reached)
    times = [max(b / r * 1e6, SHORTEST_US) for b, r in zip((least, (least + most) / 2, most), rates, strict=True)]
    return min(times[0], whole), min(times[1], whole), min(times[2], whole)
