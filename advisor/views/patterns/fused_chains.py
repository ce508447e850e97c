"""Pointwise chains as one kernel each, and what a compiler changes beside them."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.op_tokens.families import Family
from advisor.views.patterns.compiled_step import UNALIGNED
from advisor.views.patterns.fused_attention import FusedAttentions, as_one_kernel
from advisor.views.patterns.fusion import FUSED, in_optimizer
from advisor.views.replay.edits import Edit, Fused, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.time.utilization import Utilization


def compiled_chains(work: GpuWork, host_time: HostTime, chains: list[Ints], us: Floats, kernels: list[int], attention: FusedAttentions, column: int) -> Edit:
    """Each chain as one kernel, or as many as are left of it; attention that the compiler knows is one kernel with its products, and has no chains."""
    chosen = np.flatnonzero(attention.by_compiler).tolist()
    found, kept = ([those[i] for i in chosen] for those in (attention.found, attention.kept))
    inside = np.zeros(len(work.op), bool)
    inside[np.concatenate([work.op[:0], *found])] = True
    apart = [i for i, chain in enumerate(chains) if not inside[chain].any()] if chosen else range(len(chains))
    fused = [Fused.chains([chains[i] for i in apart], us[apart], [kernels[i] for i in apart] if kernels else ())] if apart else []
    return combine(*fused, as_one_kernel(work, host_time, kept, found, attention.times_us[chosen, column]))


def fused_beside(work: GpuWork, members: Ints) -> Ints:
    """What else a compiler changes where the whole model is compiled: gathers, scatters, copies, single pointwise kernels, products on rows
    that are not aligned, which it pads."""
    found = work.of(*FUSED, Family.EMBEDDING, Family.LAYOUT) | (work.of(Family.GEMM) & work.named(UNALIGNED))
    found &= work.kernel & ~in_optimizer(work)
    found[members] = False
    return np.flatnonzero(found)


BUSY_DRAM_PCT, IDLE_DRAM_PCT = 50.0, 25.0
"""Measured use of the memory's bandwidth that confirms that memory is the bound, and that speaks against it."""


def memory_confidence(work: GpuWork, measured: Utilization, device: int) -> float:
    """Higher with shapes; counters of the memory confirm or temper it where they were sampled."""
    confidence = 0.9 if work.timeline.source.shapes else 0.6
    dram = measured.dram_pct(device)
    if dram is None:
        return confidence
    return max(confidence, 0.9) if dram >= BUSY_DRAM_PCT else 0.6 * confidence if dram < IDLE_DRAM_PCT else confidence
