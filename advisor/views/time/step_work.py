"""How much work a step is, and on how many samples: to tell whether two recordings did the same."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.report.step import Work
from advisor.views.time.roofline import Roofline
from advisor.views.trace import arguments
from advisor.views.trace.ops import Ops
from advisor.views.trace.serving import Serving
from advisor.views.trace.steps import Steps

_MARK = re.compile(r"\b(?:bs|batch[_ ]?size)[ =:]+(\d{1,12})", re.IGNORECASE)
"""`bs=16` of programs that say so."""
_IMAGES = names_of("convolution_of_images")


class Batch(msgspec.Struct, frozen=True):
    """a_step: samples of a mean step, 0 if nothing says; source: what said so."""

    a_step: float = 0.0
    source: str = ""

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, serving: Serving) -> Batch:
        if not steps.repeats:
            return cls()
        return _served(serving, steps) or _marked(timeline, steps) or _of_images(timeline, steps) or cls()


def _served(serving: Serving, steps: Steps) -> Batch | None:
    """Mean of what a server's marks say of the steps in the window."""
    sizes = [step.mark.requests for step in serving.judged(steps)]
    return Batch(float(np.mean(sizes)), "the marks of its steps") if sizes and min(sizes) > 0 else None


def _marked(timeline: Timeline, steps: Steps) -> Batch | None:
    """Mean over the marks in the window, at most one mark per step."""
    notes = timeline.annotations
    inside = steps.issued_at(notes["start_us"])
    sizes = [int(found[1]) for name in notes["name"][inside] if (found := _MARK.search(name))]
    if not sizes or len(sizes) > 1.5 * steps.steps:
        return None
    return Batch(float(np.mean(sizes)), "the marks of its steps")


def _of_images(timeline: Timeline, steps: Steps) -> Batch | None:
    """The first dimension of the first convolution's input, where all in the window agree on it."""
    ops = timeline.cpu_ops
    rows = np.flatnonzero(ops["name"].matching(_IMAGES.match) & steps.issued_at(ops["start_us"]))
    first = {shapes[0][0] for text in set(ops["dims"][rows]) if (shapes := arguments.numbers(text)) and len(shapes[0]) >= 4}
    return Batch(float(first.pop()), "the inputs of its convolutions") if len(first) == 1 else None


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
        attention = names[ops.codes(roofline.cost_op)]
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
