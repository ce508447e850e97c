"""Activations that autocast leaves in FP32 between products in 16 bits, and what they take in 16."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.kernel_names import Family
from advisor.knowledge.op_costs import DTYPE_BYTES
from advisor.views.replay.casts import Casts, Purpose
from advisor.views.replay.edits import Edit, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.shapes import Shapes

LARGE = 1 << 17
"""Elements from which a kernel's time is that of what it reads and writes: half a megabyte in FP32."""

_STREAMS = (Family.ELEMENTWISE, Family.NORM, Family.SOFTMAX, Family.REDUCTION)


@dataclass(frozen=True)
class WideActivations:
    """Pointwise kernels, norms and softmaxes (positions) of FP32 outside of stretches that the program itself put in FP32; share: (n,) of what each reads
    and writes that would be left in 16 bits."""

    at: Ints
    dur_us: Floats
    share: Floats

    def narrowed(self, part: float) -> Edit:
        """That part of what 16 bits would spare goes."""
        return WithDurations(self.at, self.dur_us * (1 - part * (1 - self.share)))

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes, casts: Casts) -> WideActivations:
        streams = np.flatnonzero(work.of(*_STREAMS) & (work.op >= 0) & (shapes.made[work.rows] >= LARGE))
        chosen = np.setdiff1d(streams, [*(cast.position for cast in casts.all), *_stretches(casts)])
        share = np.array([_share(shapes.inputs(int(op)), int(shapes.made[row])) for op, row in zip(work.op[chosen], work.rows[chosen], strict=True)])
        wide = share < 1.0
        return cls(chosen[wide], work.dur_us[chosen[wide]], share[wide])


def _stretches(casts: Casts) -> list[int]:
    """Positions from each cast of a stretch in another type to the next, which is its end."""
    ends = sorted(cast.position for cast in casts.all if cast.purpose is Purpose.ISLAND)
    return [k for begin, end in zip(ends[::2], ends[1::2], strict=False) for k in range(begin, end)]


def _share(inputs: list[tuple[tuple[int, ...], str]], made: int) -> float:
    """What is left of a kernel's bytes with its FP32 in 16 bits; what it makes is of the widest type that it reads."""
    widest = max((DTYPE_BYTES[kind] for _, kind in inputs if kind in ("float", "c10::Half", "c10::BFloat16")), default=0)
    before = sum(prod(shape) * DTYPE_BYTES[kind] for shape, kind in inputs) + made * widest
    after = sum(prod(shape) * (2 if kind == "float" else DTYPE_BYTES[kind]) for shape, kind in inputs) + made * min(widest, 2)
    return after / before if before else 1.0
