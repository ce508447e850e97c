"""CPU time of a step, of a trace without GPU work: phases of the thread that runs the program, its ops and its lines."""

from __future__ import annotations

import re
from collections import defaultdict

import msgspec
import numpy as np

from advisor.intervals import EMPTY, Mask, Spans, clip, joined, length, subtract
from advisor.knowledge.counts import SHOWN
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import Timeline
from advisor.report.finding import SourceLine
from advisor.report.host_time import HostLine, HostOp, HostPart, HostTime, Phase
from advisor.views.groups import Groups
from advisor.views.time.op_table import OpTable
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.loader import loading_spans
from advisor.views.trace.ops import Ops
from advisor.views.trace.optimizer_ranges import update_spans
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches, spans_of

ROWS = SHOWN
"""Ops and lines that are kept."""

MOST_OPS = 100_000
"""Outermost ops whose line is looked up, the longest first."""

_NODE, _STEP = names_of("autograd_node"), names_of("profiler_step")
_OPTIMIZER = names_of("optimizer_step_or_zero_grad")
_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc|nccl|c10d):")


class HostProfile(msgspec.Struct, frozen=True):
    """time: None if a device did work, or where no op was recorded."""

    time: HostTime | None

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, ops: Ops, table: OpTable, host: HostActivity, sources: Sources) -> HostProfile:
        if len(timeline.gpu_ops) or not len(timeline.cpu_ops):
            return cls(None)
        start_us, end_us = steps.host_start_us, steps.host_end_us
        thread = _main_thread(timeline)
        if end_us <= start_us:
            return cls(None)
        own = (timeline.cpu_ops["pid"] == thread[0]) & (timeline.cpu_ops["tid"] == thread[1])
        whole_us = end_us - start_us
        parts = [
            HostPart(phase, spent / steps.steps, spent / whole_us)
            for phase, spans in _phases(timeline, ops, host, own).items()
            if (spent := length(clip(spans, start_us, end_us))) > 0
        ]
        rest_us = max(whole_us - steps.steps * sum(part.us for part in parts), 0.0)
        parts.append(HostPart("other", rest_us / steps.steps, rest_us / whole_us))
        return cls(
            HostTime(
                step_us=whole_us / steps.steps,
                thread=int(thread[1]),
                parts=tuple(sorted(parts, key=lambda part: -part.us)),
                ops=_ops(steps, ops, table, timeline, whole_us),
                lines=_lines(timeline, steps, ops, sources, thread, own, whole_us),
            )
        )


def _main_thread(timeline: Timeline) -> tuple[int, int]:
    """The process and thread with marked steps, or else with most op time."""
    notes, ops = timeline.annotations, timeline.cpu_ops
    marked = notes[matches(notes, _STEP)] if len(notes) else notes
    frame = marked if len(marked) else ops
    groups = Groups.by_keys(frame["pid"], frame["tid"])
    spent = groups.sums(us=frame["dur_us"])["us"]
    row = groups.first[int(np.argmax(spent))]
    return int(frame["pid"][row]), int(frame["tid"][row])


def _phases(timeline: Timeline, ops: Ops, host: HostActivity, own: Mask) -> dict[Phase, Spans]:
    """Disjoint spans of each phase, in the order in which the first that applies wins. A program waits for a collective if it is in flight and no op runs."""
    notes, frame = timeline.annotations, timeline.cpu_ops
    running = spans_of(frame, own)
    optimizer = update_spans(timeline, matches(notes, _OPTIMIZER))
    backward = spans_of(frame, own & ops.within_chosen(ops.named(_NODE)))
    collectives = joined(spans_of(notes, matches(notes, _COLLECTIVE)), spans_of(frame, ops.named(_COLLECTIVE)))
    found: dict[Phase, Spans] = {}
    taken = EMPTY
    layers: tuple[tuple[Phase, Spans], ...] = (
        ("data-loading", loading_spans(timeline, host)),
        ("optimizer", optimizer),
        ("backward", backward),
        ("forward", running),
        ("communication", collectives),
    )
    for phase, spans in layers:
        found[phase] = subtract(spans, taken)
        taken = joined(taken, spans)
    return found


def _ops(steps: Steps, ops: Ops, table: OpTable, timeline: Timeline, whole_us: float) -> tuple[HostOp, ...]:
    """Ops by name, most of their own time first; the ranges of autograd's engine count as what they hold."""
    inside = steps.issued_at(timeline.cpu_ops["start_us"])
    own_us = np.where(inside, table.host_self_us, 0.0)
    spent = np.bincount(ops.names, own_us, len(ops.categories))
    calls = np.bincount(ops.names, inside, len(ops.categories))
    first = np.argsort(-spent, kind="stable")[:ROWS].tolist()
    return tuple(
        HostOp(ops.categories[name], float(calls[name]) / steps.steps, float(spent[name]) / steps.steps, min(float(spent[name]) / whole_us, 1.0))
        for name in first
        if spent[name] > 0
    )


def _lines(timeline: Timeline, steps: Steps, ops: Ops, sources: Sources, thread: tuple[int, int], own: Mask, whole_us: float) -> tuple[HostLine, ...]:
    """Functions of the program by their time; without frames, lines by the time of the outermost ops that they call."""
    if functions := sources.spent_us(thread, steps.host_start_us, steps.host_end_us):
        first = sorted(functions.items(), key=lambda pair: -pair[1])[:ROWS]
        return tuple(HostLine(at.file, at.line, us / steps.steps, min(us / whole_us, 1.0), name) for (at, name), us in first)
    if not sources.recorded:
        return ()
    frame = timeline.cpu_ops
    dur = frame["dur_us"]
    chosen = np.flatnonzero(own & (ops.parent < 0) & steps.issued_at(frame["start_us"]))
    spent: defaultdict[SourceLine, float] = defaultdict(float)
    for op in chosen[np.argsort(-dur[chosen], kind="stable")][:MOST_OPS].tolist():
        if line := sources.line_of_op(op):
            spent[line] += float(dur[op])
    return tuple(
        HostLine(line.file, line.line, us / steps.steps, min(us / whole_us, 1.0)) for line, us in sorted(spent.items(), key=lambda pair: -pair[1])[:ROWS]
    )
