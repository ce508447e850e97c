"""The gradient scaler reads a value from the GPU in each step."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.intervals import Ints
from advisor.knowledge import cuda_api
from advisor.knowledge.counts import EXAMINED
from advisor.knowledge.how_to_record import RECORD_BOTH
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import CopyKind, Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import duration, times
from advisor.report.wording.period import PER_STEP
from advisor.views.patterns.optimizer import OptimizerStep, fused_form, fused_optimizer
from advisor.views.replay.edits import Edits, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import Witness
from advisor.views.trace.launches import NUMBER_BYTES
from advisor.views.trace.table_filters import matches

NEAR = EXAMINED
"""Calls between unscaling the last gradients and reading whether one was infinite; GradScaler.step makes a handful."""

_UNSCALE = names_of("unscale_gradients")


@rule("amp-scaler-sync", relies_on=("host",), min_saving_share=0.01, explains=("sync-stall",))
def amp_scaler_sync(timeline: Timeline, work: GpuWork, calls: HostCalls, update: OptimizerStep, host_time: HostTime, witness: Witness) -> Outcome:
    """GradScaler waits for the GPU in each step

    What
    FP16 training scales the loss. Before each update, `GradScaler.step` copies a flag from the GPU: whether a
    gradient was infinite.

    Why
    The copy waits for the whole backward pass. The host launches the optimizer and the next step only then, so
    the launch queue runs empty in each step.

    How to fix
    Use a fused optimizer. It reads the flag on the GPU and skips the update there:

        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    Adam, AdamW, SGD and Adagrad have `fused=True`. On Ampere or newer, training in BF16 needs no scaler at all.

    When to ignore
    The GPU's step is so long that the host catches up before the queue is empty. The replay then shows no
    saving.

    How it is measured
    The rule looks for a copy of a few bytes within 64 calls after `_amp_foreach_non_finite_check_and_unscale_`,
    if the host waited for it. The replay removes these waits (`low`). If a fused form of the optimizer exists,
    `expected` and `high` use it too. Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    References
    https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """
    if not len(timeline.cpu_ops):
        raise Unavailable("no framework ops were recorded", *RECORD_BOTH)
    unscaling = matches(timeline.cpu_ops, _UNSCALE)
    if not unscaling.any():
        return Clear(why="no gradients are unscaled, so no GradScaler is in use")
    waits = _reads_of_the_flag(work, calls, np.flatnonzero((calls.op >= 0) & unscaling[calls.op]))
    if not len(waits):
        return Clear(why="gradients are unscaled without a host wait: the optimizer reads the flag on the GPU")
    per_step = len(waits) / work.schedule.steps
    fusable = fused_form(update) if update.kind != "none" else ""
    no_wait = WithoutWaits(waits)
    fused = fused_optimizer(host_time, work, update) if fusable else Edits.exact(combine())
    return Found(
        summary=f"GradScaler reads the inf/NaN flag {times(per_step)} {PER_STEP} and blocks the host for "
        f"{duration(calls.us_a_step(waits))} as recorded; the GPU idles until the optimizer launches.",
        edits=Edits(no_wait, combine(no_wait, fused.expected), combine(no_wait, fused.high)),
        removes="the scaler's wait for the backward pass",
        quiet=f"GradScaler waits {times(per_step)} {PER_STEP}",
        evidence=witness.of_calls(calls.rows[waits], [f"found_inf read ({name})" for name in calls.names(waits)]),
        # Of 20 steps with a scaler 12 gained a hundredth or more: what is seen is the wait, and a GPU that is busy hides it.
        confidence=0.6,
        fix=_fix(timeline, fusable),
    )


def _reads_of_the_flag(work: GpuWork, calls: HostCalls, unscaling: Ints) -> Ints:
    """Positions of the first waiting read after each run of unscaling, and of the sync in the same op."""
    down = (work.column("copy_kind") == CopyKind.DTOH.value) & (work.column("bytes") <= NUMBER_BYTES)
    reads = np.unique(work.schedule.op_call[down])
    sync = calls.with_role(cuda_api.ApiRole.SYNC)
    found: set[int] = set()
    for read in reads.tolist():
        before = unscaling[(unscaling < read) & (unscaling >= read - NEAR)]
        between = reads[(reads > before[-1]) & (reads < read)] if len(before) else reads
        if len(before) and not len(between):
            same = (calls.op == calls.op[read]) & (sync | (np.arange(len(sync)) == read)) & calls.waits
            found.update(np.flatnonzero(same).tolist())
    return np.array(sorted(found), np.int64)


def _fix(timeline: Timeline, fusable: str) -> Fix:
    capable = any(d.compute_capability >= (8, 0) for d in timeline.devices)
    bf16 = ("Train in BF16 and drop the scaler: autocast(dtype=torch.bfloat16) has FP32's range.",) if capable else ()
    before = "with torch.autocast('cuda', torch.float16):\n    loss = loss_of(batch)\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()"
    if fusable or not capable:
        return Fix(
            title="Pass the scaler's flag to the optimizer",
            steps=(
                f"Pass fused=True to {fusable or 'an optimizer that has it (Adam, AdamW, SGD)'}: it reads the scaler's flag on the GPU.",
                *(f"Or {way[0].lower()}{way[1:]}" for way in bf16),
            ),
            code=Code(
                before=before,
                after=f"optimizer = torch.optim.{fusable or 'AdamW'}(model.parameters(), lr=lr, fused=True)\n# scaler.step(optimizer) no longer waits",
            ),
            url="https://docs.pytorch.org/docs/stable/amp.html",
            holds_for=("training", "torch"),
            risk="Rounding differs in the last bits.",
            intervention="fused-optimizer",
        )
    return Fix(
        title="Train without the scaler's wait",
        steps=bf16,
        code=Code(before=before, after="with torch.autocast('cuda', torch.bfloat16):\n    loss = loss_of(batch)\nloss.backward()\noptimizer.step()"),
        url="https://docs.pytorch.org/docs/stable/amp.html",
        holds_for=("training", "torch"),
        risk="BF16 has three bits less of mantissa than FP16: check the loss curve.",
    )
