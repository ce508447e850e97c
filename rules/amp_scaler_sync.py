"""The gradient scaler reads a value from the GPU in each step."""

from __future__ import annotations

import re

import numpy as np

from advisor.engine.rule import Judged, Outcome, rule
from advisor.intervals import Ints
from advisor.knowledge import cuda_api
from advisor.report.model import Clear, Code, Finding, Fix, Skipped, severity_of
from advisor.rules._evidence import folded, milliseconds
from advisor.rules._frames import matches
from advisor.rules._needs import NO_GPU_WORK, RECORD_BOTH
from advisor.timeline import CopyKind, Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edits, WithoutWaits
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps

NEAR = 64
"""Calls between unscaling the last gradients and reading whether one was infinite; GradScaler.step makes a handful."""

SMALL_BYTES = 64
"""The flag is one float a device."""

_UNSCALE = re.compile(r"^aten::_amp_foreach_non_finite_check_and_unscale_")


@rule("amp-scaler-sync", relies_on=("host",))
def amp_scaler_sync(
    timeline: Timeline,
    steps: Steps,
    launches: Launches,
    ops: Ops,
    replay: Replay,
    sources: Sources,
    *,
    min_saving_share: float = 0.01,
) -> Outcome:
    """GradScaler waits for the GPU in each step

    What it is
    Mixed precision in FP16 scales the loss; before it updates, `GradScaler.step` reads from the GPU whether a gradient
    was infinite.

    Why it costs time
    The read waits until the whole backward pass is done. Only then does the host launch the optimizer and the next
    step, so whatever it was ahead is lost once a step.

    How it is measured
    The first read of a few bytes within 64 calls after an `_amp_foreach_non_finite_check_and_unscale_` op, where the host
    waited for it. The step is replayed without these waits. Reported from `min_saving_share` of the step (0.01).

    How to fix it
    Train in BF16, which needs no scaler, on Ampere and later. Where FP16 must stay, use a fused optimizer
    (`fused=True`): it takes the flag on the GPU and skips the update there.

    When to ignore it
    When the step is so long on the GPU that the host catches up again before the queue runs dry; the replay then says 0.

    References
    https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """
    if not len(timeline.gpu_ops):
        return NO_GPU_WORK
    if not len(timeline.cpu_ops):
        return Skipped(why="no framework ops were recorded", record_with=RECORD_BOTH)
    schedule = replay.recorded
    if not matches(timeline.cpu_ops, _UNSCALE).any():
        return Clear(why="no gradients are unscaled: no GradScaler is in use")
    waits = _reads_of_the_flag(timeline, launches, ops, schedule)
    if not len(waits):
        return Clear(why="gradients are unscaled, but the host waits for no flag: the optimizer takes it on the GPU")
    removed = WithoutWaits(waits)
    edits = Edits(removed, removed, removed)
    saving = replay.saving(edits, "the scaler's wait for the backward pass")
    share = saving.expected_us / steps.step_us
    if share < min_saving_share:
        return Clear(
            why=f"GradScaler waits {len(waits) / steps.steps:.1f} times a step, without which it would be {share:.1%} shorter; "
            f"reported from {min_saving_share:.0%}"
        )
    rows = schedule.call_row[waits]
    calls = timeline.api_calls
    spent = float(calls["dur_us"].to_numpy()[rows].sum()) / steps.steps
    finding = Finding(
        title="GradScaler waits for the GPU in each step",
        summary=f"GradScaler reads whether a gradient was infinite {len(waits) / steps.steps:.0f} times a step and holds the host for "
        f"{milliseconds(spent)} of {milliseconds(steps.step_us)}; the GPU idles until the optimizer is launched.",
        severity=severity_of(saving, steps.step_us),
        confidence=0.8 if replay.basis == "simulated" and steps.repeats else 0.6,
        saving=saving,
        evidence=folded(
            [f"found_inf read ({n})" for n in calls["name"].iloc[rows]],
            calls["start_us"].to_numpy()[rows],
            calls["dur_us"].to_numpy()[rows],
            source=lambda m: sources.most_common(rows[m[:50]]),
        ),
        fix=_fix(timeline),
    )
    return [Judged(finding, edits)]


def _reads_of_the_flag(timeline: Timeline, launches: Launches, ops: Ops, schedule: Schedule) -> Ints:
    """Positions of the first waiting read after each run of unscaling, and of the sync in the same op."""
    frame = timeline.gpu_ops
    unscaling = matches(timeline.cpu_ops, _UNSCALE)
    around = ops.of_call[schedule.call_row]
    last = np.flatnonzero((around >= 0) & unscaling[around])
    size = frame["bytes"].to_numpy()[schedule.op_row]
    down = (frame["copy_kind"] == CopyKind.DTOH.value).to_numpy()[schedule.op_row] & (size <= SMALL_BYTES)
    reads = np.unique(schedule.op_call[down])
    if not len(launches.roles):
        return np.empty(0, np.int64)
    sync = launches.roles[schedule.call_row] == list(cuda_api.ApiRole).index(cuda_api.ApiRole.SYNC)
    waits = schedule.waits_for != -1
    found: set[int] = set()
    for read in reads.tolist():
        before = last[(last < read) & (last >= read - NEAR)]
        between = reads[(reads > before[-1]) & (reads < read)] if len(before) else reads
        if len(before) and not len(between):
            same = np.flatnonzero((around == around[read]) & (sync | (np.arange(len(around)) == read)) & waits)
            found.update(same.tolist())
    return np.array(sorted(found), np.int64)


def _fix(timeline: Timeline) -> Fix:
    capable = any(d.compute_capability >= (8, 0) for d in timeline.devices)
    bf16 = ("Train in BF16 and drop the scaler: autocast(dtype=torch.bfloat16) has FP32's range.",) if capable else ()
    return Fix(
        title="Train without the scaler's wait",
        steps=(*bf16, "Or pass fused=True to the optimizer: it takes the scaler's flag on the GPU."),
        code=Code(
            before="with torch.autocast('cuda', torch.float16):\n    loss = loss_of(batch)\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()",
            after="with torch.autocast('cuda', torch.bfloat16):\n    loss = loss_of(batch)\nloss.backward()\noptimizer.step()"
            if capable
            else "optimizer = torch.optim.AdamW(model.parameters(), fused=True)\n# scaler.step(optimizer) no longer waits",
        ),
        url="https://docs.pytorch.org/docs/stable/amp.html",
        risk="BF16 has three bits less of mantissa than FP16: check the loss curve."
        if capable
        else "Rounding differs in the last bits.",
    )
