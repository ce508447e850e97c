"""The optimizer updates one parameter after the other."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import EMPTY, Ints, Spans, union
from advisor.knowledge.kernel_names import Family
from advisor.report.model import Clear, Code, Fix
from advisor.rules._phrases import milliseconds
from advisor.timeline import Timeline
from advisor.views.replay.edits import Edits, FewerLaunches, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import Witness
from advisor.views.trace.frames import matches, spans_of
from advisor.views.trace.host_activity import HostActivity
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


@rule("optimizer-foreach", min_saving_share=0.03)
def optimizer_foreach(
    timeline: Timeline,
    steps: Steps,
    work: GpuWork,
    host: HostActivity,
    host_time: HostTime,
    witness: Witness,
    *,
    min_parameters: int = 8,
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
    them and at least `min_parameters` parameters are updated ({min_parameters}: fewer cost less than one percent of any step seen).
    The step is replayed with a launch for each 30 parameters, which moves each tensor once (of the loop's traffic 0.4 is
    left, 0.6 for `low`, 0.3 for `high`; all of it where only foreach can be had), and 15 % of the host's time in the range
    (40, 10): a fused optimizer's Python still collects the parameters. Reported from `min_saving_share` of the step
    ({min_saving_share}). An optimizer that is `foreach` already is a note at most.

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
    update = _update(timeline, steps, work, host)
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
    spent = milliseconds(float(work.dur_us[update.ops].sum()) / steps.steps)
    name = update.name or "The optimizer"
    return Found(
        title="The optimizer updates one parameter after the other" if looped else "The optimizer could be fused",
        summary=f"{name} launches {count:.0f} kernels a step for {update.parameters} parameters, {spent} of GPU time and "
        f"{milliseconds(float(host_time.inside(update.spans).sum()) / steps.steps)} of host time between them."
        if looped
        else f"{name} runs {count:.0f} foreach kernels a step ({spent} of GPU time); fused kernels move each tensor once.",
        edits=_edits(host_time, work, update),
        removes="launching and running the update of each parameter by itself",
        quiet=f"the optimizer runs {'one parameter after the other' if looped else 'with foreach kernels'} ({count:.0f} kernels a step)",
        evidence=witness.of_gpu(work.rows[update.ops], [work.name(k)[:80] for k in update.ops.tolist()]),
        confidence=0.9 if looped else 0.63,
        at_most="high" if looped else "low",
        fix=_fix(update),
    )


def _update(timeline: Timeline, steps: Steps, work: GpuWork, host: HostActivity) -> _Update | None:
    notes = timeline.annotations
    ranges = matches(notes, _STEP) & host.on_threads(notes) if len(notes) else np.zeros(0, bool)
    name = ""
    if ranges.any():
        spans = spans_of(notes, ranges)
        chosen = np.flatnonzero(work.launched_inside(spans))
        found = _STEP.match(Counter(str(n) for n in notes["name"][ranges]).most_common(1)[0][0])
        name = found[1] if found else ""
    else:
        chosen, spans = _adam_runs(timeline, work)
    chosen = chosen[work.kernel[chosen]]
    if not len(chosen):
        return None
    by_op = [work.ops.name(o) for o in work.op[chosen].tolist()]
    by_kernel = [work.kernel_name(k) for k in chosen.tolist()]
    texts = [f"{o} {k}" for o, k in zip(by_op, by_kernel, strict=True)]
    if any(_FUSED.search(t) for t in texts):
        return _Update(name, "fused", chosen, spans, 0)
    many = np.array([bool(_MANY.search(t)) for t in texts])
    if many.mean() > 0.5:
        return _Update(name, "foreach", chosen, spans, 0)
    if (many | work.of(Family.FUSED)[chosen]).any():
        return _Update(name, "other", chosen, spans, 0)
    counts = Counter(o or k for o, k in zip(by_op, by_kernel, strict=True))
    most = max(counts.values())
    each = min(c for c in counts.values() if c >= 0.25 * most)
    periodic = each > 0 and len(chosen) / each <= MOST_OPS_A_PARAMETER
    return _Update(name, "loop" if periodic else "other", chosen, spans, round(each / steps.steps))


def _adam_runs(timeline: Timeline, work: GpuWork) -> tuple[Ints, Spans]:
    """Positions and host spans of runs of Adam's last op, where no optimizer marked itself."""
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
        starts.append(float(calls["start_us"].iloc[callers[0]]))
        ends.append(float(calls["start_us"].iloc[callers[1]] + calls["dur_us"].iloc[callers[1]]))
    return np.concatenate(positions), union(np.array(starts), np.array(ends)) if starts else EMPTY


def _edits(host_time: HostTime, work: GpuWork, update: _Update) -> Edits:
    """The optimizer's kernels become as few as a fused one launches, and the host's time in its range shrinks."""
    step = work.step[update.ops]
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
            whole = float(work.dur_us[group].sum())
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
