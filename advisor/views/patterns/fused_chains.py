"""Elementwise chains as a single kernel each, and other effects of a compiler."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, sums
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.shares import CONSIDERABLE, MOST
from advisor.views.patterns.attention import Attentions
from advisor.views.patterns.compiled_step import COMPILED_CALL_US, UNALIGNED, CompiledStep
from advisor.views.patterns.fusion import FUSED, Fusion, in_optimizer
from advisor.views.patterns.pointwise_chains import chains_by_order, chains_by_shapes
from advisor.views.replay.edits import Edits, Fused, WithDurations, WithHostTime, combine, gpu_us_removed
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.idle_gaps import Gaps
from advisor.views.time.roofline import Roofline
from advisor.views.time.utilization import Utilization
from advisor.views.trace.first_pass import FirstPass
from advisor.views.trace.steps import Steps


class Chains(msgspec.Struct, frozen=True):
    """at: positions of each chain. durations_us: (n, 3) of each as one kernel, at the slowest, likely, at the fastest. members: positions of all."""

    at: list[Ints]
    durations_us: Floats
    members: Ints

    def saved_us(self, work: GpuWork) -> Floats:
        """(n,) in all steps, what each is likely to save on the GPU."""
        return sums(work.dur_us, self.at) - self.durations_us[:, 1]


class FusedChains(msgspec.Struct, frozen=True):
    """Pointwise chains, and what compiling them, and the model around them, does to the step."""

    work: GpuWork
    steps: Steps
    gaps: Gaps
    roofline: Roofline
    fusion: Fusion
    measured: Utilization
    compiled: CompiledStep | None
    attentions: Attentions
    first: FirstPass

    @classmethod
    def build(
        cls, work: GpuWork, steps: Steps, gaps: Gaps, roofline: Roofline, fusion: Fusion, measured: Utilization, compiled: CompiledStep | None,
        attentions: Attentions, first: FirstPass,
    ) -> FusedChains:  # fmt: skip
        return cls(work, steps, gaps, roofline, fusion, measured, compiled, attentions, first)

    def chains_of(self, least_ops: int) -> Chains | None:
        """Those of so many elementwise kernels at least."""
        found = (chains_by_shapes if self.work.timeline.source.shapes else chains_by_order)(self.work, self.fusion, self.roofline, least_ops)
        return Chains(*found, np.concatenate(found[0])) if found[0] else None

    @property
    def passed(self) -> Ints:
        """Gathers and scatters (positions) with elementwise work between, which a compiler fuses too."""
        return self.compiled.passed if self.compiled else np.zeros(0, int)

    @property
    def other_saving_us(self) -> float:
        """A step, what a compiler saves on the GPU next to the chains."""
        return gpu_us_removed(self.work.schedule, self.compiled.beside) if self.compiled else 0.0

    def in_attention(self, chains: Chains) -> Ints:
        """Kernels (positions) of the chains that are attention's, which one call fuses whole."""
        return np.intersect1d(chains.members, self.attentions.members(self.work))

    def edits(self, chains: Chains) -> Edits:
        """Each chain compiled by itself; the whole model compiled; the same at the fastest, copies next to it too."""
        work, compiled = self.work, self.compiled
        beside = fused_beside(work, chains.members)
        likely, fastest = (Fused.chains(chains.at, chains.durations_us[:, k], kernels) for k, kernels in ((1, self.fusion.kernels(chains.at)), (2, ())))
        return Edits(
            combine(Fused.chains(chains.at, chains.durations_us[:, 0]), WithHostTime(np.array([chain[0] for chain in chains.at]), COMPILED_CALL_US)),
            combine(likely, *((compiled.overhead, compiled.beside) if compiled else ())),
            combine(fastest, WithDurations(beside, work.dur_us[beside] / 2), *filter(None, (compiled.beside, compiled.spared) if compiled else ())),
        )

    def sped_up(self, chains: Chains) -> Ints:
        """Positions that the host launches sooner at the most: all of a step that a compiler gets whole."""
        return np.arange(len(self.work.rows)) if self.compiled and self.compiled.spared else chains.members

    def waiting_us(self, at: Ints) -> float:
        """The device's waits for launches of ops at some positions, per step. Waits of a first pass do not recur."""
        return 0.0 if self.first.only or self.first.taken else self.gaps.waited_for_us(self.work.rows[at], self.steps)

    def confidence(self, chains: Chains) -> float:
        return memory_confidence(self.work, self.measured, self.work.device_at(chains.members[0]).id)


def fused_beside(work: GpuWork, members: Ints) -> Ints:
    """Other effects of compiling the whole model: on gathers, scatters, copies, single elementwise kernels, and GEMMs with unaligned rows, which it pads."""
    found = work.in_families(*FUSED, Family.EMBEDDING, Family.LAYOUT) | (work.in_families(Family.GEMM) & work.named(UNALIGNED))
    found &= work.kernel & ~in_optimizer(work)
    found[members] = False
    return np.flatnonzero(found)


BUSY_DRAM_PCT, IDLE_DRAM_PCT = 100 * MOST, 100 * CONSIDERABLE
"""Measured use of the memory's bandwidth that confirms that memory is the bound, and that speaks against it."""


def memory_confidence(work: GpuWork, measured: Utilization, device: int) -> float:
    """Higher with shapes; counters of the memory confirm or temper it if they were sampled."""
    confidence = 0.9 if work.timeline.source.shapes else 0.6
    dram = measured.dram_pct(device)
    if dram is None:
        return confidence
    return max(confidence, 0.9) if dram >= BUSY_DRAM_PCT else 0.6 * confidence if dram < IDLE_DRAM_PCT else confidence
