"""One kernel in place of each written-out attention: what its call takes as it is, and how long it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.op_costs.fused_attention import PREFER_CUDNN, Scores, attention_us, is_fused, of_causal
from advisor.knowledge.op_tokens import has_token
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.structs import replace
from advisor.views.patterns.attention import Attentions, WrittenOut, host_between
from advisor.views.patterns.shared_heads import RepeatedHeads
from advisor.views.replay.edits import Edit, Fused, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.time.roofline import Roofline
from advisor.views.trace.program import Program

SLOWEST, LIKELY, FASTEST, SINGLE = costs("fused-attention")

SLOWER, FASTER = costs("fused-attention-spread")


class FusedAttentions(msgspec.Struct, frozen=True, eq=False):
    """found: kernels (positions) of each attention by shapes. kept: the GEMM that the fused kernel replaces. times_us: (n, 3) of the fused kernel: most,
    expected, least."""

    found: list[Ints]
    kept: list[Ints]
    times_us: Floats

    @classmethod
    def build(cls, work: GpuWork, written: Attentions, roofline: Roofline) -> FusedAttentions:
        return cls(
            [one.members for one in written.found],
            [one.products[: 2 if one.backward else 1] for one in written.found],
            np.array([_times_us(work, one, roofline) for one in written.found]).reshape(-1, 3),
        )


def as_one_kernel(work: GpuWork, host_time: HostTime, kept: list[Ints], found: list[Ints], us: Floats) -> Edit:
    """A fused kernel per attention, without ops between the GEMMs. Its call costs the host as much as a GEMM does: on an H200's host 19 to 36 µs forward (GEMM:
    18 to 37), and 160 to 280 with the backward pass (GEMM: 210 to 280)."""
    if not found:
        return combine()
    at = np.concatenate(kept)
    gone = np.setdiff1d(np.concatenate(found), at)
    share = np.array([len(k) for k in kept])
    return combine(Fused(at, gone, np.repeat(us / share, share)), host_time.cut_time(host_between(work, found, gone)))


def by_products(work: GpuWork, found: Sequence[Ints]) -> tuple[list[Ints], Floats]:
    """Of attentions without shapes: first and last GEMM, and (n, 3) time of the replacing kernel: most, expected, least, at most their own."""
    product, precision = work.in_families(Family.GEMM), np.asarray(work.kernels.precision, object)[work.rows]
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


def shared_heads_taken(work: GpuWork, heads: RepeatedHeads, written: Attentions, program: Program) -> Ints:
    """Copies that repeat keys or values although the fused kernel accepts shared heads: in 16 bits, with a causal mask at most, unless cuDNN is chosen."""
    takes = np.zeros(len(work.op), bool)
    for one in written.found:
        by_cudnn = program.maker == "nvidia" and work.device_at(int(one.members[0])).compute_capability[0] in PREFER_CUDNN
        masked = (one.masked and not one.causal) or any(has_token(work.name(k), "baddbmm") for k in one.products.tolist())
        takes[one.members] = one.dtype != "float" and (by_cudnn or not masked)
    return np.array([one.at for one in heads.found if takes[one.reader].any()], int)


def planned_anew(written: Attentions, work: GpuWork) -> bool:
    """Whether each step has lengths of its own, as in decoding, so cuDNN would plan in each step."""
    sizes: dict[int, set[tuple[int, int, int]]] = {}
    for one in written.found:
        if one.dtype != "float" and work.device_at(int(one.members[0])).compute_capability[0] in PREFER_CUDNN:
            sizes.setdefault(int(work.step[one.members[0]]), set()).add(one.scores)
    steps_of = Counter(size for own in sizes.values() for size in own)
    return len(sizes) > 1 and all(min(steps_of[size] for size in own) == 1 for own in sizes.values())
