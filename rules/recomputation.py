"""Activation checkpointing computes parts of the forward pass a second time."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.knowledge.how_to_record import RECORD_BOTH
from advisor.knowledge.op_tokens import plain
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import counted, duration
from advisor.views.replay.edits import Edits, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import Witness
from advisor.views.trace.recomputed import Recomputed

NAMED = 4
"""Ops of a region that a summary names."""


@rule("recomputation", min_saving_share=0.03)
def recomputation(timeline: Timeline, work: GpuWork, again: Recomputed, host_time: HostTime, witness: Witness, *, low_share: float = 0.5) -> Outcome:
    """Activations are computed a second time in the backward pass

    What it is
    Activation checkpointing (`torch.utils.checkpoint`, `gradient_checkpointing=True`) drops the activations of a layer in the forward pass and runs
    the layer again when the backward pass needs them.

    Why it costs time
    It trades time for memory: a layer under it runs forward twice. That is a good trade only while memory is what is missing. Where the parameters
    are frozen (LoRA) or the batch is small, the memory is often there.

    How it is measured
    Ops inside a node of the backward pass that record a gradient of their own, and that run there in the same order as somewhere in the forward pass.
    The step is replayed without their kernels and without what the host spends in them. `low` is `low_share` of that ({low_share}): memory may
    allow some layers only. Reported from `min_saving_share` of the step ({min_saving_share}). Whether memory is free, a trace does not tell.

    How to fix it
    Compare `torch.cuda.max_memory_reserved()` with the GPU's memory, and checkpoint as few layers as fit:
    `h = checkpoint(layer, h, use_reentrant=False) if at % 2 else layer(h)` halves the cost. Transformers: `gradient_checkpointing=False`.
    With `torch.compile` the compiler decides which cheap ops to run again, by `torch._functorch.config.activation_memory_budget` (0 to 1).

    When to ignore it
    Where the step does not fit without it, or where the memory serves a larger batch that gains more. Selective checkpointing in eager mode
    (`create_selective_checkpoint_contexts`) sends each op through a mode in Python: on launch-bound models it was slower than plain checkpointing.

    References
    https://docs.pytorch.org/docs/stable/checkpoint.html
    Chen et al.: Training deep nets with sublinear memory cost, 2016, https://arxiv.org/abs/1604.06174
    """
    if not len(timeline.cpu_ops):
        raise Unavailable("no framework ops were recorded", RECORD_BOTH)
    twice = np.flatnonzero(np.r_[again.ops, False][work.op])
    if not again.regions:
        return Clear(why="no part of the forward pass runs again in the backward pass")
    gone = WithoutOps(twice)
    all_gone = combine(host_time.without(again.spans), gone)
    some = twice[np.diff(np.floor(np.arange(len(twice) + 1) * low_share)) > 0]
    names = [plain(name) for name in again.by_op]
    shown = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
    return Found(
        summary=f"{counted(work.a_step(twice), 'kernel')} a step of the forward pass run{'s' if work.a_step(twice) == 1 else ''} again in the backward pass "
        f"(activation checkpointing): {duration(work.us_a_step(twice))} of GPU time and {duration(host_time.spent_us(again.spans))} of host time.",
        edits=Edits(combine(host_time.without(again.spans, low_share), WithoutOps(some)), all_gone, all_gone),
        removes="computing activations a second time",
        quiet=f"computing activations again takes {duration(work.us_a_step(twice))} of GPU time a step",
        evidence=witness.of_gpu(work.rows[twice], ["computed again"] * len(twice)),
        confidence=0.95,
        fix=Fix(
            title="Checkpoint fewer layers where memory is free",
            steps=(
                "Compare torch.cuda.max_memory_reserved() of a step with the GPU's memory: what is free decides how many layers can keep their activations.",
                f"Switch checkpointing off, or keep it for every second layer only. The region that runs again most often: {shown}.",
                "With torch.compile, let the compiler choose: torch._functorch.config.activation_memory_budget, from 0 (least memory) to 1 (least time).",
            ),
            code=Code(
                before="for layer in layers:\n    h = checkpoint(layer, h, use_reentrant=False)",
                after="for at, layer in enumerate(layers):\n    h = checkpoint(layer, h, use_reentrant=False) if at < checkpointed else layer(h)  # as few as fit",
            ),
            url="https://docs.pytorch.org/docs/stable/checkpoint.html",
            risk="The step needs more memory: the activations of each layer that keeps them.",
        ),
    )
