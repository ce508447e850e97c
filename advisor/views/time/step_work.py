"""How much work a step is, whatever it takes: to tell whether two recordings did the same."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.report.step import Work
from advisor.views.time.roofline import Roofline
from advisor.views.trace.batch import Batch
from advisor.views.trace.ops import Ops
from advisor.views.trace.steps import Steps

_ATTENTION = names_of("product_of_scores")


class StepWork(msgspec.Struct, frozen=True):
    """Kernels, their time, copied bytes and FLOPs of a mean step of the window."""

    work: Work

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, roofline: Roofline, ops: Ops, batch: Batch) -> StepWork:
        frame = timeline.gpu_ops
        start, kind = frame["start_us"], frame["kind"]
        inside = steps.holds(start)
        kernels = inside & (kind == GpuKind.KERNEL.value)
        # Attention that skips what a mask hides does half the FLOPs of the same attention written out.
        names = np.array([bool(_ATTENTION.search(name)) for name in (*ops.categories, "")])
        attention = names[np.where(roofline.cost_op >= 0, ops.names[roofline.cost_op], -1)] if len(ops.names) else np.zeros(len(frame), bool)
        copies = inside & (kind == GpuKind.MEMCPY.value)
        return cls(
            Work(
                kernels=float(kernels.sum()) / steps.steps,
                kernel_us=float(frame["dur_us"][kernels].sum()) / steps.steps,
                copied_bytes=float(frame["bytes"][copies].clip(min=0).sum()) / steps.steps,
                flops=float(np.nansum(roofline.flops[inside & ~attention])) / steps.steps,
                samples=batch.a_step,
                samples_from=batch.source,
            )
        )
