"""Matrix products, convolutions and attention in FP64, FP32 or TF32, and how long they would take in fewer bits."""

from __future__ import annotations

import re
from collections.abc import Collection
from math import gcd

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.devices import Peaks
from advisor.knowledge.measured_costs import cost, costs
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import PRODUCTS, Family
from advisor.knowledge.shares import LITTLE, NEARLY_ALL
from advisor.knowledge.shortest_kernel import LATENCY_BOUND_US, SHORTEST_US
from advisor.knowledge.structs import replace
from advisor.views.groups import Groups, distinct
from advisor.views.replay.edits import Edit, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace import arguments

WIDE = ("fp32", "tf32")

EMULATED = cost("emulated-product")

BUSY_SHARE = 0.4
"""A product shorter than `LATENCY_BOUND_US` that works at its rate for less of its time is bound by latency."""

OF_CONVOLUTIONS = LITTLE
"""What less of the convolutions' work than this runs in says nothing of the others: one may be of code that sets its own flags."""

UNALIGNED, ODD = costs("unaligned-product")

CAST = cost("autocast-cast")

UNSEEN = cost("unseen-products")

_MATRICES = names_of("matrix_product")
_EMULATED = names_of("fp32_of_three_tf32")


def halved(work: GpuWork, at: Ints) -> Edit:
    """The kernels at some positions with half as many bytes to move."""
    return WithDurations(at, np.maximum(work.dur_us[at] / 2, SHORTEST_US))


class WideProducts(msgspec.Struct, frozen=True):
    """GEMMs and convolutions (positions `at`) that could run in fewer bits: time, precision, and work (NaN if unknown). unit: the largest of 1, 2, 4 and 8 that
    divides their sizes. others: lower precisions in use. op: the launching op. refused: convolutions on CUDA cores although the library chose Tensor Cores
    for others of the step, so it has no faster kernel. depthwise: PyTorch's own kernels, no faster in TF32 or BF16."""

    at: Ints
    dur_us: Floats
    now: np.ndarray
    emulated: Mask
    flops: Floats
    bytes: Floats
    unit: Ints
    forward: Mask
    others: tuple[str, ...]
    op: Ints
    refused: Mask
    depthwise: Mask

    def of_ops(self, ops: Collection[int]) -> WideProducts:
        """Those that these ops launched."""
        chosen = np.isin(self.op, [*ops])
        return replace(self, **{name: getattr(self, name)[chosen] for name in self.__struct_fields__ if name != "others"})

    @classmethod
    def build(cls, work: GpuWork, roofline: Roofline) -> WideProducts:
        emulated = work.named(_EMULATED)
        texts = np.where(emulated, "tf32", np.asarray(work.kernels.precision, object)[work.rows])
        dense = work.in_families(*PRODUCTS) & ~work.held_up
        at = np.flatnonzero(dense & np.isin(texts, WIDE))
        rows = work.rows[at]
        single, reduced = (work.in_families(Family.CONV)[at] & (texts[at] == text) for text in WIDE)
        others = tuple(sorted({str(text) for text in texts[dense] if text and text not in WIDE}))
        return cls(
            at, work.dur_us[at], texts[at], emulated[at], roofline.flops[rows], roofline.bytes[rows], _units(work, at), ~work.backward[at], others,
            work.op[at], single & _free_to(reduced, single | reduced, roofline.flops[rows], work.dur_us[at]), work.named(names_of("depthwise_of_torch"))[at],
        )  # fmt: skip

    def gains_as_much(self, least: WithDurations, most: WithDurations) -> bool:
        """Whether of two edits of `in_precision` the first takes nearly as much off their time as the second."""
        gains = [float(np.maximum(self.dur_us - edit.dur_us, 0.0).sum()) for edit in (least, most)]
        return gains[0] >= NEARLY_ALL * gains[1]

    def in_precision(self, name: str, peaks: Peaks, *, reached: bool, casts: bool = False, doubted: bool = False) -> WithDurations:
        """Each at the device's rate in that precision: as large GEMMs reach it, or at peak. doubted: with unknown work half of the rate is gained, as for small
        or memory-bound GEMMs or Winograd convolutions."""
        rate = (peaks.achievable_flops_per_s(name) if reached else peaks.flops_per_s(name)) or 1.0
        rates = {text: peaks.achievable_flops_per_s(text) or rate for text in WIDE}
        before = np.array([rates[text] for text in self.now.tolist()])
        before /= np.where(self.emulated, EMULATED, 1.0)
        bandwidth = (peaks.achievable_bytes_per_s if reached else peaks.bytes_per_s) or np.inf
        by_size = {1: UNALIGNED, 2: UNALIGNED, 4: 1.0} if name == "tf32" else {1: ODD, 2: UNALIGNED, 4: UNALIGNED}
        aligned = np.array([by_size.get(unit, 1.0) for unit in self.unit.tolist()])
        known = np.maximum(self.flops / (rate * aligned), (self.bytes if name == "tf32" else self.bytes / 2) / bandwidth) * 1e6
        if casts:
            known = known + np.where(self.forward, CAST * self.bytes / bandwidth * 1e6, 0.0)
        # The same loop at a higher rate: what else holds a TF32 product up stays. From CUDA cores another kernel is chosen.
        known = np.where(self.now == "tf32", np.maximum(known, self.dur_us * before / rate), known)
        unknown = np.minimum(self.dur_us * before / rate * (UNSEEN if doubted else 1.0), self.dur_us)
        faster = np.maximum(np.where(np.isnan(known), unknown, known), SHORTEST_US)
        # A small TF32 product spends its time starting and ending: a higher rate shortens only the part at the rate.
        at_rate = np.maximum(self.flops / before, self.bytes / bandwidth) * 1e6
        small = (self.now == "tf32") & (self.dur_us < LATENCY_BOUND_US) & ~(at_rate >= BUSY_SHARE * self.dur_us)
        faster = np.where(small, np.maximum(faster, self.dur_us - np.maximum(np.nan_to_num(at_rate - known), 0.0)), faster)
        kept = (self.now == name) | ((self.refused | (self.depthwise & (name != "fp16"))) & reached)
        return WithDurations(self.at, np.where(kept, self.dur_us, faster))


def _free_to(reduced: Mask, convolutions: Mask, flops: Floats, dur_us: Floats) -> bool:
    """Whether enough convolution work runs in TF32 to show that the library may use it for all; by time if work is unknown."""
    amount = dur_us if np.isnan(flops[convolutions]).any() else flops
    return bool(reduced.any() and amount[reduced].sum() >= OF_CONVOLUTIONS * amount[convolutions].sum())


def _units(work: GpuWork, chosen: Ints) -> Ints:
    """(n,) the largest of 1, 2, 4 and 8 that divides the last two axes of a product's operands; 8 for convolutions."""
    dims = work.timeline.cpu_ops["dims"]
    found = np.full(len(chosen), 8, np.int64)
    at = np.flatnonzero(work.launched_by(_MATRICES.search)[chosen])
    codes = dims.codes[work.op[chosen[at]]]
    for code in distinct(codes).tolist():
        matrices = [shape[-2:] for shape in arguments.numbers(dims.categories[code]) if len(shape) >= 2 and all(isinstance(n, int) for n in shape)]
        # Rows are spaced by the last axis; of the one before only a transposed operand's are.
        found[at[codes == code]] = gcd(8, *(n for shape in matrices for n in shape if n > 8))
    return found


UNKNOWN = cost("unknown-bytes")

_DOUBLES = {"double", "c10::complex<double>"}
_FLOATS = {"float", "c10::complex<float>", "c10::Half", "c10::BFloat16"}
_SHORTER = names_of("shorter_than_fp64")
"""A type beside doubles in a kernel's name: it converts, or only sums in FP64."""
_SHORT_OPERAND = re.compile(r"\bb?float(16|32)\[")
"""Likewise among the operands of an op that a compiler made."""


class DoubleWork(msgspec.Struct, frozen=True):
    """at: positions of kernels with FP64 ops, or FP64 names if types were not recorded. likely: half of the bytes are saved at the reached bandwidth, GEMMs run
    at FP32's rate. best: all take half of their time, GEMMs TF32's share."""

    at: Ints
    likely: Edit
    best: Edit

    @classmethod
    def build(cls, work: GpuWork, roofline: Roofline, single_is_tf32: bool = False) -> DoubleWork:
        """single_is_tf32: whether the framework multiplies FP32 in TF32 unless told otherwise, as JAX does."""
        at = np.flatnonzero(work.kernel & _takes_doubles(work))
        dur, rows = work.dur_us[at], work.rows[at]
        dense = work.in_families(*PRODUCTS)[at]
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
    """Share of an FP64 GEMM's time that is left at FP32's rate, or at TF32's as large GEMMs reach it; at best TF32's peak."""
    double, single, tf32 = ((peaks.flops_per_s(name) if peaks else None) for name in ("fp64", "fp32", "tf32"))
    if single_is_tf32 and peaks and tf32:
        single = peaks.achievable_flops_per_s("tf32") or single
    of_rate = min(double / single, 1.0) if double and single else 1.0
    return of_rate, double / tf32 if double and tf32 else min(of_rate, 0.5)


def _compiled_of_doubles(work: GpuWork) -> Mask:
    """(n,) kernels that a compiler made of an op whose floating operands are all FP64."""
    operands = work.timeline.compiled_ops["operands"]
    doubles = np.array([*("float64[" in text and not _SHORT_OPERAND.search(text) for text in operands), False], bool)
    return doubles[work.column("compiled")]


def _takes_doubles(work: GpuWork) -> Mask:
    """(n,) whether the launching op takes floating tensors in FP64; by the kernel's name if unknown. A number next to tensors is recorded as a double without
    shape, and computed in their type."""
    found = (work.named(names_of("fp64_by_name")) & ~work.named(_SHORTER)) | _compiled_of_doubles(work)
    if not work.timeline.source.shapes:
        return found
    columns = [work.timeline.cpu_ops[name] for name in ("types", "dims")]
    types, dims = (np.where(work.op >= 0, np.r_[column.codes, -1][work.op], -1) for column in columns)
    rows = np.flatnonzero((types >= 0) & (dims >= 0))
    groups = Groups.by_keys(types[rows], dims[rows])
    told, doubles = np.zeros((2, len(groups.first)), bool)
    for k, row in enumerate(rows[groups.first].tolist()):
        taken = zip(arguments.names(columns[0].categories[types[row]]), arguments.numbers(columns[1].categories[dims[row]]), strict=False)
        of = {name in _DOUBLES for name, shape in taken if shape and name in _DOUBLES | _FLOATS}
        told[k], doubles[k] = bool(of), of == {True}
    found[rows] = np.where(told[groups.of], doubles[groups.of], found[rows])
    return found
