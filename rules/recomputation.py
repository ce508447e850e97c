"""Activation checkpointing computes parts of the forward pass a second time."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.knowledge.how_to_record import RECORD_BOTH
from advisor.knowledge.op_tokens import plain
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import NAMED, counted, duration
from advisor.report.wording.period import PER_STEP
from advisor.views.replay.edits import Edits, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import Witness
from advisor.views.trace.recomputed import Recomputed


@rule("recomputation", min_saving_share=0.03)
def recomputation(timeline: Timeline, work: GpuWork, again: Recomputed, host_time: HostTime, witness: Witness, *, low_share: float = 0.5) -> Outcome:
    """Activations are computed a second time in the backward pass

    What
    Activation checkpointing (`torch.utils.checkpoint`, `gradient_checkpointing=True`) frees a layer's
    activations in the forward pass. The backward pass runs the layer again.

    Why
    It trades time for memory: the layer runs forward twice. This is only useful if memory is short. With frozen
    parameters (LoRA) or a small batch, memory is often free.

    How to fix
    Compare `torch.cuda.max_memory_reserved()` with the GPU's memory, and checkpoint as few layers as possible:

        for at, layer in enumerate(layers):
            h = checkpoint(layer, h, use_reentrant=False) if at % 2 else layer(h)

    Transformers: `gradient_checkpointing=False`. With `torch.compile`, set
    `torch._functorch.config.activation_memory_budget` (0 to 1).

    When to ignore
    The step does not fit without it, or a larger batch gains more from the memory.

    How it is measured
    The rule finds ops inside a backward node that record a gradient themselves and repeat a sequence of the
    forward pass. The replay removes their kernels and their CPU time. `low` removes `low_share` ({low_share}) of them,
    since memory may suffice for some layers only. A trace does not show how much memory is free. Savings below
    `min_saving_share` ({min_saving_share}) of the step are not reported.

    References
    https://docs.pytorch.org/docs/stable/checkpoint.html
    Chen et al.: Training deep nets with sublinear memory cost, 2016, https://arxiv.org/abs/1604.06174
    """
    if not len(timeline.cpu_ops):
        raise Unavailable("no framework ops were recorded", *RECORD_BOTH)
    twice = np.flatnonzero(np.r_[again.ops, False][work.op])
    if not again.regions:
        return Clear(why="no part of the forward pass runs again in the backward pass")
    gone = WithoutOps(twice)
    all_gone = combine(host_time.cut_time(again.spans), gone)
    some = twice[np.diff(np.floor(np.arange(len(twice) + 1) * low_share)) > 0]
    names = [plain(name) for name in again.by_op]
    shown = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
    return Found(
        summary=f"{counted(work.a_step(twice), 'kernel')} {PER_STEP} of the forward pass run{'s' if work.a_step(twice) == 1 else ''} again in the backward pass "
        f"(activation checkpointing). They take {duration(work.us_a_step(twice))} of GPU time and {duration(host_time.spent_us(again.spans))} of host time.",
        edits=Edits(combine(host_time.cut_time(again.spans, low_share), WithoutOps(some)), all_gone, all_gone),
        removes="computing activations a second time",
        quiet=f"computing activations again takes {duration(work.us_a_step(twice))} of GPU time {PER_STEP}",
        evidence=witness.of_gpu(work.rows[twice], ["computed again"] * len(twice)),
        confidence=0.95,
        fix=Fix(
            title="Checkpoint fewer layers if memory is free",
            steps=(
                "Compare torch.cuda.max_memory_reserved() of a step with the GPU's memory. The free memory decides how many layers can keep their activations.",
                f"Switch checkpointing off, or keep it for every second layer only. The region that runs again most often: {shown}.",
                "With torch.compile, let the compiler choose: torch._functorch.config.activation_memory_budget, from 0 (least memory) to 1 (least time).",
            ),
            code=Code(
                before="for layer in layers:\n    h = checkpoint(layer, h, use_reentrant=False)",
                after="for at, layer in enumerate(layers):\n    h = checkpoint(layer, h, use_reentrant=False) if at < checkpointed else layer(h)  # as few as fit",
            ),
            url="https://docs.pytorch.org/docs/stable/checkpoint.html",
            holds_for=("torch",),
            risk="The step needs more memory: the activations of each layer that keeps them.",
        ),
    )
