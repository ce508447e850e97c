"""Gaps in which the device waits for a launch: what ends each, and the step with fewer launches."""

from __future__ import annotations

import re
from functools import cached_property

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask, joined
from advisor.knowledge.measured_costs import cost
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Evidence
from advisor.views.patterns.compiled_step import CompiledStep
from advisor.views.patterns.graph_capture import Capturable
from advisor.views.patterns.recurrent_cells import RecurrentLoop
from advisor.views.replay.edits import GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US, AsGraph, CheaperDispatch, Edits, WithoutHostTime, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.host_time import HostTime
from advisor.views.replay.replay import Replay
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.evidence import folded
from advisor.views.trace.first_pass import FirstPass
from advisor.views.trace.gpu_kernels import FAMILIES, Kernels
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.program import Program
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches, spans_of

REPLAYED_IN_PARTS = cost("replayed-in-parts")


IN_PASSES = cost("issuing-in-passes")


_OF_JAX = re.compile(r"site-packages/(jax|jaxlib)/|PjitFunction\(")


class LaunchGaps(msgspec.Struct, frozen=True, dict=True):
    """Time that the busiest device loses to launches: parts of its gaps in which the host launched ops, and the step with fewer launches.

    waiting_us: (n,) of each gap of `gaps`. at: (k,) gaps that waited and end with an op. inside: mask of the window's GPU ops.
    """

    work: GpuWork
    steps: Steps
    calls: HostCalls
    gaps: Gaps
    launches: Launches
    program: Program
    sources: Sources
    host_time: HostTime
    compiled: CompiledStep
    capturable: Capturable
    recurrent: RecurrentLoop
    replay: Replay
    waiting_us: Floats
    at: Ints
    inside: Mask
    only_first_pass: bool

    @classmethod
    def build(
        cls, timeline: Timeline, steps: Steps, work: GpuWork, calls: HostCalls, gaps: Gaps, launches: Launches, program: Program, sources: Sources,
        host_time: HostTime, compiled: CompiledStep, capturable: Capturable, recurrent: RecurrentLoop, replay: Replay, first: FirstPass,
    ) -> LaunchGaps:  # fmt: skip
        waiting_us = gaps.causes["launch"] * first.repeats(gaps.next_op, gaps.start_us, gaps.end_us)
        at, inside = np.flatnonzero((waiting_us > 0) & (gaps.next_op >= 0)), steps.holds(timeline.gpu_ops["start_us"])
        return cls(
            work, steps, calls, gaps, launches, program, sources, host_time, compiled, capturable, recurrent, replay, waiting_us, at, inside, bool(first.only)
        )

    @property
    def share(self) -> float:
        """Of the step, what the device waits for launches."""
        return float(self.waiting_us.sum()) / self.gaps.run_us

    @property
    def most_share(self) -> float:
        """The same with the host as slow as recording leaves open."""
        return max(self.share, self.gaps.most_share("launch"))

    @property
    def waiting_a_step_us(self) -> float:
        return float(self.waiting_us.sum() / self.steps.steps)

    @property
    def pauses_us(self) -> float:
        """Of a step, pauses that a graph shortens too: from kernel to kernel, and where steps repeat the host's between launches."""
        beside = ["dependency", *(["host"] if self.steps.repeats and self.steps.steps > 1 else [])]
        return float(self.gaps.together_us(*beside).sum()) / self.steps.steps

    @property
    def unseen_us(self) -> float:
        """Of a step, what more it may wait for launches, with the host as slow as recording leaves open."""
        return (self.gaps.most_us["launch"] - float(self.gaps.causes["launch"].sum())) / self.steps.steps

    @property
    def replayed_share(self) -> float:
        """Of the window's GPU ops, those that CUDA graphs launched."""
        return float(self.launches.replayed[self.inside].mean())

    @property
    def ops_a_step(self) -> float:
        return float(self.inside.sum() / self.steps.steps)

    @property
    def median_us(self) -> float:
        """The duration of a GPU op of the window."""
        return float(np.median(self.work.timeline.gpu_ops["dur_us"][self.inside]))

    @property
    def jitted_calls_a_step(self) -> float:
        """Ops that no other op is around and that launch something: in a program of JAX, each is a call of its own."""
        launching = self.calls.op[self.calls.launching(self.work.kernel)]
        return len(np.unique(self.work.ops.outermost[launching[launching >= 0]])) / self.work.schedule.steps

    @cached_property
    def compiling(self) -> Edits:
        """What compiling, or jax.jit, does to the step."""
        graph = AsGraph(GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US)
        edits = fewer_launches(self.program, graph, self.work.timeline, self.host_time, self.compiled, self.capturable)
        return edits._replace(expected=self.recurrent.edit) if self.recurrent.cells else edits

    @property
    def capturing(self) -> Edits:
        """The effect of a single graph of the step, which may be nothing."""
        graph = AsGraph(GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US)
        return Edits(combine(), graph, graph)

    def only_capture(self, least_share: float) -> bool:
        """Whether the step could be captured, and compiling it is expected to gain less than `least_share` of it."""
        if self.program.compiles_whole or self.recurrent.cells or self.capturable.why_not:
            return False
        return self.replay.share(self.replay.corrected, self.compiling.expected) < least_share

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The gaps by what ends them, with if that is launched."""
        next_op = self.gaps.next_op[self.at]
        return folded(
            names_after_gaps(self.work.ops, self.work.kernels, next_op),
            self.gaps.start_us[self.at],
            self.waiting_us[self.at],
            device=self.work.timeline.gpu_ops["device"][next_op],
            source=lambda rows: self.sources.most_common(self.launches.call[next_op[rows[:50]]]),
        )


def fewer_launches(program: Program, graph: AsGraph, timeline: Timeline, host_time: HostTime, compiled: CompiledStep, capturable: Capturable) -> Edits:
    """Host time that a single graph, or compiled code, saves in such a program. `graph`: of the whole step."""
    if program.framework == "jax":
        # What is jitted as one is traced once: the Python of JAX between its ops runs no more; at most, nothing else on the host either.
        of_jax = joined(
            spans_of(timeline.python_calls, matches(timeline.python_calls, _OF_JAX)), spans_of(timeline.cpu_ops, matches(timeline.cpu_ops, _OF_JAX))
        )
        nothing = np.ones(len(host_time.recorded.host_us))
        return Edits(CheaperDispatch(0.5), combine(graph, host_time.cut_time(of_jax)), combine(graph, WithoutHostTime(nothing, nothing)))
    if capturable.in_passes and not program.compiled:
        return Edits(combine(), CheaperDispatch(IN_PASSES), graph)
    if not program.compiles_whole:
        if program.compiled:
            return Edits(combine(), CheaperDispatch(REPLAYED_IN_PARTS), graph)
        return Edits(combine(), compiled.edit, graph)
    if capturable.resized:
        # No graph holds sizes that change: what is compiled for all of them launches its kernels one by one.
        return Edits(combine(), compiled.fused, combine(compiled.fused, graph))
    return Edits(CheaperDispatch(0.5), combine(compiled.fused, graph), combine(compiled.fused, graph))


def names_after_gaps(ops: Ops, kernels: Kernels, rows: Ints) -> np.ndarray:
    """(n,) the op that ends each gap, or the kernel's kind without recorded ops."""
    op = ops.of_gpu[rows]
    named = np.array([f"idle before {name}" for name in ops.categories], object)
    kinds = np.array([f"idle before {family.value}" for family in FAMILIES], object)[kernels.family[rows]]
    return np.where(op >= 0, named[ops.names[op]], kinds) if len(ops.names) else kinds
