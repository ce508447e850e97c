"""A step as torch.compile leaves it: fewer kernels, each issued at the cost of today's, and what the compiled parts cost."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask, sums
from advisor.knowledge.measured_costs import cost, costs
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.shares import MOST
from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.views.patterns.fusion import Fusion, in_optimizer
from advisor.views.patterns.memory_format import ChannelsLast
from advisor.views.patterns.optimizer import OptimizerStep, fused_optimizer
from advisor.views.patterns.pointwise_chains import by_longest
from advisor.views.replay.edits import CheaperDispatch, Edit, Fused, WithDurations, WithHostTime, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.time.roofline import Roofline
from advisor.views.trace.launches import Launches
from advisor.views.trace.program import Program
from advisor.views.trace.shapes import Shapes

COMPILED_PART_US, COMPILED_KERNEL_US = costs("compiled-part")
COMPILED_CALL_US, COMPILED_DISPATCH = cost("compiled-call"), cost("compiled-dispatch")

OF_A_MODEL = 8
"""Fusion groups per step from which the whole model counts as compiled, for effects other than fusion."""

UNALIGNED = names_of("unaligned")
"""In the names of CUTLASS kernels: elements that are loaded at once."""


class CompiledStep(msgspec.Struct, frozen=True, eq=False):
    """overhead: host cost of a compiled training step (inference can replay a graph). spared: CPU time that compiling eager inference may save besides fewer
    launches, None elsewhere. fused: fewer launches; in a training step launches only, since another finding has the GPU's gain. beside: other effects of a
    compiler on GPU work. passed: positions of gathers and scatters with elementwise work between, as in message passing of graph networks. edit: effect of
    compiling, with a fused optimizer, on launches."""

    overhead: Edit
    spared: Edit | None
    fused: Edit
    beside: Edit
    passed: Ints
    edit: Edit

    @classmethod
    def build(
        cls, work: GpuWork, fusion: Fusion, update: OptimizerStep, host_time: HostTime, program: Program, images: ChannelsLast,
        roofline: Roofline, shapes: Shapes, launches: Launches,
    ) -> CompiledStep:  # fmt: skip
        left = (np.count_nonzero(work.kernel & ~in_optimizer(work)) - fusion.saved) / work.schedule.steps
        overhead = WithHostTime(work.first_of_steps, 0.0 if program.compiles_whole else COMPILED_PART_US + left * COMPILED_KERNEL_US)
        edits: list[Edit] = [overhead]
        fused: Edit = combine()
        if fusion.stretches:
            chains = [stretch.members for stretch in fusion.stretches]
            us = _fused_us(work, fusion, roofline) if program.compiles_whole else [stretch.own_us for stretch in fusion.stretches]
            fused = Fused.chains(chains, np.array(us), fusion.launches)
            edits.append(fused)
        if update.kind in ("loop", "foreach"):
            edits.append(fused_optimizer(host_time, work, update).expected)
        beside, passed = _compiled_neighbours(work, fusion, images, program, roofline, shapes)
        eager = program.eager and len(work.timeline.cpu_ops) > 0 and launches.replayed[work.rows].mean() <= MOST  # without ops it may train
        return cls(overhead, CheaperDispatch(COMPILED_DISPATCH) if eager else None, fused, beside, passed, combine(*edits))


def _fused_us(work: GpuWork, fusion: Fusion, roofline: Roofline) -> list[float]:
    """Expected time of each compiled group, by its longest kernel if bytes are unknown."""
    on = work.column("device").tolist()
    rates = {number: peaks.achievable_bytes_per_s for number, peaks in roofline.peaks.items()}
    found = [(stretch, rates.get(on[stretch.members[0]])) for stretch in fusion.stretches]
    longest = by_longest(work, [stretch.members for stretch in fusion.stretches])[:, 1].tolist()
    return [stretch.fused_us(rate)[1] if rate and stretch.known else us for (stretch, rate), us in zip(found, longest, strict=True)]


def _compiled_neighbours(work: GpuWork, fusion: Fusion, images: ChannelsLast, program: Program, roofline: Roofline, shapes: Shapes) -> tuple[Edit, Ints]:
    """Gathers and scatters work on fetched elements only, unaligned GEMMs are padded, images stay in channels_last. Also the positions of gathers, scatters and
    ops between."""
    alone, pointwise = work.kernel & ~in_optimizer(work), work.in_families(Family.ELEMENTWISE)
    members = [stretch.members for stretch in fusion.stretches]
    together = [at for at, count in zip(members, sums(pointwise, members).tolist(), strict=True) if count != 1]
    alone[np.concatenate([*together, work.rows[:0]])] = False
    precision = np.asarray(work.kernels.precision, object)[work.rows]
    padded = np.flatnonzero(alone & work.in_families(Family.GEMM) & work.named(UNALIGNED) & (precision != "fp32"))
    moved = np.flatnonzero(alone & work.in_families(Family.EMBEDDING))
    # What its bytes are not known of keeps its time.
    moved = moved[~np.isnan(roofline.limit_us[work.rows[moved]])]
    needed_us = roofline.limit_us[work.rows[moved]]
    inside = np.flatnonzero(alone & pointwise & _next_to(work, work.in_families(Family.EMBEDDING), shapes))
    # Few stretches are one function's, a loss or an activation, which is compiled by itself; as many as these are all over a model.
    everywhere = len(fusion.stretches) >= OF_A_MODEL * work.schedule.steps
    edits: list[Edit] = [
        *([WithDurations(padded, work.dur_us[padded] / 2)] if everywhere else []),
        WithDurations(moved, np.fmin(work.dur_us[moved] / 2, np.fmax(needed_us, SHORTEST_US))),
        WithDurations(inside, np.full(len(inside), SHORTEST_US)),
    ]
    if everywhere and (images.by_compiler or program.compiles_whole) and (images.in_half or images.pictures):
        edits.append(images.likely if images.in_half else images.gone)
    return combine(*edits), np.union1d(moved, inside) if len(inside) else inside


def _next_to(work: GpuWork, those: Mask, shapes: Shapes) -> Mask:
    """(n,) what runs just before or after one of those on its stream, on as many elements: a compiled kernel does both."""
    found = np.zeros(len(work.rows), bool)
    elements = shapes.elements[work.rows]
    for stream in np.unique(work.schedule.stream):
        here = np.flatnonzero(work.schedule.stream == stream)
        alike = (elements[here][1:] == elements[here][:-1]) & (elements[here][1:] > 1) & (np.diff(work.step[here]) == 0)
        found[here[1:]] |= alike & those[here[:-1]]
        found[here[:-1]] |= alike & those[here[1:]]
    return found
