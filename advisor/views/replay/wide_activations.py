"""Activations that autocast leaves in FP32 between products in 16 bits, and what they take in 16."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.kernel_names import PRODUCTS, Family
from advisor.knowledge.op_costs import DTYPE_BYTES
from advisor.views.replay.casts import Casts, Purpose
from advisor.views.replay.edits import Edit, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.shapes import Shapes

LARGE = 1 << 17
"""Elements from which a kernel's time is that of what it reads and writes: half a megabyte in FP32."""

_NARROW = ("c10::Half", "c10::BFloat16")
_STREAMS = (Family.ELEMENTWISE, Family.NORM, Family.SOFTMAX, Family.REDUCTION)


@dataclass(frozen=True)
class WideActivations:
    """Pointwise kernels, norms and softmaxes (positions) of FP32 between the first and the last product in 16 bits of a step, outside of stretches that the program itself
    put in FP32; share: (n,) of what each reads and writes that would be left in 16 bits."""

    at: Ints
    dur_us: Floats
    share: Floats

    def narrowed(self, part: float) -> Edit:
        """That part of what 16 bits would spare goes."""
        return WithDurations(self.at, self.dur_us * (1 - part * (1 - self.share)))

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes, casts: Casts) -> WideActivations:
        streams = np.flatnonzero(work.of(*_STREAMS) & (work.op >= 0) & (shapes.made[work.rows] >= LARGE) & _between_products(work, shapes))
        chosen = np.setdiff1d(streams, [*(cast.position for cast in casts.all), *_stretches(casts)])
        share = np.array([_share(shapes.inputs(int(op)), int(shapes.made[row])) for op, row in zip(work.op[chosen], work.rows[chosen], strict=True)])
        wide = share < 1.0
        return cls(chosen[wide], work.dur_us[chosen[wide]], share[wide])


def _between_products(work: GpuWork, shapes: Shapes) -> Mask:
    """(n,) what runs between the first and the last product in 16 bits of its step: before and after it other things are done than the model."""
    found = np.zeros(len(work.op), bool)
    products = np.flatnonzero(work.of(*PRODUCTS) & (work.op >= 0))
    narrow = products[[shapes.dtype(int(op)) in _NARROW for op in work.op[products]]]
    for step in np.unique(work.step[narrow]):
        own = narrow[work.step[narrow] == step]
        found[own[0] : own[-1]] = True
    return found


def _stretches(casts: Casts) -> list[int]:
    """Positions in stretches of FP32: from the first cast up to the cast that leads back down."""
    inside, begin = list[int](), -1
    for cast in sorted((cast for cast in casts.all if cast.purpose is Purpose.ISLAND), key=lambda cast: cast.position):
        if cast.source in _NARROW:
            begin = cast.position if begin < 0 else begin
        elif begin >= 0:
            inside += range(begin, cast.position)
            begin = -1
    return inside


def _share(inputs: list[tuple[tuple[int, ...], str]], made: int) -> float:
    """What is left of a kernel's bytes with its FP32 in 16 bits; what it makes is of the widest type that it reads."""
    widest = max((DTYPE_BYTES[kind] for _, kind in inputs if kind in ("float", *_NARROW)), default=0)
    before = sum(prod(shape) * DTYPE_BYTES[kind] for shape, kind in inputs) + made * widest
    after = sum(prod(shape) * (2 if kind == "float" else DTYPE_BYTES[kind]) for shape, kind in inputs) + made * min(widest, 2)
    return after / before if before else 1.0
