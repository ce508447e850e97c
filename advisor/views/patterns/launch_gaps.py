"""Gaps in which the device waits for a launch: what ends each, and the step with fewer launches."""

from __future__ import annotations

import re

import numpy as np

from advisor.intervals import Ints, Mask, joined
from advisor.knowledge.measured_costs import cost
from advisor.recordings.timeline import Timeline
from advisor.views.patterns.compiled_step import CompiledStep
from advisor.views.patterns.graph_capture import Capturable
from advisor.views.replay.edits import AsGraph, CheaperDispatch, Edits, WithoutHostTime, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.gpu_kernels import FAMILIES, Kernels
from advisor.views.trace.ops import Ops
from advisor.views.trace.program import Program
from advisor.views.trace.table_filters import matches, spans_of

REPLAYED_IN_PARTS = cost("replayed-in-parts")


LIBRARY_LOOP = 16
"""Kernels that one op launches, from which it is a loop of its own."""


IN_PASSES = cost("issuing-in-passes")


_OF_JAX = re.compile(r"site-packages/(jax|jaxlib)/|PjitFunction\(")


def jitted_calls(work: GpuWork, calls: HostCalls) -> Ints:
    """Ops that no other op is around and that launch something: each is a call of its own."""
    launching = calls.op[calls.launching(work.kernel)]
    return np.unique(work.ops.outermost[launching[launching >= 0]])


def fewer_launches(
    program: Program, graph: AsGraph, timeline: Timeline, host_time: HostTime, compiled: CompiledStep, capturable: Capturable, calls: HostCalls, kernels: Mask
) -> Edits:
    if program.framework == "jax":
        # What is jitted as one is traced once: the Python of JAX between its ops runs no more; at most, nothing else on the host either.
        of_jax = joined(
            spans_of(timeline.python_calls, matches(timeline.python_calls, _OF_JAX)), spans_of(timeline.cpu_ops, matches(timeline.cpu_ops, _OF_JAX))
        )
        nothing = np.ones(len(host_time.recorded.host_us))
        return Edits(CheaperDispatch(0.5), combine(graph, host_time.without(of_jax)), combine(graph, WithoutHostTime(nothing, nothing)))
    if capturable.in_passes and not program.compiled:
        return Edits(combine(), CheaperDispatch(IN_PASSES, of_library(calls, kernels)), graph)
    if not program.compiles_whole:
        if program.compiled:
            return Edits(combine(), CheaperDispatch(REPLAYED_IN_PARTS), graph)
        return Edits(combine(), compiled.edit, graph)
    if capturable.resized:
        # No graph holds sizes that change: what is compiled for all of them launches its kernels one by one.
        return Edits(combine(), compiled.fused, combine(compiled.fused, graph))
    return Edits(CheaperDispatch(0.5), combine(compiled.fused, graph), combine(compiled.fused, graph))


def of_library(calls: HostCalls, kernels: Mask) -> Ints:
    """Calls (positions) of a library's own loops, as over the words of a sentence: no compiler makes them fewer or cheaper."""
    known = np.flatnonzero((calls.op >= 0) & calls.launching(kernels))
    _, of, count = np.unique(calls.op[known], return_inverse=True, return_counts=True)
    return known[count[of] >= LIBRARY_LOOP]


def before_what(ops: Ops, kernels: Kernels, rows: Ints) -> np.ndarray:
    """(n,) what each gap ends with: the op, or the kind of kernel where ops were not recorded."""
    op = ops.of_gpu[rows]
    named = np.array([f"idle before {name}" for name in ops.categories], object)
    kinds = np.array([f"idle before {family.value}" for family in FAMILIES], object)[kernels.family[rows]]
    return np.where(op >= 0, named[ops.names[op]], kinds) if len(ops.names) else kinds
