"""The optimizer's part of the step, its way to update parameters, and the effect of a fused or foreach update."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec
import numpy as np

from advisor.intervals import EMPTY, Ints, Spans, in_spans, union
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.shares import LITTLE, MOST
from advisor.knowledge.shortest_kernel import SHORTEST_POINTWISE_US
from advisor.recordings.timeline import Timeline
from advisor.views.groups import Groups
from advisor.views.replay.edits import Edits, FewerLaunches, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.optimizer_ranges import update_spans
from advisor.views.trace.repeats import rounds
from advisor.views.trace.table_filters import matches

_STEP = names_of("optimizer_step_of_class")
_MANY = names_of("foreach")
_FUSED = names_of("fused_optimizer")
_SPARSE = names_of("sparse_gradient")
"""Ops of an optimizer on a sparse gradient. foreach and fused refuse these: torch.optim then loops over parameters."""
_ADAM = names_of("adam_update")
"""The update of the Adam family ends with it, once a parameter; no model's forward or backward pass has it."""

MOSTLY, SOME = MOST, LITTLE
"""Shares of an optimizer's step: more than half decides its kind; above a tenth in multi-tensor kernels it is no loop over parameters. A single short one may
be clipping or counting."""

MOST_OPS_A_PARAMETER = 16
"""No optimizer of torch.optim launches more for one parameter; a longer pattern is something else."""

MOST_IN_ITS_RANGE = 32
"""Likewise inside the range of an optimizer's step, if nothing else stands: Adafactor of transformers launches 24."""


class OptimizerStep(msgspec.Struct, frozen=True):
    """The optimizer's part of the schedule. ops: positions of the GPU ops it launched. spans: its time on the host."""

    name: str
    kind: Literal["none", "loop", "foreach", "fused", "sparse", "other"]
    ops: Ints
    spans: Spans
    parameters: int
    """Parameters a step, as the repeats of the rarest frequent op tell."""

    @classmethod
    def build(cls, calls: HostCalls, work: GpuWork, host: HostActivity) -> OptimizerStep:
        timeline = calls.timeline  # without what the host called, nothing tells what it takes for each parameter
        notes = timeline.annotations
        ranges = matches(notes, _STEP) & host.on_threads(notes) if len(notes) else np.zeros(0, bool)
        name = ""
        if ranges.any():
            spans = update_spans(timeline, ranges)
            chosen = np.flatnonzero(work.launched_inside(spans))
            found = _STEP.match(Counter(str(n) for n in notes["name"][ranges]).most_common(1)[0][0])
            name = found[1] if found else ""
        else:
            chosen, spans = _adam_runs(timeline, work)
        chosen = chosen[work.kernel[chosen]]
        if not len(chosen):
            return cls(name, "none", chosen, spans, 0)
        # Each op with its kernel is looked at once.
        codes = timeline.gpu_ops["name"].codes[work.rows[chosen]]
        groups = Groups.by_keys(work.ops.codes(work.op[chosen]), codes)
        first = chosen[groups.first].tolist()
        by_op, by_kernel = [work.ops.name(int(work.op[k])) for k in first], [work.kernel_name(k) for k in first]
        texts = [f"{o} {k}" for o, k in zip(by_op, by_kernel, strict=True)]
        fused, many = (np.array([bool(of.search(t)) for t in texts])[groups.of] for of in (_FUSED, _MANY))
        # A fused kernel or two do nearly all of the work, beside what counts the steps.
        if work.dur_us[chosen[fused]].sum() > MOSTLY * work.dur_us[chosen].sum():
            return cls(name, "fused", chosen, spans, 0)
        cpu = timeline.cpu_ops
        if len(cpu) and in_spans(cpu["start_us"][matches(cpu, _SPARSE)], spans).any():
            return cls(name, "sparse", chosen, spans, 0)
        if many.mean() > MOSTLY:
            return cls(name, "foreach", chosen, spans, 0)
        if work.dur_us[chosen[many | fused | work.in_families(Family.FUSED)[chosen]]].sum() > SOME * work.dur_us[chosen].sum():
            return cls(name, "other", chosen, spans, 0)
        counts: Counter[str] = Counter()
        for o, k, n in zip(by_op, by_kernel, groups.rows.tolist(), strict=True):
            counts[o or k] += n
        each = rounds(counts.values())
        periodic = each > 0 and len(chosen) / each <= (MOST_IN_ITS_RANGE if ranges.any() else MOST_OPS_A_PARAMETER)
        return cls(name, "loop" if periodic else "other", chosen, spans, round(each / work.schedule.steps))


def _adam_runs(timeline: Timeline, work: GpuWork) -> tuple[Ints, Spans]:
    """Positions and host spans of runs of Adam's last op, if no optimizer marked itself."""
    at = np.flatnonzero(work.named(_ADAM) & ~work.named(_MANY))
    positions, starts, ends = [at[:0]], [], []
    calls, schedule = timeline.api_calls, work.schedule
    for part in np.split(at, np.flatnonzero(np.diff(at) > MOST_OPS_A_PARAMETER) + 1):
        if len(part) < 2:
            continue
        each = int(np.median(np.diff(part)))
        members = np.arange(max(part[0] - each + 1, 0), part[-1] + 1)
        callers = schedule.call_row[schedule.op_call[members[[0, -1]]]]
        positions.append(members)
        starts.append(float(calls["start_us"][callers[0]]))
        ends.append(float(calls["start_us"][callers[1]] + calls["dur_us"][callers[1]]))
    return np.concatenate(positions), union(np.array(starts), np.array(ends)) if starts else EMPTY


HAVE_FUSED = frozenset({"Adam", "AdamW", "SGD"})
"""Optimizers of torch.optim that take fused=True on the GPU in every 2.x release of the last two years (Adagrad's came with 2.9)."""

TENSORS_A_LAUNCH = 30
"""A multi-tensor kernel takes 30 to 110 tensors in one launch, by the number of lists (torch's MultiTensorApply.cuh)."""

FUSED_TRAFFIC = costs("fused-optimizer-traffic")

FUSED_TRAFFIC_SGD = costs("fused-sgd-traffic")

FOREACH_TRAFFIC = costs("foreach-traffic")

LEFT_OF_LOOP = costs("left-of-optimizer-loop")

LEFT_OF_FOREACH = costs("left-of-foreach")

LEFT_OF_FOREACH_SGD = costs("left-of-foreach-sgd")


def fused_form(update: OptimizerStep) -> str:
    """The optimizer of torch.optim that fused=True can be passed to, "" if it has no such form or is fused already. Where none is named it is of the Adam family."""
    name = update.name or ("" if update.kind == "none" else "AdamW")
    return name if update.kind in ("none", "loop", "foreach") and name in HAVE_FUSED else ""


def fused_optimizer(host_time: HostTime, work: GpuWork, update: OptimizerStep) -> Edits:
    """The optimizer's kernels become as few as a fused one launches, and the host's time in its range shrinks."""
    step = work.step[update.ops]
    groups = [update.ops[step == s] for s in np.unique(step)]
    sgd = update.name == "SGD"
    left = LEFT_OF_LOOP if update.kind == "loop" else LEFT_OF_FOREACH_SGD if sgd else LEFT_OF_FOREACH
    fusable = update.name in HAVE_FUSED or not update.name
    moved_still = FUSED_TRAFFIC_SGD if sgd else FUSED_TRAFFIC if fusable else FOREACH_TRAFFIC
    made = []
    for traffic, host in zip(moved_still, left, strict=True):
        kept, gone, dur = [], [], []
        for group in groups:
            n = max(1, len(group) // 8)
            if update.parameters:
                passes = 1 if fusable else round(len(group) / update.parameters)
                n = passes * -(-update.parameters // TENSORS_A_LAUNCH)
            n = max(1, min(n, len(group)))
            whole = float(work.dur_us[group].sum())
            moved = max(whole - SHORTEST_POINTWISE_US * len(group), 0.0)
            kept.append(group[:n])
            gone.append(group[n:])
            dur.append(np.full(n, min(whole, traffic * moved + SHORTEST_POINTWISE_US * n) / n))
        fewer = FewerLaunches(np.concatenate(kept), np.concatenate(gone), np.concatenate(dur))
        made.append(combine(host_time.cut_time(update.spans, 1 - host), fewer))
    return Edits(*made)
