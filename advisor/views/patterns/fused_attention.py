"""One kernel in place of each written-out attention: how long it takes, and where a compiler puts it there unasked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.op_costs.fused_attention import Scores, attention_us, is_fused, of_causal
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.views.patterns.attention import Attentions, WrittenOut, host_between
from advisor.views.replay.edits import Edit, Fused, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.time.roofline import Roofline
from advisor.views.trace.program import Program

SLOWEST, LIKELY, FASTEST, SINGLE = costs("fused-attention")

SLOWER, FASTER = costs("fused-attention-spread")

ALIGNED = 4
"""Scores of a row in 16 bits that are no multiple of this are padded before Inductor looks for attention: CLIP and DINOv2 over 197 and 257 pieces of a
picture gained less by compiling, 33 and 22 %, than by the one call, 40 and 43; Whisper over 1500 more, 68 and 53."""

_SCALED, _DIVIDED = names_of("mul"), names_of("div")
_ADDED, _DROPPED = names_of("add"), names_of("native_dropout")
_CAST = names_of("cast_copy")
_SOFTMAX = names_of("softmax")


@dataclass(frozen=True, eq=False)
class FusedAttentions:
    """found: kernels (positions) of each attention that shapes tell; kept: the products in whose place the one is launched; times_us: (n, 3) of it, at most, likely, at least;
    by_compiler: (n,) whether Inductor puts it there where the model is compiled."""

    found: list[Ints]
    kept: list[Ints]
    times_us: Floats
    by_compiler: Mask

    @classmethod
    def build(cls, work: GpuWork, written: Attentions, roofline: Roofline, program: Program) -> FusedAttentions:
        known = {(one.scores, one.dtype) for one in written.found if not one.backward and _known_to_inductor(work, one, program)}
        return cls(
            [one.members for one in written.found],
            [one.products[: 2 if one.backward else 1] for one in written.found],
            np.array([_times_us(work, one, roofline) for one in written.found]).reshape(-1, 3),
            np.array([(one.scores, one.dtype) in known for one in written.found], bool),
        )


def as_one_kernel(work: GpuWork, host_time: HostTime, kept: list[Ints], found: list[Ints], us: Floats) -> Edit:
    """One kernel in place of each, and no ops between the products; its call costs the host what one product did, forward and backward: 19 to
    36 µs of an H200's host forward, where a product takes 18 to 37, and 160 to 280 with the backward pass, where a product takes 210 to 280."""
    if not found:
        return combine()
    at = np.concatenate(kept)
    gone = np.setdiff1d(np.concatenate(found), at)
    share = np.array([len(k) for k in kept])
    return combine(Fused(at, gone, np.repeat(us / share, share)), host_time.without(host_between(work, found, gone)))


def by_products(work: GpuWork, found: Sequence[Ints]) -> tuple[list[Ints], Floats]:
    """Of attentions that no shapes tell: their first and last product, and the (n, 3) time of the kernel that replaces each, at most, likely and at least;
    never above their own."""
    product, precision = work.of(Family.GEMM), np.asarray(work.kernels.precision, object)[work.rows]
    products = [chain[product[chain]] for chain in found]
    us = np.array([work.dur_us[at].sum() * (SINGLE if precision[at[0]] in ("fp32", "tf32") else 1.0) for at in products])
    own_us = np.array([work.dur_us[chain].sum() for chain in found]).reshape(-1, 1)
    return [at[[0, -1]] for at in products], np.minimum(np.outer(us, (SLOWEST, LIKELY, FASTEST)), own_us)


def _times_us(work: GpuWork, one: WrittenOut, roofline: Roofline) -> tuple[float, float, float]:
    """Time of the kernel that replaces one, at most, likely, at least. In FP32, and on sequences of few words, it may take longer."""
    peaks = roofline.peaks.get(work.device_at(int(one.members[0])).id)
    products, whole = float(work.dur_us[one.products].sum()), float(work.dur_us[one.members].sum())
    heads, queries, keys = one.scores
    width = one.flops / (8 if one.backward else 4) / max(heads * queries * keys, 1)
    if not is_fused(one.dtype, round(width)):
        return whole, whole, whole
    # A causal mask is told, not read: tiles beyond it are left out. That none is, is the slow end.
    scores = Scores(heads, queries, keys, width, one.dtype, one.backward, one.masked and not one.causal, one.dropped)
    masked = peaks and attention_us(scores, peaks)
    # A library's own call leaves the mask of sequences out where none is padded.
    known = masked and peaks and attention_us(replace(scores, masked=False), peaks) if one.of_sequences else masked
    if not known:
        return min(products * SLOWEST, whole), min(products * LIKELY, whole), min(products * FASTEST, whole)
    told = of_causal(keys, one.dtype) if one.causal else 1.0
    known *= told
    return max(known * SLOWER / told, masked or 0.0), known, known * FASTER


def _known_to_inductor(work: GpuWork, one: WrittenOut, program: Program) -> bool:
    """Whether Inductor's patterns of attention (`torch/_inductor/fx_passes/fuse_attention.py`) hold this spelling, each tried with torch 2.13.

    Products of four axes whose scores are scaled before a softmax, in FP32 or not: multiplied, then without a mask; divided, then with one added
    or none. In training a multiplied one only with dropout. Batches of matrices, scaled before, only where nothing is trained.
    """
    names = {work.name(int(k)) for k in np.setdiff1d(one.members, one.products)}
    by = {pattern: {name for name in names if pattern.search(name)} for pattern in (_SCALED, _DIVIDED, _ADDED, _DROPPED, _CAST, _SOFTMAX)}
    plain = names == set().union(*by.values()) and by[_SOFTMAX]
    aligned = one.dtype == "float" or one.scores[2] % ALIGNED == 0
    if not plain or not aligned or any("einsum" in name for name in _around(work, one.products)):
        return False
    scaled, divided, added, dropped = (bool(by[pattern]) for pattern in (_SCALED, _DIVIDED, _ADDED, _DROPPED))
    trained = not program.compiles_whole
    if one.axes == 3:
        return not (scaled or divided or added or dropped or trained)
    cast_and_dropped = trained and dropped and bool(by[_CAST]) and one.dtype != "float"
    return one.axes == 4 and not cast_and_dropped and (divided or (scaled and not added and (dropped or not trained)))


def _around(work: GpuWork, products: Ints) -> set[str]:
    return {work.ops.name(int(work.ops.outermost[op])) for op in work.op[products].tolist()}
