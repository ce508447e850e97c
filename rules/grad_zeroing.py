"""Gradients are filled with zeros instead of dropped."""

from __future__ import annotations

import re

import numpy as np

from advisor.engine.rule import Judged, Outcome, rule
from advisor.intervals import Ints, Spans
from advisor.knowledge.kernel_names import Family
from advisor.report.model import Clear, Code, Finding, Fix, Severity, Skipped, severity_of
from advisor.rules._evidence import gpu_evidence, milliseconds
from advisor.rules._needs import NO_GPU_WORK, RECORD_BOTH
from advisor.timeline import Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edits, WithoutOps, combine
from advisor.views.replay.host_time import HostTime
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.frames import joined, matches, spans_of
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps

LEFT_OF_RANGE = 0.3
"""Share of the host's time in zero_grad that stays: setting each gradient to None is a Python loop too."""

_RANGE = re.compile(r"^Optimizer\.zero_grad#")
_FRAME = re.compile(r"torch/(optim/optimizer|nn/modules/module)\.py\(\d+\): zero_grad$")


@rule("grad-zeroing")
def grad_zeroing(
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
    min_saving_share: float = 0.01,
) -> Outcome:
    """Gradients are filled with zeros in each step

    What it is
    `zero_grad(set_to_none=False)`: every gradient is written with zeros, and the backward pass then adds to it.

    Why it costs time
    A kernel for each parameter (or a few for all of them) writes all gradients, and the backward pass reads and adds
    where it could have put its result in place. That is up to four more passes over the gradients than none.

    How it is measured
    Fills, `zero_` and memsets launched inside `Optimizer.zero_grad#…` ranges (or `zero_grad` frames) on the threads that
    launch. The step is replayed without them and without 70 % of the host's time in the range (`low`: only the fills
    go; `high`: where a step adds to no more gradients than it zeroes, those additions go as well). Reported from
    `min_saving_share` of the step (0.01: the change is one argument).

    How to fix it
    Call `optimizer.zero_grad()` with its default, `set_to_none=True` (PyTorch 2.0 and later).

    When to ignore it
    When code reads `.grad` of parameters that got none in the step, or a CUDA graph needs gradients to stay in place.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    """
    if not len(timeline.gpu_ops):
        return NO_GPU_WORK
    notes, calls = timeline.annotations, timeline.python_calls
    if not len(notes) and not len(calls):
        return Skipped(why="no framework ranges were recorded", record_with=RECORD_BOTH)
    schedule = replay.recorded
    ranges = joined(*(spans_of(f, matches(f, p) & host.on_threads(f)) for f, p in ((notes, _RANGE), (calls, _FRAME)) if len(f)))
    zeroing = _launched_inside(launches, schedule, ranges)
    zeroing = zeroing[kernels.of(Family.FILL, Family.OPTIMIZER)[schedule.op_row[zeroing]]]
    if not len(zeroing):
        return Clear(why="no zero_grad in the window fills gradients")
    adding = _accumulations(ops, schedule)
    once = len(adding) <= 1.1 * len(zeroing)
    fills = WithoutOps(zeroing)
    shorter = host_time.without(ranges, 1 - LEFT_OF_RANGE)
    likely = combine(shorter, fills)
    most = combine(shorter, WithoutOps(np.r_[zeroing, adding])) if once else likely
    edits = Edits(fills, likely, most)
    saving = replay.saving(edits, "filling gradients with zeros, and adding to them")
    share = saving.expected_us / steps.step_us
    if share < min_saving_share:
        return Clear(
            why=f"{len(zeroing) / steps.steps:.0f} fills a step zero gradients, without which the step would be {share:.1%} shorter; "
            f"reported from {min_saving_share:.0%}"
        )
    rows = schedule.op_row[zeroing]
    labels = [f"{ops.name(int(o)) or 'fill'} in zero_grad" for o in ops.of_gpu[rows]]
    spent = float(schedule.dur_us[zeroing].sum()) / steps.steps
    host_us = float(host_time.inside(ranges).sum()) / steps.steps
    severity: Severity = severity_of(saving, steps.step_us)
    finding = Finding(
        title="Gradients are filled with zeros in each step",
        summary=f"zero_grad launches {len(zeroing) / steps.steps:.0f} fills a step, {milliseconds(spent)} of GPU time and "
        f"{milliseconds(host_us)} of host time, and the backward pass then adds to the zeros.",
        # One step alone may hold the first, slow launch of each kernel.
        severity=severity if steps.steps > 1 or severity == "info" else "low",
        confidence=0.85 if replay.basis == "simulated" and steps.repeats and steps.steps > 1 else 0.6,
        saving=saving,
        evidence=gpu_evidence(timeline, rows, labels, lambda m: sources.most_common(launches.call[rows[m[:50]]])),
        fix=Fix(
            title="Drop the gradients instead",
            steps=("Call zero_grad(set_to_none=True), the default since PyTorch 2.0.",),
            code=Code(before="optimizer.zero_grad(set_to_none=False)", after="optimizer.zero_grad(set_to_none=True)"),
            url="https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
            risk="Parameters that got no gradient have grad None, which optimizers skip: with weight decay or momentum they no longer move.",
        ),
    )
    return [Judged(finding, edits)]


def _launched_inside(launches: Launches, schedule: Schedule, spans: Spans) -> Ints:
    """Positions of GPU ops that were launched inside spans."""
    launched = launches.start_us[schedule.op_row]
    at = np.searchsorted(spans[0], launched, side="right") - 1
    found: Ints = np.flatnonzero((at >= 0) & (launched < np.r_[spans[1], 0.0][at]))
    return found


def _accumulations(ops: Ops, schedule: Schedule) -> Ints:
    """Positions of additions of a gradient to one that is there already."""
    rows = ops.of_gpu[schedule.op_row]
    adds = np.array([n == "aten::add_" for n in ops.categories], bool)
    collects = np.array(["AccumulateGrad" in n for n in ops.categories], bool)
    if not adds.any() or not collects.any():
        return np.empty(0, np.int64)
    inside = ops.outermost_where(collects[ops.names])
    return np.flatnonzero((rows >= 0) & adds[ops.names[rows]] & (inside[rows] >= 0))
