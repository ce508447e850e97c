"""The optimizer updates one parameter after the other."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.engine.rule import Judged, Outcome, rule
from advisor.intervals import Ints, Spans, union
from advisor.knowledge.kernel_names import Family
from advisor.report.model import Clear, Code, Finding, Fix, Severity, severity_of
from advisor.rules._evidence import gpu_evidence, milliseconds
from advisor.rules._needs import NO_GPU_WORK
from advisor.timeline import GpuKind, Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edits, FewerLaunches, combine
from advisor.views.replay.host_time import HostTime
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.frames import matches, spans_of
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps

_STEP = re.compile(r"^Optimizer\.step#(\w+)\.step$")
_MANY = re.compile(r"_foreach_|multi_tensor_apply")
_FUSED = re.compile(r"_fused_|Fused\w*MathFunctor")
_ADAM = re.compile(r"addcdiv")
"""The update of the Adam family ends with it, once a parameter; no model's forward or backward pass has it."""

HAVE_FUSED = frozenset({"Adam", "AdamW", "SGD"})
"""Optimizers of torch.optim that take fused=True on the GPU in every 2.x release of the last two years (Adagrad's was for
the CPU alone at first)."""

HAVE_FOREACH = frozenset({"Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"})
"""The others of torch.optim, which take foreach=True."""

TENSORS_A_LAUNCH = 30
"""A multi-tensor kernel takes 30 to 110 tensors in one launch, by the number of lists (torch's MultiTensorApply.cuh)."""

LAUNCH_FLOOR_US = 1.2
"""What a pointwise kernel on a tiny tensor takes on its own; a fused one pays it once."""

MOST_OPS_A_PARAMETER = 16
"""No optimizer of torch.optim launches more for one parameter; a longer pattern is something else."""

FUSED_TRAFFIC = (0.6, 0.4, 0.3)
"""Share of the memory traffic left (most, likely, least): Adam written op by op moves 18 tensors a parameter, fused 7."""

FOREACH_TRAFFIC = (1.0, 1.0, 0.7)
"""The same where only foreach can be had: its kernels are the loop's, each for many tensors."""

LEFT_OF_LOOP = (0.40, 0.15, 0.10)
"""Share of the host's time in the step that a fused optimizer still takes (most, likely, least): its Python collects the
parameters one by one. 14 and 15 % in the two pairs recorded on an H200."""

LEFT_OF_FOREACH = (1.0, 0.7, 0.5)
"""The same for foreach: its Python is the same, its launches fewer already."""


@dataclass(frozen=True)
class _Update:
    """The optimizer's part of the schedule. ops: positions of the GPU ops it launched. spans: its time on the host."""

    name: str
    kind: Literal["loop", "foreach", "fused", "other"]
    ops: Ints
    spans: Spans
    parameters: int
    """Parameters a step, as the repeats of the rarest frequent op tell."""


@rule("optimizer-foreach")
def optimizer_foreach(
    timeline: Timeline,
    steps: Steps,
    launches: Launches,
    ops: Ops,
    kernels: Kernels,
    host: HostActivity,
    host_time: HostTime,
    replay: Replay,
    sources: Sources,
    *,
    min_parameters: int = 8,
    min_saving_share: float = 0.03,
) -> Outcome:
    """The optimizer updates one parameter after the other

    What it is
    An optimizer step as a Python loop: for each parameter half a dozen pointwise kernels (`mul_`, `lerp_`, `addcmul_`,
    `sqrt`, `div`, `addcdiv_`), instead of multi-tensor kernels for all parameters at once.

    Why it costs time
    A model has hundreds of parameters, most of them small, so a step issues thousands of tiny kernels, each dearer to
    launch than to run. Large parameters pay in memory traffic: every kernel reads and writes them whole.

    How it is measured
    Kernels launched inside `Optimizer.step#…` ranges; without those, runs of `addcdiv` kernels that come back within 16
    launches, which only the Adam family has. It is a loop where no `_foreach_`, `_fused_` or compiled kernel is among
    them and at least `min_parameters` parameters are updated (8: fewer cost less than one percent of any step seen).
    The step is replayed with a launch for each 30 parameters, which moves each tensor once (of the loop's traffic 0.4 is
    left, 0.6 for `low`, 0.3 for `high`; all of it where only foreach can be had), and 15 % of the host's time in the range (40, 10): a fused optimizer's Python
    still collects the parameters. Reported from `min_saving_share` of the step (0.03). An optimizer that is `foreach`
    already is a note at most.

    How to fix it
    `torch.optim.AdamW(params, fused=True)`; where there is no fused form, `foreach=True`, which is the default on the
    GPU unless something turned it off. An optimizer of your own: use `torch._foreach_*` ops, or compile its step.

    When to ignore it
    When memory is at its limit (foreach keeps temporaries as large as the parameters; fused does not), or when hooks or
    closures need each parameter's update by itself.

    References
    https://docs.pytorch.org/docs/stable/optim.html#algorithms
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """
    if not len(timeline.gpu_ops):
        return NO_GPU_WORK
    schedule = replay.recorded
    update = _update(timeline, steps, launches, ops, kernels, host, schedule)
    if update is None:
        return Clear(why="no optimizer step inside the window")
    count = len(update.ops) / steps.steps
    if update.kind == "fused":
        return Clear(why=f"{update.name or 'the optimizer'} is fused already: {count:.0f} kernels a step")
    if update.kind == "other":
        return Clear(why=f"the optimizer launches {count:.0f} kernels a step, and not one pattern a parameter")
    looped = update.kind == "loop"
    if looped and update.parameters < min_parameters:
        return Clear(
            why=f"the optimizer updates {update.parameters} parameters a step one by one; reported from {min_parameters}"
        )
    if not looped and update.name not in HAVE_FUSED:
        return Clear(why=f"{update.name or 'the optimizer'} is foreach already and has no fused form")
    edits = _edits(host_time, schedule, steps, launches, update)
    saving = replay.saving(edits, "launching and running the update of each parameter by itself")
    share = saving.expected_us / steps.step_us
    if share < min_saving_share:
        how = "one parameter after the other" if looped else "with foreach kernels"
        return Clear(
            why=f"the optimizer runs {how} ({count:.0f} kernels a step); fused the step would gain {share:.1%}, "
            f"reported from {min_saving_share:.0%}"
        )
    rows = schedule.op_row[update.ops]
    labels = [
        (ops.name(int(o)) or str(timeline.gpu_ops["name"].iloc[r]))[:80] for o, r in zip(ops.of_gpu[rows], rows, strict=True)
    ]
    spent = float(schedule.dur_us[update.ops].sum()) / steps.steps
    severity: Severity = severity_of(saving, steps.step_us)
    name = update.name or "The optimizer"
    summary = (
        f"{name} launches {count:.0f} kernels a step for {update.parameters} parameters, {milliseconds(spent)} of GPU time and "
        f"{milliseconds(float(host_time.inside(update.spans).sum()) / steps.steps)} of host time between them."
        if looped
        else f"{name} runs {count:.0f} foreach kernels a step ({milliseconds(spent)} of GPU time); fused kernels move each tensor once."
    )
    finding = Finding(
        title="The optimizer updates one parameter after the other" if looped else "The optimizer could be fused",
        summary=summary,
        severity=severity if looped or severity == "info" else "low",
        confidence=(0.9 if replay.basis == "simulated" and steps.repeats else 0.6) * (1.0 if looped else 0.7),
        saving=saving,
        evidence=gpu_evidence(timeline, rows, labels, lambda m: sources.most_common(launches.call[rows[m[:50]]])),
        fix=_fix(update),
    )
    return [Judged(finding, edits)]


def _update(
    timeline: Timeline, steps: Steps, launches: Launches, ops: Ops, kernels: Kernels, host: HostActivity, schedule: Schedule
) -> _Update | None:
    notes, frame = timeline.annotations, timeline.gpu_ops
    ranges = matches(notes, _STEP) & host.on_threads(notes) if len(notes) else np.zeros(0, bool)
    name = ""
    if ranges.any():
        spans = spans_of(notes, ranges)
        launched = launches.start_us[schedule.op_row]
        at = np.searchsorted(spans[0], launched, side="right") - 1
        chosen = np.flatnonzero((at >= 0) & (launched < np.r_[spans[1], 0.0][at]))
        names = Counter(str(n) for n in notes["name"][ranges])
        found = _STEP.match(names.most_common(1)[0][0])
        name = found[1] if found else ""
    else:
        chosen, spans = _adam_runs(timeline, launches, schedule)
    kernel = (frame["kind"] == GpuKind.KERNEL.value).to_numpy()[schedule.op_row[chosen]]
    chosen = chosen[kernel]
    if not len(chosen):
        return None
    rows = schedule.op_row[chosen]
    by_op = [ops.name(int(o)) for o in ops.of_gpu[rows]]
    by_kernel = frame["name"].iloc[rows].astype(str).tolist()
    texts = [f"{o} {k}" for o, k in zip(by_op, by_kernel, strict=True)]
    if any(_FUSED.search(t) for t in texts):
        return _Update(name, "fused", chosen, spans, 0)
    compiled = kernels.of(Family.FUSED)[rows]
    many = np.array([bool(_MANY.search(t)) for t in texts])
    if many.mean() > 0.5:
        return _Update(name, "foreach", chosen, spans, 0)
    if (many | compiled).any():
        return _Update(name, "other", chosen, spans, 0)
    counts = Counter(o or k for o, k in zip(by_op, by_kernel, strict=True))
    most = max(counts.values())
    each = min(c for c in counts.values() if c >= 0.25 * most)
    periodic = each > 0 and len(chosen) / each <= MOST_OPS_A_PARAMETER
    return _Update(name, "loop" if periodic else "other", chosen, spans, round(each / steps.steps))


def _adam_runs(timeline: Timeline, launches: Launches, schedule: Schedule) -> tuple[Ints, Spans]:
    """Positions and host spans of runs of Adam's last op, where no optimizer marked itself."""
    adam = matches(timeline.gpu_ops, _ADAM) & ~matches(timeline.gpu_ops, _MANY)
    at = np.flatnonzero(adam[schedule.op_row])
    none = np.empty(0, np.int64)
    if len(at) < 2:
        return none, (np.empty(0), np.empty(0))
    parts = np.split(at, np.flatnonzero(np.diff(at) > MOST_OPS_A_PARAMETER) + 1)
    positions, starts, ends = [none], [], []
    calls = timeline.api_calls
    for part in parts:
        if len(part) < 2:
            continue
        each = int(np.median(np.diff(part)))
        members = np.arange(max(part[0] - each + 1, 0), part[-1] + 1)
        callers = schedule.call_row[schedule.op_call[members[[0, -1]]]]
        positions.append(members)
        starts.append(float(calls["start_us"].iloc[callers[0]]))
        ends.append(float(calls["start_us"].iloc[callers[1]] + calls["dur_us"].iloc[callers[1]]))
    return np.concatenate(positions), union(np.array(starts), np.array(ends))


def _edits(host_time: HostTime, schedule: Schedule, steps: Steps, launches: Launches, update: _Update) -> Edits:
    """The optimizer's kernels become as few as a fused one launches, and the host's time in its range shrinks."""
    step = steps.of_host_time(launches.start_us[schedule.op_row[update.ops]])
    groups = [update.ops[step == s] for s in np.unique(step)]
    left = LEFT_OF_LOOP if update.kind == "loop" else LEFT_OF_FOREACH
    fusable = update.name in HAVE_FUSED or not update.name
    made = []
    for traffic, host in zip(FUSED_TRAFFIC if fusable else FOREACH_TRAFFIC, left, strict=True):
        kept, gone, dur = [], [], []
        for group in groups:
            n = max(1, len(group) // 8)
            if update.parameters:
                passes = 1 if fusable else round(len(group) / update.parameters)
                n = passes * -(-update.parameters // TENSORS_A_LAUNCH)
            n = max(1, min(n, len(group)))
            whole = float(schedule.dur_us[group].sum())
            moved = max(whole - LAUNCH_FLOOR_US * len(group), 0.0)
            kept.append(group[:n])
            gone.append(group[n:])
            dur.append(np.full(n, min(whole, traffic * moved + LAUNCH_FLOOR_US * n) / n))
        fewer = FewerLaunches(np.concatenate(kept), np.concatenate(gone), np.concatenate(dur))
        made.append(combine(host_time.without(update.spans, 1 - host), fewer))
    return Edits(*made)


def _fix(update: _Update) -> Fix:
    url = "https://docs.pytorch.org/docs/stable/optim.html#algorithms"
    name = update.name or "AdamW"
    if name in HAVE_FUSED:
        was = ", foreach=False" if update.kind == "loop" else ""
        return Fix(
            title=f"Use the fused {name}",
            steps=(
                f"Pass fused=True to torch.optim.{name}, and remove foreach=False or differentiable=True if they are there.",
                "Parameters must be floating point tensors on the GPU; where fused is not possible, foreach=True is next best.",
            ),
            code=Code(
                before=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr{was})",
                after=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr, fused=True)",
            ),
            url=url,
            risk="Rounding differs in the last bits. With GradScaler the fused step unscales by itself.",
        )
    if name in HAVE_FOREACH:
        return Fix(
            title=f"Let {name} update all parameters at once",
            steps=(
                f"Pass foreach=True to torch.optim.{name}, and remove foreach=False or differentiable=True if they are there.",
                "From PyTorch 2.0 it is the default on the GPU; sparse gradients are updated one by one all the same.",
            ),
            code=Code(
                before=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr)",
                after=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr, foreach=True)",
            ),
            url=url,
            risk="foreach keeps temporaries as large as the parameters.",
        )
    return Fix(
        title="Update all parameters at once",
        steps=(
            f"Let {name} call torch._foreach_* ops on lists of parameters, or compile its step function.",
            "Or use an optimizer of torch.optim with fused=True, if one does the same update.",
        ),
        code=Code(
            before="for p, buf in zip(params, buffers):\n    buf.mul_(beta).add_(p.grad)\n    p.add_(buf, alpha=-lr)",
            after="torch._foreach_mul_(buffers, beta)\ntorch._foreach_add_(buffers, [p.grad for p in params])\n"
            "torch._foreach_add_(params, buffers, alpha=-lr)",
        ),
        url=url,
        risk="foreach keeps temporaries as large as the parameters.",
    )
