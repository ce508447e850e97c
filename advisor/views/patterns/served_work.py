"""Launches of an inference server's judged steps, in graphs and single, and host work between steps."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import EMPTY, Ints, Mask, Spans, complement, in_spans, union
from advisor.knowledge.cuda_api import ApiRole
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.trace.serving import ServedPhase, ServedStep, Serving, phases
from advisor.views.trace.steps import Steps


class ServedWork(msgspec.Struct, frozen=True, eq=False):
    """engine, phase: of the steps in the window, "" if none is a server's. steps: those steps. phases: them by requests. elsewhere: other steps of the server,
    of other phases among them. eager, graphs: positions of the calls in them that launch kernels and graphs. forward: host time from the first such call of each step to
    its last. between: host time outside of all steps. in_graph: (n_ops,) positions of the schedule that graphs launch in them."""

    engine: str
    phase: str
    steps: tuple[ServedStep, ...]
    phases: tuple[ServedPhase, ...]
    elsewhere: tuple[ServedStep, ...]
    eager: Ints
    graphs: Ints
    forward: Spans
    between: Spans
    in_graph: Mask

    @property
    def known(self) -> bool:
        """Whether server rules apply: the window's steps are a server's, of a single phase, with the kernels of graphs recorded."""
        return bool(self.steps) and not any(np.isnan(step.graph_us) for step in self.steps)

    @classmethod
    def build(cls, serving: Serving, steps: Steps, work: GpuWork, calls: HostCalls) -> ServedWork:
        judged = serving.judged(steps)
        names = {step.mark.phase for step in judged}
        nothing = np.empty(0, np.int64)
        if len(names) != 1:
            return cls("", "", (), (), serving.steps, nothing, nothing, EMPTY, EMPTY, np.zeros(len(work.rows), bool))
        marks = union(np.array([step.start_us for step in judged]), np.array([step.end_us for step in judged]))
        api = calls.timeline.api_calls
        start = api["start_us"][calls.rows]
        inside = in_spans(start, marks)
        launching = inside & calls.launching(np.ones(len(work.rows), bool))
        graphs, eager = launching & calls.with_role(ApiRole.GRAPH_LAUNCH), launching & calls.with_role(ApiRole.LAUNCH)
        chosen = np.flatnonzero(graphs | eager)
        of = np.searchsorted(marks[0], start[chosen], side="right")
        _, first = np.unique(of, return_index=True)
        last = np.r_[first[1:], len(chosen)] - 1
        ends = start + api["dur_us"][calls.rows]
        forward = (start[chosen[first]], ends[chosen[last]]) if len(chosen) else EMPTY
        every = union(np.array([step.start_us for step in serving.steps]), np.array([step.end_us for step in serving.steps]))
        return cls(
            engine=serving.engine,
            phase=names.pop(),
            steps=judged,
            phases=phases(judged),
            elsewhere=tuple(step for step in serving.steps if step not in judged),
            eager=np.flatnonzero(eager),
            graphs=np.flatnonzero(graphs),
            forward=forward,
            between=complement(every, steps.host_start_us, steps.host_end_us),
            in_graph=np.isin(work.schedule.op_call, np.flatnonzero(graphs)),
        )
