"""What a fused optimizer, or one of foreach kernels, does to the step."""

from __future__ import annotations

import numpy as np

from advisor.knowledge.shortest_kernel import SHORTEST_POINTWISE_US
from advisor.views.replay.edits import Edits, FewerLaunches, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.replay.optimizer_step import OptimizerStep

HAVE_FUSED = frozenset({"Adam", "AdamW", "SGD"})
"""Optimizers of torch.optim that take fused=True on the GPU in every 2.x release of the last two years (Adagrad's
came with 2.9)."""

TENSORS_A_LAUNCH = 30
"""A multi-tensor kernel takes 30 to 110 tensors in one launch, by the number of lists (torch's MultiTensorApply.cuh)."""

FUSED_TRAFFIC = (0.6, 0.4, 0.3)
"""Share of the memory traffic left (most, likely, least): Adam written op by op moves 18 tensors a parameter, fused 7; 0.42 to 0.48 on an
H200 over tensors of 4 to 64 MB."""

FUSED_TRAFFIC_SGD = (0.8, 0.65, 0.5)
"""The same for SGD with momentum, 0.63 to 0.69 there."""

FOREACH_TRAFFIC = (1.0, 1.0, 0.7)
"""The same where only foreach can be had: its kernels are the loop's, each for many tensors."""

LEFT_OF_LOOP = (0.45, 0.25, 0.10)
"""Share of the host's time in the step that a fused optimizer still takes (most, likely, least): its Python collects the parameters one by
one. 5 to 14 % over 8 to 200 tensors on an H200's host; of the loop as recorded a quarter, since what recording costs lies on its many
small ops more than on others."""

LEFT_OF_FOREACH = (0.7, 0.4, 0.3)
"""The same for foreach with 8 to 200 tensors: 0.36 to 0.40 of AdamW's on an H200's host."""

LEFT_OF_FOREACH_SGD = (1.0, 0.75, 0.6)
"""0.72 to 0.77 there: its foreach has two kernels a step, not ten."""


def fused_form(update: OptimizerStep) -> str:
    """The optimizer of torch.optim that fused=True can be passed to, "" where it has no such form or is fused already. Where none is named it is of the Adam family."""
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
        made.append(combine(host_time.without(update.spans, 1 - host), fewer))
    return Edits(*made)
