"""Kernels that work on FP64, and how long they would take in FP32."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge.devices import Peaks
from advisor.knowledge.kernel_names import NAMES_FP64, PRODUCTS
from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.views.groups import Groups, distinct
from advisor.views.replay.edits import Edit, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace import arguments

UNKNOWN = 3 / 4
"""What is left of a kernel whose bytes, or the bandwidth for them, are not known: half where memory holds it, all where something else does."""

_DOUBLES = {"double", "c10::complex<double>"}
_FLOATS = {"float", "c10::complex<float>", "c10::Half", "c10::BFloat16"}
_SHORTER = re.compile(r"\bfloat\b|Half|BFloat16")
"""A type beside doubles in a kernel's name: it converts, or only sums in FP64."""
_SHORT_OPERAND = re.compile(r"\bb?float(16|32)\[")
"""Likewise among the operands of an op that a compiler made."""


@dataclass(frozen=True)
class DoubleWork:
    """at: positions of the kernels whose op takes FP64, or whose name says so where types were not recorded. likely: half of the bytes at
    the bandwidth reached are no longer moved, products run at the rate of FP32. best: all take half of their time, products also TF32's part of it."""

    at: Ints
    likely: Edit
    best: Edit

    @classmethod
    def build(cls, work: GpuWork, roofline: Roofline, single_is_tf32: bool = False) -> DoubleWork:
        """single_is_tf32: whether the framework multiplies FP32 in TF32 unless told otherwise, as JAX does."""
        at = np.flatnonzero(work.kernel & _takes_doubles(work))
        dur, rows = work.dur_us[at], work.rows[at]
        dense = work.of(*PRODUCTS)[at]
        # The limit is not known where the bytes are not, nor where the device's bandwidth is not.
        limit = roofline.limit_us[rows]
        likely = np.where(np.isnan(limit), dur * UNKNOWN, dur - np.fmin(limit, dur) / 2)
        best = dur / 2
        devices = work.column("device")[at]
        for device in distinct(devices[dense]).tolist():
            products = dense & (devices == device)
            single, fewest = _of_products(roofline.peaks.get(device), single_is_tf32)
            likely[products], best[products] = dur[products] * single, dur[products] * fewest
        return cls(at, *(WithDurations(at, np.fmin(np.maximum(times, SHORTEST_US), dur)) for times in (likely, best)))


def _of_products(peaks: Peaks | None, single_is_tf32: bool) -> tuple[float, float]:
    """What is left of a product in FP64 at the rate of FP32, or the one of TF32 that large products reach, and at best at TF32's."""
    double, single, tf32 = ((peaks.flops_per_s(name) if peaks else None) for name in ("fp64", "fp32", "tf32"))
    if single_is_tf32 and peaks and tf32:
        single = peaks.achievable_flops_per_s("tf32") or single
    of_rate = min(double / single, 1.0) if double and single else 1.0
    return of_rate, double / tf32 if double and tf32 else min(of_rate, 0.5)


def _compiled_of_doubles(work: GpuWork) -> Mask:
    """(n,) kernels that a compiler made of an op whose floating operands are all FP64."""
    operands = work.timeline.compiled_ops["operands"]
    doubles = np.array([*("float64[" in text and not _SHORT_OPERAND.search(text) for text in operands), False], bool)
    found: Mask = doubles[work.column("compiled")]
    return found


def _takes_doubles(work: GpuWork) -> Mask:
    """(n,) whether the floating tensors that the op takes which launched it are FP64; by its name where none is known. A number that
    stands beside tensors is recorded as a double without a shape, and is computed in their type."""
    found = (work.named(NAMES_FP64) & ~work.named(_SHORTER)) | _compiled_of_doubles(work)
    if not work.timeline.source.shapes:
        return found
    columns = [work.timeline.cpu_ops[name].cat for name in ("types", "dims")]
    types, dims = (np.where(work.op >= 0, np.r_[column.codes.to_numpy(), -1][work.op], -1) for column in columns)
    rows = np.flatnonzero((types >= 0) & (dims >= 0))
    groups = Groups.by(types[rows], dims[rows])
    told, doubles = np.zeros((2, len(groups.first)), bool)
    for k, row in enumerate(rows[groups.first].tolist()):
        taken = zip(arguments.names(columns[0].categories[types[row]]), arguments.numbers(columns[1].categories[dims[row]]), strict=False)
        of = {name in _DOUBLES for name, shape in taken if shape and name in _DOUBLES | _FLOATS}
        told[k], doubles[k] = bool(of), of == {True}
    found[rows] = np.where(told[groups.of], doubles[groups.of], found[rows])
    return found
